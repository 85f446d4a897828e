"""The ABI gate on small staged sets: a good set passes, and the finding of each fault names its library."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.layouts import runpath
from core.model import Evidence, GfxTarget, Outcome, Severity
from promotion.gates.abi.gate import make_gate
from promotion.gates.common.runs import run_gates
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.gating import stage_wheels
from tests.support.made_wheel import GLIBC, MadeWheel, library
from tests.support.silent import NoProcesses, Silent
from tests.support.tiny_elf import TinySymbol
from tests.support.wheel_sets import PJRT_LIBRARY, TARGETS, make_set, make_wheels, pjrt, plugin, set_wheel, write_set
from wheelkit.rocm_manifest import ROCM_MANIFEST, RocmLibrary, RocmManifest, dump_manifest

PYTHON = ("3.12",)
HIP, BLAS = "libamdhip64.so.7", "librocblas.so.5"
USES = (TinySymbol("hipFree", HIP, "hip_4.2"), TinySymbol("rocblas_sgemm"), TinySymbol("optional", bind="WEAK"))
RUNPATH = runpath("pjrt", [GfxTarget.parse(target) for target in TARGETS])
BUILD_INFO = "jax_plugins/xla_rocm7/build_info.json"
CANONICAL = "_ZNSt10filesystem9canonicalERKNS_7__cxx114pathE"


def rocm(soname: str, symbols: Mapping[str, tuple[str, ...]], *needed: str) -> RocmLibrary:
    return RocmLibrary(soname=soname, path=f"lib/{soname}", symbols=symbols, needed=needed, runpath=("$ORIGIN",))


MANIFEST = RocmManifest(
    rocm_version="7.2.0",
    libraries={
        HIP: rocm(HIP, {"hipFree": ("hip_4.2",)}),
        BLAS: rocm(BLAS, {"rocblas_sgemm": ("",)}, HIP),
    },
)


def native(*symbols: TinySymbol, needed: Sequence[str] = (HIP, BLAS, "libc.so.6"), **more: Any) -> bytes:
    """Return a small replacement of XLA's library: it uses ROCm and has our RUNPATH."""
    return library(GLIBC, *(symbols or USES), needed=needed, **{"runpath": RUNPATH, **more})


def our_pjrt(content: bytes | None = None, *, preload: Sequence[str] = (HIP, BLAS)) -> MadeWheel:
    """Return a pjrt wheel of our own: a library, and the list of libraries that its loader loads first."""
    made = pjrt()
    made.files[PJRT_LIBRARY] = native() if content is None else content
    info = {"members": [{"path": PJRT_LIBRARY, "needed": [*preload, "libc.so.6"]}], "rocm_sonames": [HIP, BLAS]}
    made.files[BUILD_INFO] = json.dumps(info).encode()
    return made


def judge(
    folder: Path,
    made: MadeWheel,
    manifest: RocmManifest | None = MANIFEST,
    *,
    carried: RocmManifest | None = None,
    published: bool = False,
    rocm_version: str = "7.2.0",
) -> Evidence:
    """Stage a set with one library and run the gate on it; `carried` is the manifest in the set."""
    folder.mkdir(exist_ok=True)
    wheel = set_wheel(made, folder, {path: TARGETS for path in made.files if path.endswith(".so")})
    if published:
        wheel = dataclasses.replace(wheel, wheel=dataclasses.replace(wheel.wheel, source_sha256=wheel.wheel.sha256))
    wheel_set = make_set([wheel], python_versions=PYTHON, rocm_version=rocm_version)
    written = write_set(folder / "set", [wheel], wheel_set)
    if carried is not None:
        data = dump_manifest(carried)
        digest = hashlib.sha256(data).hexdigest()
        wheel_set = dataclasses.replace(wheel_set, files={**wheel_set.files, ROCM_MANIFEST: digest}, file_sizes={})
        written = write_set(folder / "set", [wheel], wheel_set)
        (written / ROCM_MANIFEST).write_bytes(data)
        with (written / "SHA256SUMS").open("a") as file:
            file.write(f"{digest}  {ROCM_MANIFEST}\n")
    bucket = DirBucket(folder / "bucket")
    (evidence,) = run_gates(bucket, stage(bucket, written), [make_gate(manifest)], NoProcesses(), Silent())
    return evidence


def errors(evidence: Evidence) -> dict[str, str]:
    """Return the message of each error by code, after checking that each error has a remedy."""
    found = [f for f in evidence.findings if f.severity is Severity.ERROR]
    assert all(f.remedy for f in found)
    return {f.code: f.message for f in found}


def warnings(evidence: Evidence) -> dict[str, str]:
    return {f.code: f.message for f in evidence.findings if f.severity is Severity.WARNING}


def checks(evidence: Evidence) -> dict[str, Mapping[str, Any]]:
    return {check["name"]: check for check in evidence.details["checks"]}


def without(manifest: RocmManifest, soname: str, **changes: Any) -> RocmManifest:
    """Return the same ROCm with one library changed."""
    changed = dataclasses.replace(manifest.libraries[soname], **changes)
    return dataclasses.replace(manifest, libraries={**manifest.libraries, soname: changed})


# A set without problems


def test_manifest_of_set_is_used(tmp_path: Path) -> None:
    assert judge(tmp_path / "good", our_pjrt(), None, carried=MANIFEST).outcome is Outcome.PASSED
    broken = without(MANIFEST, BLAS, symbols={})
    assert "rocblas_sgemm" in errors(judge(tmp_path / "broken", our_pjrt(), None, carried=broken))["symbol-missing"]


def test_given_manifest_overrides_manifest_of_set(tmp_path: Path) -> None:
    broken = without(MANIFEST, BLAS, symbols={})
    assert judge(tmp_path, our_pjrt(), MANIFEST, carried=broken).outcome is Outcome.PASSED


def test_settings_identify_manifest() -> None:
    told = [make_gate(manifest).settings for manifest in (None, MANIFEST, without(MANIFEST, BLAS, symbols={}))]
    assert len({settings["manifest"] for settings in told}) == 3
    assert make_gate(MANIFEST).settings == make_gate(MANIFEST).settings


def test_all_wheels_are_checked(tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=("3.11", "3.12"))
    (evidence,) = run_gates(*stage_wheels(tmp_path, wheels), [make_gate(MANIFEST)], NoProcesses(), Silent())
    names = {name for name in checks(evidence) if name.endswith("platform")}
    assert {name.partition(":")[0] for name in names} == {wheel.wheel.filename for wheel in wheels}
    assert sum(name.startswith("layout ") for name in checks(evidence)) == 2 * 6
    assert evidence.outcome is Outcome.PASSED, errors(evidence)


# Without a manifest


def test_adopted_set_without_manifest_of_its_rocm_is_a_warning(tmp_path: Path) -> None:
    made = our_pjrt(native(TinySymbol("nowhere"), needed=(HIP,)))
    evidence = judge(tmp_path, made, None, rocm_version="7.3.0", published=True)
    assert evidence.counts["skipped"] == 1
    assert "`ci_build rocm manifest PATH`" in checks(evidence)["symbols of ROCm 7.3.0"]["why"]
    assert "symbols were not compared" in warnings(evidence)["rocm-unknown"]
    assert errors(evidence) == {}


@pytest.mark.parametrize(
    ("symbol", "adopted"),
    [(symbol, adopted) for symbol in ("hipGetErrorString", "hipGetErrorStrinX") for adopted in (False, True)],
)
def test_set_without_manifest_is_compared_with_shipped_one(tmp_path: Path, symbol: str, adopted: bool) -> None:
    """The symbols that published wheels need are those of the ROCm; wheels of others may need more."""
    made = our_pjrt(native(TinySymbol(symbol), needed=(HIP,)))
    evidence = judge(tmp_path, made, None, rocm_version="7.2.4", published=adopted)
    found = warnings(evidence) if adopted else errors(evidence)
    if symbol == "hipGetErrorString":
        assert errors(evidence) == {}
        assert "rocm-unknown" not in warnings(evidence)
    else:
        assert "hipGetErrorStrinX" in found["symbol-missing"]


# Faults of the ROCm


def test_unresolved_library_of_rocm_is_a_warning(tmp_path: Path) -> None:
    deep = rocm("libamd_comgr.so.3", {})
    changed = without(MANIFEST, HIP, needed=(deep.soname,), runpath=())
    broken = dataclasses.replace(changed, libraries={**changed.libraries, deep.soname: deep})
    evidence = judge(tmp_path, our_pjrt(), broken)
    assert evidence.outcome is Outcome.PASSED
    assert f"{HIP}, which would not find libamd_comgr.so.3" in warnings(evidence)["layout-unresolved"]
    weak = judge(tmp_path / "weak", our_pjrt(), dataclasses.replace(broken, weak=True))
    assert "layout-unresolved" not in warnings(weak), "a weak manifest has no RUNPATHs"


# Faults of the wheel


@pytest.mark.parametrize("text", [b"", b'{"rocm_sonames": 1}'])
def test_foreign_build_info_is_ignored(tmp_path: Path, text: bytes) -> None:
    made = our_pjrt()
    made.files[BUILD_INFO] = text
    failed = {name for name, check in checks(judge(tmp_path, made)).items() if check["outcome"] == "failed"}
    assert failed == {"layout prefix, Python 3.12", "layout tarball, Python 3.12"}


def test_library_of_wheel_may_provide_symbols(tmp_path: Path) -> None:
    made = our_pjrt(
        native(*USES, TinySymbol("own_call"), needed=(HIP, BLAS, "libown.so"), runpath=f"{RUNPATH}:$ORIGIN")
    )
    made.files["jax_plugins/xla_rocm7/libown.so"] = library(TinySymbol("own_call", defined=True), entry=())
    evidence = judge(tmp_path, made)
    assert errors(evidence) == {}
    files = checks(evidence)["layout opt-rocm, Python 3.12"]["files"]
    assert files["libown.so"] == "site-packages/jax_plugins/xla_rocm7/libown.so"


def test_adopted_wheel_has_errors_for_load_failures_only(tmp_path: Path) -> None:
    made = our_pjrt(native(*USES, TinySymbol(CANONICAL), runpath="$ORIGIN/../_solib_x86_64/x"), preload=())
    mild = judge(tmp_path / "mild", made, published=True)
    assert mild.outcome is Outcome.PASSED
    assert set(warnings(mild)) == {"runpath-build-leftover", "unversioned-symbol-too-new", "layout-unresolved"}
    broken = without(MANIFEST, BLAS, symbols={})
    assert set(errors(judge(tmp_path / "hard", made, broken, published=True))) == {"symbol-missing"}
    damaged = our_pjrt(native()[:400])
    assert set(errors(judge(tmp_path / "damaged", damaged, published=True))) == {"elf-unreadable"}


def test_wheel_without_libraries_passes(tmp_path: Path) -> None:
    made = plugin()
    made.files = {path: data for path, data in made.files.items() if not path.endswith(".so")}
    evidence = judge(tmp_path, made)
    assert evidence.outcome is Outcome.PASSED
    assert checks(evidence)[f"{made.filename}: platform"]["libraries"] == 0
