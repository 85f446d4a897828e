"""Simulated machines on which jax starts, and the answers required of the loader."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core import rocm_layouts as layouts
from core import targets
from core.frozen import frozen
from core.model import Finding, GfxTarget, RocmVersion
from promotion.gates.common.gate_context import error
from promotion.gates.common.gate_site import LOADER_SENTENCE, NO_DEVICE
from promotion.gates.load.child_probe import how_it_ended, shortened
from promotion.gates.load.machine_child import OTHER_JAXLIB, POST
from promotion.gates.load.other_major import (
    needed_by_xla,
    other_major,
    write_foreign_wheels,
    write_other_rocm,
    write_other_wheels,
)
from promotion.gates.load.rocm_stand_ins import (
    BITCODE,
    CORE_PACKAGE,
    LINKER,
    libraries_of,
    write_older_major,
    write_older_minor,
    write_packages,
    write_prefix,
)
from wheelkit.findings import some

MACHINE_CHILD = Path(__file__).with_name("machine_child.py")

_NO_SUCH_GPU = "GPU-ffffffffffffffff"
"""Hides real GPUs from HIP.

The loader leaves an unknown identifier in ROCR_VISIBLE_DEVICES to the runtime.
"""
_SIMDS = 304
_MOST_GPUS = 64
"""GPUs of a machine with eight MI300X, each in eight partitions."""
_LOCATIONS = {
    "JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH": BITCODE,
    "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH": LINKER,
    "HIP_DEVICE_LIB_PATH": BITCODE,
}
"""Variable that the loader sets for XLA and HIP -> file in the folder that it names.

Without them, XLA does not
find a ROCm elsewhere than in /opt/rocm (openxla/xla#8679, ROCm/xla#142); wheels have
missed one (ROCm/TheRock#4269)."""
_POST_REFUSED = re.compile(rf"jax-rocm\S+ \S+ needs jaxlib\S* but jaxlib \S+{POST} is")
_SYSTEM = Path("/opt/rocm")
_CPU = "cpu"
_FIX_LOADER = (
    "Fix the loader in pjrt/payload and plugin/payload, or the values in"
    " build_info.json, and build it again."
)


@frozen
class Machine:
    """A simulated machine.

    Attributes:
        about: what the machine has, for findings.
        gpus: processors of its GPUs.
        rocm: folder in ROCM_PATH; None for a machine without ROCm there.
        system: folder in place of /opt/rocm; None for a machine without ROCm there.
        libraries: LD_LIBRARY_PATH.
        packages: folders with Python packages of ROCm or of another major, in search
            order.
        acts: ROCm majors that can be used, of which the first in jaxlib's list must act;
            empty if any may act.
        blocker: ROCm major whose modules jaxlib loads if its list has it before those in
            `acts`, though it cannot be used; 0 for none.
        refusal: words in the loader's reason not to use ROCm; None if it must start
            ROCm.
        unusable: processors that the loader must warn of, and no others.
        platforms: JAX_PLATFORMS of the user, whose default devices are requested then
            instead of those of rocm.
    """

    about: str
    gpus: tuple[str, ...]
    rocm: Path | None = None
    system: Path | None = None
    libraries: tuple[Path, ...] = ()
    packages: tuple[Path, ...] = ()
    acts: tuple[int, ...] = ()
    blocker: int = 0
    refusal: tuple[str, ...] | None = None
    unusable: tuple[str, ...] = ()
    platforms: str = ""


def machines(
    names: Sequence[str], rocm_version: str, rocm: Path, folder: Path
) -> Iterator[Machine]:
    """Yield the machines with the wheels of a set.

    Args:
        names: gfx targets of the set.
        rocm_version: version of ROCm that the set is for.
        rocm: a ROCm with all libraries that the set needs.
        folder: folder for other ROCms.
    """
    version = RocmVersion(text=rocm_version)
    wanted = tuple(map(GfxTarget.parse, names))
    own = targets.processors_of(wanted)
    accepted = targets.lists()["compiler-supported"]
    usable = tuple(name for name in own if name in accepted)
    foreign = next(
        name for name in (*accepted, *targets.load_table().targets) if name not in own
    )
    one = (usable or own)[:1]
    hip = layouts.hip_soname(version)
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
        write_packages(packages, rocm, version, "pip-multi-arch", wanted)
        yield Machine(about="a ROCm of Python packages", gpus=one, packages=(packages,))
        yield Machine(about="a ROCm in /opt/rocm", gpus=one, system=prefix)
        folders = (prefix / "lib", prefix / "lib/rocm_sysdeps/lib")
        yield Machine(about="a ROCm in LD_LIBRARY_PATH", gpus=one, libraries=folders)
        yield Machine(about="no ROCm", gpus=one, refusal=(hip,))
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


def machines_of_majors(
    names: Sequence[str], rocm_version: str, rocm: Path, folder: Path, site: Path
) -> Iterator[Machine]:
    """Yield machines with wheels and ROCms of a set's major and of another one.

    `machines` yields those of the set's wheels alone with its ROCm, or without a ROCm.

    Args:
        names, rocm_version, rocm: as for `machines`.
        folder: folder for wheels and ROCms of the other major.
        site: folder with the set's wheels.

    Raises:
        KeyError, ValueError: build_info.json of a wheel is damaged.
    """
    wanted = tuple(map(GfxTarget.parse, names))
    accepted = targets.lists()["compiler-supported"]
    usable = [name for name in targets.processors_of(wanted) if name in accepted]
    if not usable:
        return
    gpus = (usable[0],)
    majors = other_major(RocmVersion(text=rocm_version))
    family = folder / "family"
    write_packages(family, rocm, majors.own, "pip-family", wanted)
    own, other = majors.own.major, majors.other.major
    wheels = folder / "wheels"
    write_other_wheels(wheels, site, majors)
    prefix = folder / "other"
    libraries = libraries_of(rocm, majors.own)
    sonames = {own: frozenset(libraries)}
    sonames[other] = write_other_rocm(prefix, libraries, majors)
    needed = {own: needed_by_xla(site, own), other: needed_by_xla(wheels, other)}
    installs = ((own,), (own, other))
    rocms = ((own,), (other,), (own, other), ())
    for installed, present in itertools.product(installs, rocms):
        if installed == (own,) and present in ((own,), ()):
            continue
        found = frozenset[str]().union(*(sonames[major] for major in present))
        packages = [family] if own in present else []
        packages += [wheels] if other in installed else []
        acts = tuple(major for major in installed if needed[major] <= found)
        # Each of several unusable majors may report.
        lacking = frozenset.intersection(
            *(needed[major] - found for major in installed)
        )
        yield Machine(
            about=f"wheels for {_rocms(installed)} and {_rocms(present)}",
            gpus=gpus,
            rocm=prefix if other in present else None,
            packages=tuple(packages),
            acts=acts,
            refusal=None if acts else tuple(sorted(lacking)),
        )
    foreign = folder / "foreign"
    write_foreign_wheels(foreign, other)
    yield Machine(
        about=f"unusable wheels of others for ROCm {other}",
        gpus=gpus,
        rocm=rocm,
        packages=(foreign,),
        acts=(own,),
        blocker=other,
    )


def _rocms(majors: Sequence[int]) -> str:
    return f"ROCm {' and '.join(map(str, majors))}" if majors else "no ROCm"


def as_json(rows: Iterable[Machine], rocm_version: str) -> str:
    """Return machines as the argument of `machine_child.py`."""
    version = RocmVersion(text=rocm_version)
    hidden = layouts.allowed_sonames(version) | other_major(version).added
    values = {}
    for row in rows:
        numbered = enumerate(row.gpus, 1)
        values[row.about] = {
            "gpus": [_properties(name, number) for number, name in numbered],
            "env": {
                "LD_LIBRARY_PATH": ":".join(map(str, row.libraries)),
                "ROCM_PATH": str(row.rocm or ""),
                "ROCR_VISIBLE_DEVICES": _NO_SUCH_GPU,
                "JAX_PLATFORMS": row.platforms,
            },
            "unset": sorted(_LOCATIONS),
            "system": str(row.system or ""),
            "packages": [str(folder) for folder in row.packages],
            "hidden": sorted(hidden),
        }
    return json.dumps(values)


def _properties(name: str, number: int) -> dict[str, int]:
    """Return the properties of a GPU in the topology of the KFD."""
    version = int(name[3:-2]) * 10000 + int(name[-2], 16) * 100 + int(name[-1], 16)
    return {"simd_count": _SIMDS, "gfx_target_version": version, "unique_id": number}


def check_machines(
    wheel: str, rows: Iterable[Machine], answers: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield a finding for each problem of machines on which jax does not answer as required.

    Args:
        wheel: name of the tested wheel and library.
    """
    for problem, abouts in machine_problems(rows, answers).items():
        text = f"{wheel}: with {some(abouts, 2)}, {problem}."
        yield error("loader-wrong", text, _FIX_LOADER, member=wheel.partition(": ")[2])


def machine_problems(
    rows: Iterable[Machine], answers: Mapping[str, Any]
) -> Mapping[str, list[str]]:
    """Return problem -> machines that have it."""
    problems: dict[str, list[str]] = {}
    for row in rows:
        answer = answers.get(row.about, {"error": "there was no answer"})
        if problem := _problem(row, answer):
            problems.setdefault(problem, []).append(row.about)
    return problems


def _problem(row: Machine, answer: Mapping[str, Any]) -> str:
    """Return the difference between an answer and the required one; empty if there is none."""
    if "died" in answer:
        return f"Python ended with {how_it_ended(answer['died'])}"
    skew = answer.get("skew")
    if skew is not None and f"jaxlib {OTHER_JAXLIB}" not in skew:
        reasons = shortened(skew) or "nothing"
        return f"the loader should refuse jaxlib {OTHER_JAXLIB}, but says: {reasons}"
    # The wheels of jax itself accept no post release.
    if refusal_of_post := _POST_REFUSED.search(answer.get("post") or ""):
        return (
            f"the loader should accept a jaxlib{POST}, but says: {refusal_of_post[0]}"
        )
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
    major = _first_major(row, answer.get("listed", ()))
    refusal = row.refusal
    if major and major == row.blocker:
        refusal = ("uninstall", f"jax-rocm{major}-plugin jax-rocm{major}-pjrt")
    if refusal is not None:
        return _refusal_problem(refusal, sentence[1] if sentence else "", details)
    started = answer.get("devices") or NO_DEVICE.search(result)
    if sentence or not started:
        return f"jax should start ROCm, but said: {details}"
    acting = answer.get("acting", ())
    if major and acting != [major]:
        return f"the loader of ROCm {major} should act, but {acting or 'none'} did"
    platform = answer.get("preferred")
    if platform and platform != "rocm":
        return f"jax should prefer ROCm, but prefers {platform}"
    if lost := answer.get("lost"):
        return f"jax should get {some(lost)} of the extension module"
    variables = answer.get("variables", {})
    return _location_problem(row, variables) or _warning_problem(row, warned)


def _first_major(row: Machine, listed: Sequence[int]) -> int:
    """Return the major whose modules jaxlib loads first; 0 if any may be.

    Args:
        listed: majors that this jaxlib knows, in its order.
    """
    known = [major for major in listed if major in {*row.acts, row.blocker}]
    return next(iter(known), max(row.acts, default=0))


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
    cores = [folder / CORE_PACKAGE for folder in row.packages]
    prefix = next(filter(Path.is_dir, cores), row.rocm or row.system)
    for name, file in _LOCATIONS.items():
        expected = "unset"
        if prefix is not None and (prefix / file).exists():
            shown = prefix if prefix != row.system else _SYSTEM
            expected = str((shown / file).parent)
        actual = variables.get(name, "unset")
        if actual != expected:
            return f"the loader should set {name} to {expected}, but it is {actual}"
    return ""
