"""Simulated machines on which jax starts, and the answers required of the loader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import rocm_layouts as layouts
from core import targets
from core.model import Finding, GfxTarget, RocmVersion
from promotion.gates.common.gate_context import error
from promotion.gates.common.gate_site import LOADER_SENTENCE, NO_DEVICE
from promotion.gates.load.child_probe import how_it_ended, shortened
from promotion.gates.load.machine_child import OTHER_JAXLIB
from wheelkit.elf.writer import Export, shared_library

MACHINE_CHILD = Path(__file__).with_name("machine_child.py")

_NO_SUCH_GPU = "GPU-ffffffffffffffff"
"""Hides real GPUs from HIP.

The loader leaves an unknown identifier in ROCR_VISIBLE_DEVICES to the runtime.
"""
_SIMDS = 304
_MOST_GPUS = 64
"""GPUs of a machine with eight MI300X, each in eight partitions."""
_BITCODE = "lib/llvm/amdgcn/bitcode/ocml.bc"
_LINKER = "lib/llvm/bin/ld.lld"
_LOCATIONS = {
    "JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH": _BITCODE,
    "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH": _LINKER,
    "HIP_DEVICE_LIB_PATH": _BITCODE,
}
"""Variable that the loader sets for XLA and HIP -> file in the folder that it names.

Without them, XLA does not
find a ROCm elsewhere than in /opt/rocm (openxla/xla#8679, ROCm/xla#142); wheels have
missed one (ROCm/TheRock#4269)."""
_CORE_PACKAGE = "_rocm_sdk_core"
"""Python package of ROCm; wheels have looked for another one (ROCm/TheRock#8163)."""
_CPU = "cpu"
_FIX_LOADER = (
    "Fix the loader in pjrt/payload and plugin/payload, or the values in"
    " build_info.json, and build it again."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A simulated machine.

    Attributes:
        about: what the machine has, for findings.
        gpus: processors of its GPUs.
        rocm: folder in ROCM_PATH; None for a machine without ROCm there.
        packages: folder with ROCm's Python packages; None for a machine without them.
        refusal: words in the loader's reason not to use ROCm; None if it must start
            ROCm.
        unusable: processors that the loader must warn of, and no others.
        platforms: JAX_PLATFORMS of the user, whose default devices are requested then
            instead of those of rocm.
    """

    about: str
    gpus: tuple[str, ...]
    rocm: Path | None
    packages: Path | None = None
    refusal: tuple[str, ...] | None = None
    unusable: tuple[str, ...] = ()
    platforms: str = ""


def machines(
    names: Sequence[str], rocm_version: str, rocm: Path, folder: Path
) -> Iterator[Machine]:
    """Yield the machines for a set.

    Args:
        names: gfx targets of the set.
        rocm_version: version of ROCm that the set is for.
        rocm: a ROCm with all libraries that the set needs.
        folder: folder for other ROCms.
    """
    own = targets.processors_of(map(GfxTarget.parse, names))
    accepted = targets.lists()["compiler-supported"]
    usable = tuple(name for name in own if name in accepted)
    foreign = next(
        name for name in (*accepted, *targets.load_table().targets) if name not in own
    )
    one = (usable or own)[:1]
    hip = layouts.hip_soname(RocmVersion(text=rocm_version))
    prefix = write_prefix(folder / "prefix", rocm)
    yield Machine(
        about=f"one {one[0]}", gpus=one, rocm=prefix, refusal=None if usable else one
    )
    if usable:
        kinds = (*usable, foreign)
        many = (*one * _MOST_GPUS, *usable[1:], foreign)
        yield Machine(
            about=f"several GPUs ({', '.join(kinds)})",
            gpus=many,
            rocm=rocm,
            unusable=(foreign,),
        )
    yield Machine(
        about=f"a GPU that the set is not for ({foreign})",
        gpus=(foreign,),
        rocm=rocm,
        refusal=(foreign,),
    )
    yield Machine(about="no GPU", gpus=(), rocm=rocm, refusal=())
    if usable:
        older = write_older_major(folder / "older", hip)
        lacking = write_older_minor(folder / "lacking", hip, rocm)
        packages = folder / "packages"
        write_prefix(packages / _CORE_PACKAGE, rocm)
        yield Machine(
            about="a ROCm of Python packages", gpus=one, rocm=None, packages=packages
        )
        yield Machine(about="no ROCm", gpus=one, rocm=None, refusal=(hip,))
        yield Machine(
            about=f"an older ROCm ({older.name})",
            gpus=one,
            rocm=folder / "older",
            refusal=(str(older),),
        )
        yield Machine(
            about=f"a {hip} without the set's symbols",
            gpus=one,
            rocm=lacking,
            refusal=(),
        )
    # The gate `install` asks for rocm.
    yield Machine(
        about="no GPU and JAX_PLATFORMS=gpu",
        gpus=(),
        rocm=rocm,
        refusal=(),
        platforms="gpu",
    )
    yield Machine(
        about=f"no GPU and JAX_PLATFORMS={_CPU}", gpus=(), rocm=rocm, platforms=_CPU
    )


def write_prefix(folder: Path, rocm: Path) -> Path:
    """Write links to a ROCm, with stubs if needed, and return the folder."""
    (folder / "lib").mkdir(parents=True)
    for place in (rocm / "lib").iterdir():
        (folder / "lib" / place.name).symlink_to(place.resolve())
    for place in rocm.iterdir():
        if place.name not in ("lib", "lib64"):
            (folder / place.name).symlink_to(place.resolve())
    if not (rocm / "lib/llvm").exists():
        for name in (_BITCODE, _LINKER):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).touch()
    return folder


def write_older_major(folder: Path, hip: str) -> Path:
    """Write the HIP library of the previous major, and return its path.

    The loader only looks at its name.
    """
    stem, _, major = hip.rpartition(".")
    path = folder / "lib" / f"{stem}.{int(major) - 1}"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def write_older_minor(folder: Path, hip: str, rocm: Path) -> Path:
    """Write links to a ROCm's libraries and a HIP without symbols, return the folder."""
    write_prefix(folder, rocm)
    (folder / "lib" / hip).unlink(missing_ok=True)
    (folder / "lib" / hip).write_bytes(
        shared_library(hip, [Export(name="hipOlder", code=b"\xc3")])
    )
    return folder


def as_json(rows: Iterable[Machine], rocm_version: str) -> str:
    """Return machines as the argument of `machine_child.py`."""
    hidden = sorted(layouts.allowed_sonames(RocmVersion(text=rocm_version)))
    values = {}
    for row in rows:
        numbered = enumerate(row.gpus, 1)
        values[row.about] = {
            "gpus": [_properties(name, number) for number, name in numbered],
            "env": {
                "ROCM_PATH": str(row.rocm or ""),
                "ROCR_VISIBLE_DEVICES": _NO_SUCH_GPU,
                "JAX_PLATFORMS": row.platforms,
            },
            "unset": sorted(_LOCATIONS),
            "packages": str(row.packages or ""),
            "hidden": hidden,
        }
    return json.dumps(values)


def _properties(name: str, number: int) -> dict[str, int]:
    """Return the properties of a GPU in the topology of the KFD."""
    version = int(name[3:-2]) * 10000 + int(name[-2], 16) * 100 + int(name[-1], 16)
    return {"simd_count": _SIMDS, "gfx_target_version": version, "unique_id": number}


def check_machines(
    wheel: str, rows: Iterable[Machine], answers: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield a finding for each machine on which jax does not answer as the machine requires.

    Args:
        wheel: name of the tested wheel and library.
    """
    for row in rows:
        answer = answers.get(row.about, {"error": "there was no answer"})
        if problem := _problem(row, answer):
            text = f"{wheel}: with {row.about}, {problem}."
            yield error(
                "loader-wrong", text, _FIX_LOADER, member=wheel.partition(": ")[2]
            )


def _problem(row: Machine, answer: Mapping[str, Any]) -> str:
    """Return the difference between an answer and the required one; empty if there is none."""
    if "died" in answer:
        return f"Python ended with {how_it_ended(answer['died'])}"
    skew = answer.get("skew")
    if skew is not None and f"jaxlib {OTHER_JAXLIB}" not in skew:
        reasons = shortened(skew) or "nothing"
        return f"the loader should refuse jaxlib {OTHER_JAXLIB}, but says: {reasons}"
    warned = " ".join(answer.get("warnings", ()))
    if row.platforms and warned:
        return f"the loader should not warn, but logged: {shortened(warned)}"
    result = str(answer.get("error", f"it found {answer.get('devices')} devices"))
    details = shortened("; ".join([result, *answer.get("log", ())]))
    if row.platforms == _CPU:
        if answer.get("devices"):
            return ""
        return f"jax should have devices, but said: {details}"
    sentence = LOADER_SENTENCE.search(result)
    if row.refusal is not None:
        return _refusal_problem(row.refusal, sentence[1] if sentence else "", details)
    started = answer.get("devices") or NO_DEVICE.search(result)
    if sentence or not started:
        return f"jax should start ROCm, but said: {details}"
    platform = answer.get("preferred")
    if platform and platform != "rocm":
        return f"jax should prefer ROCm, but prefers {platform}"
    return _location_problem(row, answer.get("variables", {})) or _warning_problem(
        row, warned
    )


def _refusal_problem(words: Sequence[str], sentence: str, details: str) -> str:
    """Return the problem of a reason that lacks the required words."""
    if not sentence:
        return f"jax should name the reason why it cannot use ROCm, but said: {details}"
    lacking = [word for word in words if word not in sentence]
    if not lacking:
        return ""
    return f"the reason should name {', '.join(lacking)}, but is: {shortened(sentence)}"


def _warning_problem(row: Machine, warned: str) -> str:
    """Return the problem of warnings that do not name exactly the unusable GPUs."""
    named = set(re.findall(r"\bgfx[0-9a-f]+", warned))
    if named == set(row.unusable) and (row.unusable or not warned):
        return ""
    wanted = "not warn"
    if row.unusable:
        wanted = f"warn of {', '.join(row.unusable)} only"
    logged = shortened(warned) or "nothing"
    return f"the loader should {wanted}, but logged: {logged}"


def _location_problem(row: Machine, variables: Mapping[str, str]) -> str:
    """Return the problem of a variable that does not name the folder in ROCm.

    Empty if there is none.
    """
    prefix = row.packages / _CORE_PACKAGE if row.packages else row.rocm
    for name, file in _LOCATIONS.items():
        if prefix is None or not (prefix / file).exists():
            continue
        expected = str((prefix / file).parent)
        if variables.get(name) != expected:
            return (
                f"the loader should set {name} to {expected}, but it is"
                f" {variables.get(name, 'unset')}"
            )
    return ""
