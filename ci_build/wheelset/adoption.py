"""Adoption of foreign wheels: unchanged copies of them form a wheel set, which gates can test.

Adoption refuses wheels that cannot form a set, and wheels with other bytes than their
RECORD or wheels.json lists. Gates report all other defects of the wheels.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from ci_build.wheelset import set_files
from ci_build.wheelset.inspected_wheels import wheel_files
from ci_build.wheelset.output_dir import check_output_dir, locked, replacement
from ci_build.wheelset.published import jax_release
from core import targets, versions, wheelset
from core.defaults import defaults
from core.errors import ArchiveError, InputError, RequestError
from core.frozen import frozen
from core.model import (
    WHEELS_JSON,
    GfxTarget,
    MemberInfo,
    Progress,
    RocmVersion,
    Wheel,
    WheelSet,
)
from wheelkit import kernel_wheel
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.inspect.inspection_model import WheelReport, member_infos
from wheelkit.inspect.inspector import Expectations, inspect_wheel
from wheelkit.inspect.proven_rocm import proven_rocm
from wheelkit.repair.wheel_repair import wheel_record

ADOPTED = "adopted"
"""Key of `WheelSet.request` ; true for a set of wheels that were not built here."""

_CHANGED = ("member-damaged", "record-wrong-hash", "record-wrong-size")
"""Findings on members whose bytes changed after the wheel was packed."""
_JAXLIB = "jaxlib"


@frozen
class _InputWheel:
    """A wheel to adopt.

    Attributes:
        kind: pjrt, plugin, jaxlib or jax-aiter.
        major: ROCm major in the wheel's name; 0 for jaxlib and jax-aiter.
        pythons: supported Python versions in the wheel's tags; empty for `py3`.
        report: facts about the wheel.
    """

    path: Path
    wheel: Wheel
    kind: str
    major: int
    pythons: tuple[str, ...]
    report: WheelReport


def adopt(
    arguments: Sequence[str], *, out: Path, rocm: RocmVersion | None, progress: Progress
) -> WheelSet:
    """Create a set from wheels; the same wheels and ROCm give the same digest.

    Args:
        arguments: wheel files, or folders with wheels.
        out: folder of the set, which is replaced as a whole.
        rocm: ROCm version of the wheels; None takes the version that the wheels prove.

    Raises:
        InputError: an argument is not a wheel, or a wheel is damaged.
        WheelSetError: an argument is the folder of a set, and files in it differ from
            its wheels.json.
        RequestError: the wheels cannot form a set, or their ROCm version is unknown or
            contradictory.
        BusyError: another run uses `out`.
    """
    check_output_dir(out)  # before the wheels are read
    paths = wheel_files(arguments, hint="Give wheels, or folders with wheels.")
    for folder in map(Path, arguments):
        if (folder / WHEELS_JSON).is_file():
            wheelset.read_unchanged(folder)
    unique = {path.resolve(): path for path in paths}
    given = [_read_wheel(path, progress) for path in unique.values()]
    if problems := list(_problems(given)):
        if len(problems) > 1:
            problems.insert(0, "The wheels cannot form a set:")
        raise RequestError(
            "\n  ".join(problems),
            hint=(
                "Give the wheels of one release: pjrt, and plugin and jaxlib for each"
                " Python."
            ),
        )
    wheel_set = _describe_set(given, rocm)
    out = out.absolute()
    with locked(out), replacement(out) as fresh:
        for item in given:
            shutil.copyfile(item.path, fresh / item.path.name)
        # No lock file: today's versions on an index are not a property of the wheels.
        return set_files.write_set(fresh, wheel_set, None)


def _read_wheel(path: Path, progress: Progress) -> _InputWheel:
    try:
        report = inspect_wheel(path, Expectations(verify=False), progress=progress)
        wheel = wheel_record(
            path,
            sha256=report.sha256,
            members=(),
            source_sha256=report.sha256,
            source_size=path.stat().st_size,
        )
    except ArchiveError as error:
        raise InputError(
            f"Not a wheel: {error.message}",
            hint="Check that the download is complete, and its name unchanged.",
        ) from error
    try:
        members = _members(path, report)
    except ArchiveError as error:
        raise InputError(
            f"{path} is damaged: {error.message}",
            hint="Download it again, or build it again.",
        ) from error
    named = versions.parse_package_name(wheel.name)
    if named is None and wheel.name not in (_JAXLIB, versions.KERNELS_PROJECT):
        raise InputError(
            f"{path.name} is a wheel of {wheel.name}, which cannot be part of a set.",
            hint=(
                "A set has wheels of jax-rocm<N>-pjrt, jax-rocm<N>-plugin, jaxlib and"
                " jax-aiter; jax comes from PyPI."
            ),
        )
    kind, major = named or (wheel.name, 0)
    interpreters = {tag.interpreter for tag in parse_wheel_filename(path.name)[3]}
    pythons = tuple(
        python
        for python in _supported()
        if f"cp{python.replace('.', '')}" in interpreters
    )
    return _InputWheel(
        path=path,
        wheel=replace(wheel, members=members),
        kind=kind,
        major=major,
        pythons=pythons,
        report=report,
    )


def _members(path: Path, report: WheelReport) -> tuple[MemberInfo, ...]:
    """Return the wheel's libraries, and its code objects with the targets from their headers.

    Raises:
        ArchiveError: a member is damaged, or differs from RECORD.
    """
    with WheelArchive(path) as archive:
        changed = [item for item in verify_record(archive) if item.code in _CHANGED]
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise ArchiveError(f"{changed[0].member}: {changed[0].message}{more}")
        names = kernel_wheel.code_objects(archive)
        codes = (
            kernel_wheel.member_infos(archive, names, archive.record()) if names else ()
        )
    libraries = [member for member in member_infos(report) if member.path not in names]
    return tuple(sorted((*libraries, *codes), key=lambda member: member.path))


def _supported() -> tuple[str, ...]:
    """Return the supported Python versions, oldest first."""
    return tuple(defaults()["pythons"]["supported"])


def _problems(given: Sequence[_InputWheel]) -> Iterator[str]:
    """Yield every reason why the wheels cannot form a set."""
    ours = [item for item in given if item.major]
    if not ours:
        yield "There is no wheel of jax-rocm<N>-pjrt or jax-rocm<N>-plugin."
    libraries = [item for item in given if item.kind == _JAXLIB]
    values = {
        "ROCm majors": {str(item.major) for item in ours},
        "versions": {item.wheel.version for item in ours},
        "versions of jaxlib": {item.wheel.version for item in libraries},
    }
    for what, found in values.items():
        if len(found) > 1:
            names = ", ".join(sorted(found))
            yield f"The wheels have {len(found)} different {what}: {names}."
    slots: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in given:
        for python in item.pythons or ("every Python",):
            slots[item.wheel.name, python].append(str(item.path))
    for (name, python), paths in sorted(slots.items()):
        if len(paths) > 1:
            yield (
                f"There are {len(paths)} wheels of {name} for {python}:"
                f" {', '.join(paths)}."
            )
    for item in given:
        if item.kind not in ("pjrt", versions.KERNELS_PROJECT) and not item.pythons:
            yield (
                f"{item.path.name} supports none of the Pythons"
                f" {', '.join(_supported())}."
            )
    if not any(item.pythons for item in given):
        yield "No wheel has the tag of a Python version, such as cp312."


def _describe_set(given: Sequence[_InputWheel], rocm: RocmVersion | None) -> WheelSet:
    ours = [item for item in given if item.major]
    version = Version(ours[0].wheel.version)
    release = jax_release(str(version))
    held: set[str] = set()
    served: set[str] = set()
    for item in given:
        held.update(item.wheel.targets)
        served.update(item.pythons)
    wheels = [item.wheel for item in given]
    names = targets.in_order(GfxTarget.parse(name) for name in held)
    has_jaxlib = any(item.kind == _JAXLIB for item in given)
    return WheelSet(
        index=targets.family_of(names),
        targets=tuple(map(str, names)),
        rocm_version=proven_rocm([item.report for item in ours], str(rocm or "")),
        jax_version=version.public,
        python_versions=tuple(name for name in _supported() if name in served),
        request={ADOPTED: True},
        inputs=(),
        tools={},
        pins={"jax": release} if has_jaxlib else {"jax": release, _JAXLIB: release},
        wheels=tuple(sorted(wheels, key=lambda wheel: (wheel.name, wheel.filename))),
    )
