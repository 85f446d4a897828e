"""Faults that the gate abi reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.model import Finding, GfxTarget
from core.rocm_layouts import runpath
from promotion.gates.abi.abi_gate import make_gate
from tests.support.gating import gate_findings
from tests.support.made_wheel import GLIBC, MadeWheel, library
from tests.support.tiny_elf import TinySymbol
from tests.support.wheel_sets import PJRT_LIBRARY, TARGETS, pjrt, set_wheel
from tests.unit.gate_table.model import Row, Scene, folder_of
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

GATE = "abi"
HIP = "libamdhip64.so.7"
BLAS = "librocblas.so.5"
USES = (TinySymbol("hipFree", HIP, "hip_4.2"), TinySymbol("rocblas_sgemm"))
RUNPATH = runpath("pjrt", [GfxTarget.parse(target) for target in TARGETS])
BUILD_INFO = "jax_plugins/xla_rocm7/build_info.json"


def rocm(
    soname: str, symbols: Mapping[str, tuple[str, ...]], *needed: str
) -> RocmLibrary:
    """Return a library of ROCm."""
    return RocmLibrary(
        soname=soname,
        path=f"lib/{soname}",
        symbols=symbols,
        needed=needed,
        runpath=("$ORIGIN",),
    )


def native(
    *symbols: TinySymbol, needed: Sequence[str] = (HIP, BLAS, "libc.so.6"), **more: Any
) -> bytes:
    """Return a small replacement of XLA's library: it uses ROCm and has our RUNPATH."""
    return library(
        GLIBC, *(symbols or USES), needed=needed, **{"runpath": RUNPATH, **more}
    )


@dataclass
class Installed:
    """A set of one pjrt wheel, and the ROCm with which it is compared.

    Attributes:
        manifest: exports of the ROCm; None for a set without a manifest.
        published: whether the wheel is as its project published it.
    """

    made: MadeWheel
    manifest: RocmManifest | None
    rocm_version: str = "7.2.0"
    published: bool = False

    def change(self, soname: str, **changes: Any) -> None:
        """Change a library of the ROCm."""
        assert self.manifest is not None
        changed = replace(self.manifest.libraries[soname], **changes)
        self.manifest = replace(
            self.manifest, libraries={**self.manifest.libraries, soname: changed}
        )


def installed() -> Installed:
    """Return a set without faults, and the ROCm that it was built with."""
    made = pjrt()
    made.files[PJRT_LIBRARY] = native()
    info = {
        "members": [{"path": PJRT_LIBRARY, "needed": [HIP, BLAS, "libc.so.6"]}],
        "rocm_sonames": [HIP, BLAS],
    }
    made.files[BUILD_INFO] = json.dumps(info).encode()
    libraries = {
        HIP: rocm(HIP, {"hipFree": ("hip_4.2",)}),
        BLAS: rocm(BLAS, {"rocblas_sgemm": ("",)}, HIP),
    }
    return Installed(made, RocmManifest(rocm_version="7.2.0", libraries=libraries))


def _judge(installed: Installed, folder: Path) -> Iterable[Finding]:
    made = installed.made
    paths = [path for path in made.files if path.endswith(".so")]
    wheel = set_wheel(made, folder_of(folder, "w"), dict.fromkeys(paths, TARGETS))
    if installed.published:
        wheel = replace(
            wheel, wheel=replace(wheel.wheel, source_sha256=wheel.wheel.sha256)
        )
    gate = make_gate(installed.manifest)
    version = installed.rocm_version
    return gate_findings(
        folder, gate, [wheel], python_versions=("3.12",), rocm_version=version
    )


def content(data: bytes) -> Callable[[Installed], object]:
    """Replace the library of the wheel."""
    return lambda installed: installed.made.files.update({PJRT_LIBRARY: data})


def without_blas(installed: Installed) -> None:
    assert installed.manifest is not None
    installed.manifest = replace(
        installed.manifest, libraries={HIP: installed.manifest.libraries[HIP]}
    )


def unknown_rocm(installed: Installed) -> None:
    installed.manifest = None
    installed.rocm_version = "7.3.0"


def published(edit: Callable[[Installed], object]) -> Callable[[Installed], object]:
    """Change a wheel, and let it be as its project published it."""

    def change(installed: Installed) -> None:
        edit(installed)
        installed.published = True

    return change


def short_runpath(installed: Installed) -> None:
    """Leave out /opt/rocm, and let the loader load nothing first."""
    short = ":".join(
        entry for entry in RUNPATH.split(":") if not entry.startswith("/opt")
    )
    installed.made.files[PJRT_LIBRARY] = native(runpath=short)
    del installed.made.files[BUILD_INFO]


SCENE = Scene(lambda _: installed(), _judge)
_EDITS: list[tuple[str, str, Callable[[Installed], object]]] = [
    (
        "symbol-missing",
        "not exported",
        lambda made: made.change(HIP, symbols={"hipOther": ("hip_4.2",)}),
    ),
    ("symbol-missing", "of no library", content(native(*USES, TinySymbol("nowhere")))),
    (
        "symbol-missing",
        "weak function of ROCm",
        content(native(*USES, TinySymbol("hipNew", bind="WEAK"))),
    ),
    (
        "symbol-version-missing",
        "version of nothing",
        lambda made: made.change(HIP, symbols={"hipFree": ("hip_6.0",)}),
    ),
    (
        "symbol-version-missing",
        "version of another symbol",
        lambda made: made.change(
            HIP, symbols={"hipFree": ("hip_6.0",), "hipInit": ("hip_4.2",)}
        ),
    ),
    ("needed-unresolved", "removed from ROCm", without_blas),
    (
        "layout-unresolved",
        "folder of no layout",
        lambda made: made.change(BLAS, path=f"lib/rocblas/{BLAS}"),
    ),
    ("layout-unresolved", "RUNPATH without /opt/rocm", short_runpath),
    ("rocm-unknown", "no manifest", unknown_rocm),
    ("rocm-unknown", "no manifest for a published wheel", published(unknown_rocm)),
]
ROWS = [Row(GATE, code, fault, SCENE, edit) for code, fault, edit in _EDITS]
