"""What a policy asks of a set itself, whatever was tested: that it is whole, small enough, and alone of its kind.

Each rule is pure and gives sentences on what is not as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from core.model import RocmVersion, WheelSet
from core.targets import covers
from core.units import human
from promotion.index.ledger import PromotedSet
from promotion.policy.policy import Policy

_MEGA = 1_000_000
_VARIANT = re.compile(r"gfx|dcgpu|dgpu|igpu|targets|unstripped")
"""How the first word of a variant begins, in the local part of a wheel's version."""


def set_problems(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Which Pythons, wheels and pins are missing, double or unasked for."""
    if not wheel_set.targets:
        yield "The set names no gfx target."
    if len(wheel_set.python_versions) < policy.pythons:
        yield f"The set is for {len(wheel_set.python_versions)} Python versions; {policy.pythons} are asked for."
    for version in policy.python_versions:
        if version not in wheel_set.python_versions:
            yield f"The set is not for Python {version}."
    names = [wheel.name for wheel in wheel_set.wheels]
    for project in expand(policy.wheels, wheel_set):
        if names.count(project) != 1:
            yield f"The set has {names.count(project)} wheels of {project}; one is asked for."
    for project in expand(policy.wheels_per_python, wheel_set):
        pythons = [tag for wheel in wheel_set.wheels if wheel.name == project for tag in _pythons(wheel.filename)]
        wanted = [f"cp{python.replace('.', '')}" for python in wheel_set.python_versions]
        for python, tag in zip(wheel_set.python_versions, wanted, strict=True):
            if pythons.count(tag) != 1:
                yield f"The set has {pythons.count(tag)} wheels of {project} for Python {python}; one is asked for."
    known = {*expand(policy.wheels, wheel_set), *expand(policy.wheels_per_python, wheel_set)}
    for name in sorted(set(names) - known):
        yield f"The set has a wheel of {name}, which the policy does not name."
    for project in policy.pins:
        if project not in wheel_set.pins:
            yield f"The set does not say which version of {project} it is for."


def device_member_problems(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Which libraries were to hold code for which targets, and do not even promise it."""
    for pattern, paths in policy.device_members.items():
        (project,) = expand((pattern,), wheel_set)
        for wheel in (wheel for wheel in wheel_set.wheels if wheel.name == project):
            promised = {member.path: member.targets for member in wheel.members}
            for path in expand(paths, wheel_set):
                for target in missing_targets(promised.get(path, ()), wheel_set.targets):
                    yield f"{wheel.filename}: {path} does not promise code for {target}."


def size_problems(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Which wheels are larger than their project's budget."""
    budgets = {expand((pattern,), wheel_set)[0]: most for pattern, most in policy.sizes.items()}
    for wheel in wheel_set.wheels:
        if wheel.name in budgets and wheel.size > budgets[wheel.name] * _MEGA:
            yield f"{wheel.filename} has {wheel.size / _MEGA:.1f} MB; the policy gives it {budgets[wheel.name]} MB."


def growth_problems(wheel_set: WheelSet, policy: Policy, baseline: PromotedSet) -> Iterator[str]:
    """Which projects' largest wheel grew by more than the policy lets pass without a word."""
    for project in dict.fromkeys(wheel.name for wheel in wheel_set.wheels):
        old = max((wheel.size for wheel in baseline.wheels if wheel.project == project), default=0)
        new = max(wheel.size for wheel in wheel_set.wheels if wheel.name == project)
        if old and new * 100 > old * (100 + policy.growth_percent):
            yield (
                f"{project} grew from {human(old)} to {human(new)} since set {baseline.set_digest[:12]};"
                f" {policy.growth_percent} % are let pass."
            )


def variant_problems(wheel_set: WheelSet, offered: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Which wheels pip would choose, or lose, for their variant alone.

    `0.10.2+rocm7.2.0.gfx942` sorts above `0.10.2+rocm7.2.0`, so that an index with both gives all its users the wheel
    for one target. The same holds between two variants.
    """
    for project, wheel in sorted({wheel.name: wheel for wheel in wheel_set.wheels}.items()):
        rocm, variant = _split(wheel.version)
        for version in sorted(set(offered.get(project, ()))):
            other_rocm, other = _split(version)
            if rocm == other_rocm and variant != other:
                yield (
                    f"The index offers {project} {version}, another variant for the same ROCm than {wheel.version}:"
                    " pip would take the one that sorts higher. Use another index, or quarantine that set."
                )
                break


def missing_targets(embedded: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Wanted targets that no embedded one serves: itself, or a generic target that covers it."""
    embedded = tuple(embedded)
    served = {*embedded, *(concrete for target in embedded for concrete in covers().get(target, ()))}
    return tuple(target for target in wanted if target not in served)


def unused_targets(embedded: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Embedded targets that serve no wanted one."""
    wanted = frozenset(wanted)
    return tuple(target for target in embedded if wanted.isdisjoint({target, *covers().get(target, ())}))


def expand(patterns: Iterable[str], wheel_set: WheelSet) -> tuple[str, ...]:
    """Put the ROCm major of a set into names and paths."""
    major = RocmVersion(text=wheel_set.rocm_version).major
    return tuple(pattern.replace("{major}", str(major)) for pattern in patterns)


def _pythons(filename: str) -> tuple[str, ...]:
    """The interpreter tags of a wheel's file name; none for a name that is not a wheel's."""
    try:
        return tuple({tag.interpreter for tag in parse_wheel_filename(filename)[3]})
    except InvalidWheelFilename:
        return ()


def _split(version: str) -> tuple[str, str]:
    """The local part of a version as what names the ROCm, and the variant; a text that is no version is itself."""
    try:
        words = (Version(version).local or "").split(".")
    except InvalidVersion:
        return version, ""
    at = next((number for number, word in enumerate(words) if _VARIANT.match(word)), len(words))
    return ".".join(words[:at]), ".".join(words[at:])
