"""Inspection of wheels that are installed together, and the rules on them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.frozen import frozen
from core.model import Finding
from wheelkit.findings import finding, sort_findings
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.metadata_rules import JAX_ROCM, rocm_in_summary, same_release


@frozen
class SetReport:
    """Reports of several wheels, and the findings between them."""

    wheels: tuple[WheelReport, ...]
    findings: tuple[Finding, ...]


def inspect_set(
    paths: Sequence[Path], inspect: Callable[[Path], WheelReport]
) -> SetReport:
    """Inspect wheels that are installed together.

    Args:
        inspect: `inspect_wheel`, with bound arguments if necessary.
    """
    reports = tuple(inspect(path) for path in paths)
    return SetReport(wheels=reports, findings=check_set(reports))


def check_set(reports: Sequence[WheelReport]) -> tuple[Finding, ...]:
    """Return the findings between wheels; `member` of each finding is the file name of a wheel."""
    named = [report for report in reports if report.project]
    return sort_findings(
        (*check_duplicates(named), *check_pins(named), *check_partners(named))
    )


def wheels_below(folder: Path) -> tuple[Path, ...]:
    """Return every wheel file in a folder and its subfolders, sorted.

    Raises:
        OSError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    files: list[Path] = []
    for top, _, names in os.walk(folder, onerror=refuse):
        files += [Path(top, name) for name in names]
    return tuple(
        sorted(path for path in files if path.suffix == ".whl" and path.is_file())
    )


def check_duplicates(reports: Sequence[WheelReport]) -> Iterator[Finding]:
    """Report wheels that installers cannot distinguish.

    Same project, version and build, and a common tag.
    """
    for one, other in itertools.combinations(reports, 2):
        if (
            (one.project, one.build) == (other.project, other.build)
            and Version(one.version) == Version(other.version)
            and set(one.tags) & set(other.tags)
        ):
            what = "the same bytes" if one.sha256 == other.sha256 else "different bytes"
            yield finding(
                "set-duplicate",
                f"{other.filename} has the same version and a common tag, with {what}.",
                member=one.filename,
            )


def check_pins(reports: Sequence[WheelReport]) -> Iterator[Finding]:
    """Check that each requirement on a project of the set is met by a wheel of the set."""
    for report in reports:
        if any(item.code == "pin-stale" for item in report.findings):
            continue  # the same requirement
        for requirement in _requirements(report):
            name = canonicalize_name(requirement.name)
            offered = [r.version for r in reports if r.project == name]
            if offered and not any(_meets(requirement, v) for v in offered):
                have = ", ".join(dict.fromkeys(offered))
                text = f"the wheel requires {requirement}, but the set has {have}."
                yield finding("set-pin-unmet", text, member=report.filename)


def check_partners(reports: Sequence[WheelReport]) -> Iterator[Finding]:
    """Check that each plugin and its pjrt were built with one ROCm and for the same targets."""
    for plugin in reports:
        if not JAX_ROCM.fullmatch(plugin.project):
            continue
        for requirement in _requirements(plugin):
            name = canonicalize_name(requirement.name)
            for pjrt in reports if name.endswith("pjrt") else ():
                if pjrt.project == name and _meets(requirement, pjrt.version):
                    yield from _pair(plugin, pjrt)


def _pair(plugin: WheelReport, pjrt: WheelReport) -> Iterator[Finding]:
    ours = _rocm(plugin)
    theirs = _rocm(pjrt)
    if ours and theirs and not same_release(ours, theirs):
        text = (
            f"the plugin was built with ROCm {ours}, but {pjrt.filename} with {theirs}."
        )
        yield finding("set-rocm-differs", text, member=plugin.filename)
    mine = {code.target for code in plugin.targets}
    others = {code.target for code in pjrt.targets}
    if mine and others and mine != others:
        text = (
            f"only one of the plugin and {pjrt.filename} has code for"
            f" {', '.join(sorted(mine ^ others))}."
        )
        yield finding("set-targets-differ", text, member=plugin.filename)


def _rocm(report: WheelReport) -> str:
    """Return the ROCm that compiled a wheel, else the one in its Summary."""
    if report.rocm:
        return report.rocm[-1]
    return rocm_in_summary(report.metadata.summary) if report.metadata else ""


def _requirements(report: WheelReport) -> list[Requirement]:
    """Return the requirements without a marker, which apply everywhere."""
    requirements = []
    for line in report.metadata.requires_dist if report.metadata else ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None:
            requirements.append(requirement)
    return requirements


def _meets(requirement: Requirement, version: str) -> bool:
    return requirement.specifier.contains(version, prereleases=True)
