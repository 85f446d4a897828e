"""The ROCm of published wheels, which their compilers, Summary and needed libraries prove together.

Summary alone proves little: the published wheels of jax 0.11.2 name ROCm 7.14.0, but
the clang of ROCm 7.12.0 compiled them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from packaging.version import Version

from core.errors import RequestError
from core.frozen import frozen
from core.rocm_layouts import load_layouts
from core.rocm_releases import base_version, load_releases, rocm_of_compiler
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.metadata_rules import JAX_ROCM, rocm_in_summary

_BUNDLED = "librocm_sysdeps_"
"""System libraries that TheRock builds and ships with ROCm.

AMD's earlier packages use those of the distribution.
"""


@frozen
class RocmMark:
    """One statement about the ROCm of a wheel.

    Attributes:
        text: the statement, part of a sentence.
        versions: ROCm versions that agree with it, the most likely one first.
    """

    text: str
    versions: tuple[str, ...]


def compiler_marks(report: WheelReport) -> tuple[RocmMark, ...]:
    """Return the ROCms whose clang compiled a library of a wheel.

    Unknown compilers are left out.
    """
    marks: dict[tuple[str, ...], RocmMark] = {}
    for elf in report.elfs:
        for versions in filter(None, map(rocm_of_compiler, elf.compilers)):
            text = (
                f"{elf.path} in {report.filename} was compiled by the clang of ROCm"
                f" {versions[0]}"
            )
            marks.setdefault(versions, RocmMark(text=text, versions=versions))
    return tuple(marks.values())


def proven_rocm(reports: Sequence[WheelReport], given: str = "") -> str:
    """Return the ROCm of wheels with one ROCm major.

    Args:
        given: version that the user claims; the compilers prove it, or else Summary.

    Raises:
        RequestError: compilers, Summary, project names and needed libraries contradict
            each other or the given version, or none of them names a version.
    """
    compiled = list(chain.from_iterable(map(compiler_marks, reports)))
    claimed = list(chain.from_iterable(map(_summary_marks, reports)))
    # A given version settles a wrong Summary, but nothing settles the code.
    marks = compiled if given and compiled else [*compiled, *claimed]
    candidates = [given] if given else []
    for mark in (*claimed, *compiled) if not given else ():
        candidates += mark.versions
    majors = {
        match["major"]
        for report in reports
        if (match := JAX_ROCM.fullmatch(report.project))
    }
    hint = f"Give --rocm-version={''.join(sorted(majors)[:1])}.x.y."
    if not candidates:
        names = ", ".join(report.filename for report in reports)
        raise RequestError(
            f"Neither the compilers nor Summary of {names} name a ROCm.", hint=hint
        )
    for version in candidates:
        if not any(_contradictions(version, marks, reports)):
            return version
    likely = given or marks[0].versions[0]
    problems = list(dict.fromkeys(_contradictions(likely, marks, reports)))
    hint = "Take another release, or the wheels of one build."
    if compiled and not any(
        _contradictions(compiled[0].versions[0], compiled, reports)
    ):
        hint = (
            f"Give --rocm-version={compiled[0].versions[0]} to rely on the compiler, or"
            " take another release."
        )
    raise RequestError(
        f"The wheels are not proven to be for ROCm {likely}: {'; '.join(problems)}.",
        hint=hint,
    )


def _summary_marks(report: WheelReport) -> Iterator[RocmMark]:
    version = rocm_in_summary(report.metadata.summary) if report.metadata else ""
    if version and JAX_ROCM.fullmatch(report.project):
        yield RocmMark(
            text=f"Summary of {report.filename} names ROCm {version}",
            versions=(version,),
        )


def _contradictions(
    version: str, marks: Sequence[RocmMark], reports: Sequence[WheelReport]
) -> Iterator[str]:
    """Yield every statement of the wheels that a version contradicts."""
    base = base_version(version)
    for mark in marks:
        if base not in map(base_version, mark.versions):
            yield mark.text
    # A release without a list proves nothing about sonames.
    sonames = load_layouts().sonames.get((base.major, base.minor), frozenset())
    for report in reports:
        match = JAX_ROCM.fullmatch(report.project)
        if match and match["major"] != str(base.major):
            yield f"the name of {report.filename} is for ROCm {match['major']}"
        for elf in report.elfs if sonames else ():
            for soname in elf.needed:
                if _other_release(soname, base, sonames):
                    yield (
                        f"{elf.path} in {report.filename} needs {soname}, which ROCm"
                        f" {base} lacks"
                    )


def _other_release(soname: str, rocm: Version, sonames: Collection[str]) -> bool:
    """Return whether only other releases have a library.

    With this number, or as one of TheRock's system libraries.

    The lists have the libraries that published wheels need, so a library that a list
    lacks proves nothing.
    """
    stem = soname.partition(".so")[0]
    stems = {name.partition(".so")[0] for name in sonames}
    first_therock = min(map(Version, load_releases().compilers))
    bundled = stem.startswith(_BUNDLED) and rocm < first_therock
    return soname not in sonames and (stem in stems or bundled)
