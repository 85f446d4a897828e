"""Simulated machines on which the load gate starts jax, and the answers that it requires of the loader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import layouts, targets
from core.model import Finding, GfxTarget, RocmVersion
from promotion.gates.common.gate import error
from promotion.gates.common.site import LOADER_SENTENCE, NO_DEVICE
from promotion.gates.load.child_probe import how_it_ended
from promotion.gates.load.machine_child import OTHER_JAXLIB
from wheelkit.elf.writer import Export, shared_library

MACHINE_CHILD = Path(__file__).with_name("machine_child.py")

_NO_SUCH_GPU = "GPU-ffffffffffffffff"
"""Hides real GPUs from HIP; the loader leaves an unknown identifier in ROCR_VISIBLE_DEVICES to the runtime."""
_LIBRARY_FOLDERS = ("lib", "lib64", "lib/rocm_sysdeps/lib")
"""Folders of libraries that the loader searches below ROCM_PATH."""
_SIMDS = 304
_MOST_GPUS = 64
"""GPUs of a machine with eight MI300X, each in eight partitions."""
_LOCATIONS = ("JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH", "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH", "HIP_DEVICE_LIB_PATH")
"""Variables that the loader sets for XLA and HIP if the user has not set them."""
_CPU = "cpu"
_PLATFORM = "ROCM"
"""Name of the platform in XLA."""
_HANDOVER = "register_custom_call_handler"
"""Function of jaxlib.xla_client without which the plugin gets no custom call."""
_FIX_LOADER = "Fix the loader in pjrt/payload and plugin/payload, or the values in build_info.json, and build it again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A simulated machine.

    Attributes:
        about: what the machine has, for findings.
        gpus: processors of its GPUs.
        rocm: folder in ROCM_PATH; None for a machine without ROCm.
        refusal: words in the loader's reason not to use ROCm; None if it must start ROCm.
        unusable: processors that the loader must warn of, and no others.
        platforms: JAX_PLATFORMS of the user, whose default devices are requested then instead of those of rocm.
    """

    about: str
    gpus: tuple[str, ...]
    rocm: Path | None
    refusal: tuple[str, ...] | None = None
    unusable: tuple[str, ...] = ()
    platforms: str = ""


def machines(names: Sequence[str], rocm_version: str, rocm: Path, folder: Path) -> Iterator[Machine]:
    """Yield the machines for a set.

    Args:
        names: gfx targets of the set.
        rocm_version: version of ROCm that the set is for.
        rocm: a ROCm with all libraries that the set needs.
        folder: folder for ROCms that are too old.
    """
    own, accepted = targets.processors_of(map(GfxTarget.parse, names)), targets.lists()["compiler-supported"]
    usable = tuple(name for name in own if name in accepted)
    foreign = next(name for name in (*accepted, *targets.load_table().targets) if name not in own)
    one = (usable or own)[:1]
    hip = layouts.hip_soname(RocmVersion(text=rocm_version))
    yield Machine(about=f"one {one[0]}", gpus=one, rocm=rocm, refusal=None if usable else one)
    if usable:
        kinds, many = (*usable, foreign), (*one * _MOST_GPUS, *usable[1:], foreign)
        yield Machine(about=f"several GPUs ({', '.join(kinds)})", gpus=many, rocm=rocm, unusable=(foreign,))
    yield Machine(about=f"a GPU that the set is not for ({foreign})", gpus=(foreign,), rocm=rocm, refusal=(foreign,))
    yield Machine(about="no GPU", gpus=(), rocm=rocm, refusal=())
    if usable:
        older, lacking = write_older_major(folder / "older", hip), write_older_minor(folder / "lacking", hip, rocm)
        yield Machine(about="no ROCm", gpus=one, rocm=None, refusal=(hip,))
        yield Machine(about=f"an older ROCm ({older.name})", gpus=one, rocm=folder / "older", refusal=(str(older),))
        yield Machine(about=f"a {hip} without the set's symbols", gpus=one, rocm=lacking, refusal=())
    # The gate `install` asks for rocm.
    yield Machine(about="no GPU and JAX_PLATFORMS=gpu", gpus=(), rocm=rocm, refusal=(), platforms="gpu")
    yield Machine(about=f"no GPU and JAX_PLATFORMS={_CPU}", gpus=(), rocm=rocm, platforms=_CPU)


def write_older_major(folder: Path, hip: str) -> Path:
    """Write the HIP library of the previous major, and return its path; the loader only looks at its name."""
    stem, _, major = hip.rpartition(".")
    path = folder / "lib" / f"{stem}.{int(major) - 1}"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def write_older_minor(folder: Path, hip: str, rocm: Path) -> Path:
    """Write links to the libraries of a ROCm, and a HIP without its symbols, and return the folder."""
    for place in _LIBRARY_FOLDERS:
        (folder / place).mkdir(parents=True, exist_ok=True)
        for library in (rocm / place).glob("*.so*"):
            if library.name != hip:
                (folder / place / library.name).symlink_to(library.resolve())
    (folder / "lib" / hip).write_bytes(shared_library(hip, [Export(name="hipOlder", code=b"\xc3")]))
    return folder


def as_json(rows: Iterable[Machine], rocm_version: str) -> str:
    """Return machines as the argument of `machine_child.py`."""
    hidden = sorted(layouts.allowed_sonames(RocmVersion(text=rocm_version)))
    return json.dumps(
        {
            row.about: {
                "gpus": [_properties(name, number) for number, name in enumerate(row.gpus, 1)],
                "env": {
                    "ROCM_PATH": str(row.rocm or ""),
                    "ROCR_VISIBLE_DEVICES": _NO_SUCH_GPU,
                    "JAX_PLATFORMS": row.platforms,
                },
                "hidden": hidden,
            }
            for row in rows
        }
    )


def _properties(name: str, number: int) -> dict[str, int]:
    """Return the properties of a GPU in KFD's topology (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c)."""
    version = int(name[3:-2]) * 10000 + int(name[-2], 16) * 100 + int(name[-1], 16)
    return {"simd_count": _SIMDS, "gfx_target_version": version, "unique_id": number}


def check_machines(wheel: str, rows: Iterable[Machine], answers: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each machine on which jax does not answer as the machine requires.

    Args:
        wheel: name of the tested wheel and library.
    """
    for row in rows:
        answer = answers.get(row.about, {"error": "there was no answer"})
        if problem := _problem(row, answer):
            text = f"{wheel}: with {row.about}, {problem}."
            yield error("loader-wrong", text, _FIX_LOADER, member=wheel.partition(": ")[2])


def _problem(row: Machine, answer: Mapping[str, Any]) -> str:
    """Return the difference between an answer and the required one; empty if there is none."""
    if "died" in answer:
        return f"Python ended with {how_it_ended(answer['died'])}"
    allowed = {f"changes the environment variable {name}" for name in _LOCATIONS}
    if effects := [text for text in answer.get("effects", ()) if text not in allowed]:
        return f"the start of jax {'; '.join(effects)}"
    if (skew := answer.get("skew")) is not None and f"jaxlib {OTHER_JAXLIB}" not in skew:
        return f"the loader should refuse jaxlib {OTHER_JAXLIB}, but says: {_short(skew) or 'nothing'}"
    said = str(answer.get("error", f"it found {answer.get('devices')} devices"))
    logged = "".join(f"; {text}" for text in answer.get("log", ()))
    sentence = LOADER_SENTENCE.search(said)
    warned = " ".join(answer.get("warnings", ()))
    if row.platforms and warned:
        return f"the loader should not warn, but logged: {_short(warned)}"
    if row.platforms == _CPU:
        return "" if answer.get("devices") else f"jax should have devices, but said: {_short(said + logged)}"
    if row.refusal is not None:
        if sentence is None:
            return f"jax should name the reason why it cannot use ROCm, but said: {_short(said + logged)}"
        lacking = [word for word in row.refusal if word not in sentence[1]]
        return f"the reason should name {', '.join(lacking)}, but is: {_short(sentence[1])}" if lacking else ""
    if not answer.get("devices") and (sentence or not NO_DEVICE.search(said)):
        return f"jax should start ROCm, but said: {_short(said + logged)}"
    if (platform := answer.get("preferred")) and platform != "rocm":
        return f"jax should prefer ROCm, but prefers {platform}"
    if problem := _registration_problem(answer.get("platforms")):
        return problem
    if others := {name: value for name, value in answer.get("options", {}).items() if name != "platform_name"}:
        given = ", ".join(f"{name} {value}" for name, value in others.items())
        return f"the loader should leave XLA's options to the user, but passes {given}"
    named = set(re.findall(r"\bgfx[0-9a-f]+", warned))
    if named != set(row.unusable) or (warned and not row.unusable):
        wanted = f"warn of {', '.join(row.unusable)} only" if row.unusable else "not warn"
        return f"the loader should {wanted}, but logged: {_short(warned) or 'nothing'}"
    return ""


def _registration_problem(platforms: Mapping[str, Sequence[str]] | None) -> str:
    """Return the problem of handlers that XLA does not find; empty if there is none.

    Args:
        platforms: function that registers -> platforms that the loader gave; None if it was not recorded.
    """
    if platforms is None:
        return ""
    if others := {text for given in platforms.values() for text in given} - {_PLATFORM}:
        return (
            f"the loader should register handlers for {_PLATFORM}, but registers some for {', '.join(sorted(others))}"
        )
    return "" if _HANDOVER in platforms else "the loader does not register the plugin's custom calls"


def _short(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")[:500]
