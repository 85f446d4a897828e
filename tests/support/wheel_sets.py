"""Small generated wheel sets, their folders, and their evidence."""

from __future__ import annotations

import email.parser
import functools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from core.digests import sha256_of
from core.model import Evidence, MemberInfo, Outcome, Wheel, WheelSet
from core.wheels_json import dump_wheel_set
from promotion.index.core_metadata import core_metadata
from promotion.index.ledger_wheel import IndexedWheel, LedgerWheel
from promotion.index.pages import pages
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.storage.object_keys import METADATA_SUFFIX
from tests.support.made_wheel import (
    GLIBC,
    MadeWheel,
    clean_pjrt,
    clean_plugin,
    fat_binary,
    hip_library,
)
from tests.support.tiny_elf import TinySymbol

TARGETS = ("gfx942", "gfx950")
PYTHONS = ("3.11", "3.12")
VERSION = "0.10.2+rocm7.2.0"
PJRT_LIBRARY = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
PLUGIN_LIBRARIES = tuple(
    f"jax_rocm7_plugin/{name}.so" for name in ("_linalg", "_prng", "_solver")
)


LOADER = """
import os
import sys
from pathlib import Path

TEXT = "jax-rocm7-pjrt {version} cannot use ROCm: no AMD GPU was found. Load the driver."


def initialize():
    if os.environ.get("JAX_PLATFORMS") == "rocm":
        raise RuntimeError(TEXT)
    sys.stderr.write(TEXT + " JAX goes on without it; JAX_PLATFORMS=cpu silences this message.\\n")


def reasons(*, need_gpu):
    found = [Path(entry, "_rocm_sdk_core/lib").is_dir() for entry in sys.path]
    return () if any(found) else ("ROCm is missing",)
"""
"""Fake module with the real one's message on machines without a GPU."""
JAX = """
import importlib.metadata
from types import SimpleNamespace


def devices():
    for entry_point in importlib.metadata.entry_points(group="jax_plugins"):
        entry_point.load().initialize()
    return [SimpleNamespace(client=SimpleNamespace(platform="cpu"))]
"""
"""The part of jax that the install gate uses."""


@dataclass(frozen=True, kw_only=True)
class SetWheel:
    """A valid small wheel: its bytes, and its entry for wheels.json."""

    data: bytes
    wheel: Wheel


@functools.cache
def _module(name: str, targets: Sequence[str]) -> bytes:
    return hip_library(
        GLIBC, TinySymbol(f"PyInit_{name}", defined=True), fatbins=[fat_binary(targets)]
    )


def set_wheel(
    made: MadeWheel, folder: Path, targets: Mapping[str, Sequence[str]] | None = None
) -> SetWheel:
    """Turn a made wheel into a wheel of a set.

    Args:
        made: wheel that is written to `folder`.
        folder: an existing folder.
        targets: library -> gfx targets that wheels.json promises for it.
    """
    path = made.write(folder)
    data = path.read_bytes()
    sha256 = sha256_of(data)
    fields = [line.partition(": ")[::2] for line in made.metadata]
    members = tuple(
        MemberInfo(
            path=member,
            size=len(made.files[member]),
            sha256=sha256_of(made.files[member]),
            targets=tuple(held),
            needed=("libc.so.6",),
            symbol_versions={"GLIBC": "2.28"},
        )
        for member, held in (targets or {}).items()
    )
    wheel = Wheel(
        filename=path.name,
        name=canonicalize_name(made.project),
        version=made.version,
        tags=tuple(sorted(map(str, parse_wheel_filename(path.name)[3]))),
        size=len(data),
        sha256=sha256,
        requires_python=dict(fields).get("Requires-Python", ""),
        requires_dist=tuple(value for name, value in fields if name == "Requires-Dist"),
        members=members,
        source_sha256=sha256_of(b"source" + data),
        source_size=len(data),
    )
    return SetWheel(data=data, wheel=wheel)


def _versioned(made: MadeWheel, version: str) -> MadeWheel:
    made.version = version
    made.replace("Version", version)
    for path in made.files:
        if path.endswith("/version.py"):
            made.files[path] = f"_release_version: str = {version!r}\n".encode()
    return made


def pjrt(
    version: str = VERSION, *, targets: Sequence[str] = TARGETS, loader: str = LOADER
) -> MadeWheel:
    """Return a clean pjrt wheel of the set; `loader` is its Python code."""
    made = _versioned(clean_pjrt(), version)
    made.files = {
        path: data for path, data in made.files.items() if not path.endswith(".so")
    }
    made.files["jax_plugins/xla_rocm7/__init__.py"] = loader.format(
        version=version
    ).encode()
    made.files[PJRT_LIBRARY] = hip_library(fatbins=[fat_binary(targets)])
    made.replace("Requires-Dist", "jaxlib<=0.10.2,>=0.10.2")
    return made


def plugin(
    version: str = VERSION, *, python: str = "3.12", targets: Sequence[str] = TARGETS
) -> MadeWheel:
    """Return a clean plugin wheel of the set."""
    made = _versioned(clean_plugin(), version)
    made.python = made.abi = f"cp{python.replace('.', '')}"
    made.files |= {
        path: _module(Path(path).stem, tuple(targets)) for path in PLUGIN_LIBRARIES
    }
    made.replace(
        "Requires-Dist", "jaxlib<=0.10.2,>=0.10.2", f"jax-rocm7-pjrt=={version}"
    )
    made.replace("Tag", f"{made.python}-{made.abi}-{made.platform}")
    return made


def plain(
    project: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
) -> MadeWheel:
    """Return a wheel of one module without libraries, such as a jaxlib or jax for the resolver."""
    made = MadeWheel(project=project.replace("-", "_"), version=version)
    made.python, made.abi, made.platform = tag.split("-")
    made.files = {
        f"{made.project}/__init__.py": f"__version__ = {version!r}\n".encode()
    }
    made.info = {"licenses/LICENSE.txt": b"Apache License\n"}
    made.metadata = [
        "Metadata-Version: 2.4",
        f"Name: {project}",
        f"Version: {version}",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE.txt",
        "Requires-Python: >=3.11",
        *(f"Requires-Dist: {text}" for text in requires),
    ]
    made.wheel = [
        "Wheel-Version: 1.0",
        "Generator: made up",
        "Root-Is-Purelib: true",
        f"Tag: {tag}",
    ]
    return made


def ordinary_index(folder: Path) -> Path:
    """Create a folder with the pins and dependencies of the set for pip's `--find-links`."""
    folder.mkdir(parents=True, exist_ok=True)
    jax = plain("jax", "0.10.2", requires=["jaxlib==0.10.2", "small-dependency"])
    jax.files["jax/__init__.py"] = JAX.encode()
    for made in (jax, plain("small-dependency", "1.0")):
        made.write(folder)
    return folder


def lock_text(index: Path) -> str:
    """Return a pylock.toml that lists jax and its dependencies."""
    text = 'lock-version = "1.0"\ncreated-by = "test"\n'
    for path in sorted(index.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        digest = sha256_of(path)
        text += (
            f'[[packages]]\nname = "{name.replace("_", "-")}"\nversion = "{version}"\n'
        )
        text += (
            f'[[packages.wheels]]\nname = "{path.name}"\nurl ='
            f' "{path.as_uri()}"\nhashes = {{ sha256 = "{digest}" }}\n'
        )
    return text


def write_index(folder: Path) -> None:
    """Write the pages of a package index for the wheels in the folder `wheels` of a folder."""
    offers = []
    for path in sorted(folder.glob("wheels/*.whl")):
        with path.open("rb") as file:
            metadata = core_metadata(file, path.name)
        fields = email.parser.BytesParser().parsebytes(metadata, headersonly=True)
        project, version, _, _ = parse_wheel_filename(path.name)
        path.with_name(path.name + METADATA_SUFFIX).write_bytes(metadata)
        wheel = LedgerWheel(
            project=project,
            filename=path.name,
            version=str(version),
            size=path.stat().st_size,
            sha256=sha256_of(path),
            metadata_sha256=sha256_of(metadata),
            requires_python=fields.get("Requires-Python", ""),
            requires_dist=tuple(fields.get_all("Requires-Dist", ())),
        )
        href = f"../../wheels/{path.name.replace('+', '%2B')}"
        offers.append(IndexedWheel(wheel=wheel, href=href))
    for page in pages("simple/", offers):
        path = folder / page.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page.data)


def of_major(made: MadeWheel, major: int) -> MadeWheel:
    """Return the same wheel for another ROCm major version, with its names adapted."""

    def renamed(text: str) -> str:
        return text.replace("rocm7", f"rocm{major}").replace(
            "ROCm:7.", f"ROCm:{major}."
        )

    made.project = renamed(made.project)
    for held in (made.files, made.info):
        texts = {
            path: data if path.endswith(".so") else renamed(data.decode()).encode()
            for path, data in held.items()
        }
        held.clear()
        held.update({renamed(path): data for path, data in texts.items()})
    made.metadata = [renamed(line) for line in made.metadata]
    return made


def make_wheels(
    folder: Path,
    *,
    version: str = VERSION,
    pythons: Sequence[str] = PYTHONS,
    major: int = 7,
    extras: str = "",
) -> list[SetWheel]:
    """Return the wheels of a realistic set: pjrt, and plugin and jaxlib for each Python.

    Args:
        folder: folder for the archives.
        major: ROCm major version, which must match `version`.
        extras: version of the ROCm that extras of the wheels install; empty for none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheels = _made_wheels(version, tuple(pythons), major, extras)
    for wheel in wheels:
        (folder / wheel.wheel.filename).write_bytes(wheel.data)
    return [*wheels]


def _with_extras(made: MadeWheel, rocm: str) -> MadeWheel:
    """Add the extras of `pjrt/jax_wheels.py` for a ROCm with wheels."""
    for target in TARGETS if rocm else ():
        made.metadata.append(f"Provides-Extra: device-{target}")
        for part in ("core", "libraries", f"device-{target}"):
            need = f'rocm-sdk-{part}=={rocm}; extra == "device-{target}"'
            made.metadata.append(f"Requires-Dist: {need}")
    return made


@functools.cache
def _made_wheels(
    version: str, pythons: Sequence[str], major: int, extras: str
) -> tuple[SetWheel, ...]:
    library_of_pjrt = PJRT_LIBRARY.replace("rocm7", f"rocm{major}")
    libraries = [path.replace("rocm7", f"rocm{major}") for path in PLUGIN_LIBRARIES]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = _with_extras(of_major(pjrt(version), major), extras)
        wheels = [set_wheel(made, folder, {library_of_pjrt: TARGETS})]
        for python in pythons:
            tag = f"cp{python.replace('.', '')}"
            made = of_major(plugin(version, python=python), major)
            made = _with_extras(made, extras)
            wheels.append(set_wheel(made, folder, dict.fromkeys(libraries, TARGETS)))
            wheels.append(
                set_wheel(
                    plain("jaxlib", "0.10.2", tag=f"{tag}-{tag}-manylinux_2_28_x86_64"),
                    folder,
                )
            )
    return tuple(wheels)


def make_set(
    wheels: Sequence[SetWheel], more: Mapping[str, bytes] | None = None, **changes: Any
) -> WheelSet:
    """Return the set of some wheels, by default for their Pythons.

    Args:
        more: name -> content of further files of the set.
        changes: fields of the set.
    """
    found = set()
    for wheel in wheels:
        for tag in wheel.wheel.filename.split("-"):
            if "cp3" in tag:
                found.add(tag.removeprefix("cp3"))
    made = WheelSet(
        index="multi-arch",
        targets=TARGETS,
        rocm_version="7.2.0",
        jax_version="0.10.2",
        python_versions=tuple(f"3.{minor}" for minor in sorted(found, key=int))
        or PYTHONS,
        request={"payload": "published"},
        inputs=(),
        tools={"tests": "1"},
        pins={"jax": "0.10.2"},
        wheels=tuple(wheel.wheel for wheel in wheels),
    )
    wheel_set = replace(made, **changes)
    if "files" in changes:
        sizes = dict.fromkeys(wheel_set.files, 1)
        return replace(wheel_set, file_sizes={**sizes, **wheel_set.file_sizes})
    beside = _beside(wheel_set) | dict(more or {})
    digests = {name: sha256_of(data) for name, data in beside.items()}
    return replace(
        wheel_set,
        files=digests,
        file_sizes={name: len(data) for name, data in beside.items()},
    )


def _beside(wheel_set: WheelSet) -> dict[str, bytes]:
    pins = {wheel.name: wheel.version for wheel in wheel_set.wheels} | dict(
        wheel_set.pins
    )
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    return {"constraints.txt": lines.encode(), "debug/library.debug": b"symbols"}


def write_set(
    folder: Path,
    wheels: Sequence[SetWheel],
    wheel_set: WheelSet,
    more: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a set's folder as `dist_wheels` does.

    Wheels, constraints.txt, a debug file, SHA256SUMS, wheels.json.

    Args:
        more: name -> content of further files of the set.
    """
    files = (
        {wheel.wheel.filename: wheel.data for wheel in wheels}
        | _beside(wheel_set)
        | dict(more or {})
    )
    sums = (f"{sha256_of(data)}  {name}\n" for name, data in sorted(files.items()))
    files["SHA256SUMS"] = "".join(sums).encode()
    files["wheels.json"] = dump_wheel_set(wheel_set).encode()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def passing_evidence(
    wheel_set: WheelSet, policy: Policy | None = None
) -> list[Evidence]:
    """Return evidence that satisfies a policy once it is signed.

    By default the policy of the local channel.
    """
    policy = policy or load_policy("multi-arch")
    result = []
    for gate, rule in policy.gates.items():
        counts = dict.fromkeys(("collected", "run", "passed"), rule.least(wheel_set))
        counts |= dict.fromkeys(("failed", "known", "skipped"), 0)
        for target in rule.required_targets(wheel_set, policy.required_tier):
            settings = {"version": str(rule.version), **rule.of(target).settings}
            result.append(
                Evidence(
                    set_digest=wheel_set.digest,
                    gate=gate,
                    target=target,
                    tier=rule.tier,
                    outcome=Outcome.PASSED,
                    started="2026-01-02T03:04:05Z",
                    ended="2026-01-02T03:04:06Z",
                    machine="tests",
                    settings=settings,
                    counts=counts,
                )
            )
    return result
