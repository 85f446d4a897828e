"""Rules about several wheels that are meant to be installed together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.model import Finding
from wheelkit.inspect.findings import finding
from wheelkit.inspect.findings_meta import JAX_ROCM, rocm_in_summary, same_release
from wheelkit.inspect.model import WheelReport


def duplicates(reports: Sequence[WheelReport]) -> Iterator[Finding]:
    """Wheels that an installer cannot tell apart: same project, version, build and a common tag."""
    for one, other in itertools.combinations(reports, 2):
        same = (one.project, one.build) == (other.project, other.build)
        if same and Version(one.version) == Version(other.version) and set(one.tags) & set(other.tags):
            what = "the same bytes" if one.sha256 == other.sha256 else "different bytes"
            yield finding("set-duplicate", f"{other.filename} takes the same slot, with {what}.", member=one.filename)


def pins(reports: Sequence[WheelReport]) -> Iterator[Finding]:
    """Requirements on projects of the set that no wheel of the set meets."""
    for report in reports:
        for requirement in _requirements(report):
            offered = [r for r in reports if r.project == canonicalize_name(requirement.name)]
            if offered and not any(_meets(requirement, r) for r in offered):
                have = ", ".join(dict.fromkeys(r.version for r in offered))
                text = f"requires {requirement}, the set has {have}."
                yield finding("set-pin-unmet", text, member=report.filename)


def partners(reports: Sequence[WheelReport]) -> Iterator[Finding]:
    """Whether each plugin and the pjrt that its pin selects come from one ROCm and serve the same targets."""
    for plugin in reports:
        match = JAX_ROCM.fullmatch(plugin.project)
        wanted = [r for r in _requirements(plugin) if match and r.name.endswith("pjrt")]
        for requirement, pjrt in itertools.product(wanted, reports):
            if pjrt.project == canonicalize_name(requirement.name) and _meets(requirement, pjrt):
                yield from _pair(plugin, pjrt)


def _pair(plugin: WheelReport, pjrt: WheelReport) -> Iterator[Finding]:
    ours, theirs = _rocm(plugin), _rocm(pjrt)
    if ours and theirs and not same_release(ours, theirs):
        text = f"built with ROCm {ours}, {pjrt.filename} with {theirs}."
        yield finding("set-rocm-differs", text, member=plugin.filename)
    mine, others = ({code.target for code in report.targets} for report in (plugin, pjrt))
    if mine and others and mine != others:
        text = f"{pjrt.filename} differs in {', '.join(sorted(mine ^ others))}."
        yield finding("set-targets-differ", text, member=plugin.filename)


def _rocm(report: WheelReport) -> str:
    """The ROCm that compiled a wheel, else the one that its Summary names."""
    if report.rocm:
        return report.rocm[-1]
    return rocm_in_summary(report.metadata.summary) if report.metadata else ""


def _requirements(report: WheelReport) -> list[Requirement]:
    """The requirements that hold everywhere; those under a marker depend on who installs."""
    found = []
    for line in report.metadata.requires_dist if report.metadata else ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None:
            found.append(requirement)
    return found


def _meets(requirement: Requirement, report: WheelReport) -> bool:
    return requirement.specifier.contains(report.version, prereleases=True)
