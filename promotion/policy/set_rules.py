"""Requirements of a policy for the set itself.

Completeness, sizes, and only one variant in an index.

Each rule is pure and yields a sentence for each problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from core.defaults import defaults
from core.frozen import frozen
from core.model import Payload, RocmVersion, Wheel, WheelSet
from core.rocm_servers import load_servers
from core.rocm_trust import ROCM_TRUST, ChecksumOrigin, load_trust
from core.targets import MULTI_ARCH, covers, load_table
from promotion.policy.promotion_policy import Policy
from wheelkit.recipe_base import requires_python


@frozen
class Offer:
    """What an index offers.

    Attributes:
        versions: project -> visible versions.
        yanked: project -> versions among them that pip selects only for users who pin
            them (PEP 592).
    """

    versions: Mapping[str, Collection[str]] = field(default_factory=dict)
    yanked: Mapping[str, Collection[str]] = field(default_factory=dict)


_MEGA = 1_000_000
_VARIANT = re.compile(r"gfx|dcgpu|dgpu|igpu|targets|unstripped")
"""Prefix of the part of a wheel's local version with which the variant starts."""


def set_problems(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Yield a sentence for each missing part, and each duplicate or unknown wheel."""
    if wheel_set.index != MULTI_ARCH and wheel_set.index not in load_table().families:
        yield (
            f"The index {wheel_set.index} is neither {MULTI_ARCH} nor a family, so its"
            " required targets are unknown."
        )
    if not _is_version(wheel_set.jax_version):
        yield f"The set has no version of jax: {wheel_set.jax_version[:40]!r}."
    if not wheel_set.targets:
        yield "The set names no gfx target."
    if not wheel_set.python_versions:
        yield "The set names no Python."
    for version in _required_pythons(wheel_set, policy):
        if version not in wheel_set.python_versions:
            yield f"The set is not for Python {version}."
    counts = Counter(wheel.name for wheel in wheel_set.wheels)
    single = expand(policy.wheels, wheel_set)
    for project in single:
        if counts[project] != 1:
            yield f"The set has {counts[project]} wheels of {project}; one is required."
    tags = Counter[tuple[str, str]]()
    for wheel in wheel_set.wheels:
        tags.update((wheel.name, tag) for tag in _pythons(wheel.filename))
    per_python = expand(policy.wheels_per_python, wheel_set)
    for project in per_python:
        for python in wheel_set.python_versions:
            tag = f"cp{python.replace('.', '')}"
            count = tags.pop((project, f"{tag}-{tag}"), 0)
            if count != 1:
                yield (
                    f"The set has {count} wheels of {project} for Python {python}; one"
                    " is required."
                )
    for project, tag in tags:
        # No gate tests it.
        if project in per_python:
            yield f"The set has a wheel of {project} for another Python: {tag}."
    optional = expand(policy.optional_wheels, wheel_set)
    for project in optional:
        if counts[project] > 1:
            yield (
                f"The set has {counts[project]} wheels of {project}; at most one is"
                " permitted."
            )
    for name in sorted(counts.keys() - {*single, *per_python, *optional}):
        yield f"The set has a wheel of {name}, which the policy does not permit."
    processors = {target.partition(":")[0] for target in wheel_set.targets}
    for target in policy.required_targets:
        if target not in processors:
            yield (
                f"The set is not for {target}, which the index {wheel_set.index} must"
                " have."
            )
    for name in policy.files:
        if name not in wheel_set.files:
            yield f"The set has no {name}."


def _required_pythons(wheel_set: WheelSet, policy: Policy) -> tuple[str, ...]:
    """Return the Python versions that a policy requires of a set."""
    if policy.python_versions is not None:
        return policy.python_versions
    supported = tuple(defaults()["pythons"]["supported"])
    if not _is_version(wheel_set.jax_version):
        return supported
    allowed = SpecifierSet(requires_python(wheel_set.jax_version))
    return tuple(version for version in supported if version in allowed)


def device_member_problems(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Yield a sentence for each target for which a library does not declare code."""
    for pattern, paths in policy.device_members.items():
        (project,) = expand((pattern,), wheel_set)
        for wheel in (wheel for wheel in wheel_set.wheels if wheel.name == project):
            promised = {member.path: member.targets for member in wheel.members}
            for path in expand(paths, wheel_set):
                for target in missing_targets(
                    promised.get(path, ()), wheel_set.targets
                ):
                    yield (
                        f"{wheel.filename}: {path} does not declare code for {target}."
                    )


def rocm_problems(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Yield a sentence if the set's ROCm may have been replaced on its way, or if this is unknown.

    Published wheels were not built with a ROCm; the ROCm beside them, if any, is
    checked. The pages link to its wheels as those on AMD's servers.
    """
    servers = [urlsplit(server.url).hostname for server in load_servers().values()]
    for package in wheel_set.rocm_packages if policy.verified_rocm else ():
        if urlsplit(package.url).hostname not in servers:
            yield f"{package.filename} is on another server than AMD's: {package.url}."
    has_rocm = (
        ROCM_TRUST in wheel_set.request
        or wheel_set.request.get("payload") != Payload.PUBLISHED
    )
    if not policy.verified_rocm or not has_rocm:
        return
    trust = load_trust(wheel_set.request)
    if trust is None:
        yield "The set does not record how its ROCm was verified. Build it again."
        return
    again = (
        "Build the set again with --therock-sha256, or with a rocm.lock that pins the"
        " ROCm."
    )
    if trust.checksum is ChecksumOrigin.FIRST_USE:
        yield (
            "The ROCm of the set was trusted on first use: its checksum was unknown."
            f" {again}"
        )
    if trust.checksum is ChecksumOrigin.LOCAL:
        yield f"The ROCm of the set came from local files without a checksum. {again}"
    if not trust.encrypted:
        yield (
            "The ROCm of the set came over http://, which is not encrypted. Build the"
            " set again with an https URL."
        )


def size_problems(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Yield a sentence for each wheel that is larger than the policy allows."""
    budgets = {
        expand((pattern,), wheel_set)[0]: most for pattern, most in policy.sizes.items()
    }
    for wheel in wheel_set.wheels:
        if wheel.name in budgets and wheel.size > budgets[wheel.name] * _MEGA:
            yield (
                f"{wheel.filename} has {wheel.size / _MEGA:.1f} MB; the policy allows"
                f" {budgets[wheel.name]} MB."
            )


def variant_problems(wheel_set: WheelSet, offer: Offer) -> Iterator[str]:
    """Yield a sentence for each project of which the index has another variant for the same ROCm.

    `0.10.2+rocm7.2.0.gfx942` sorts above `0.10.2+rocm7.2.0`, so all users of an index
    with both would get the wheel for one target. The same holds for two variants.
    """
    for project, wheel in _by_project(wheel_set):
        rocm, variant = _split(wheel.version)
        for version in sorted(set(offer.versions.get(project, ()))):
            other_rocm, other = _split(version)
            if rocm == other_rocm and variant != other:
                yield (
                    f"The index has {project} {version}, another variant for the same"
                    f" ROCm as {wheel.version}: pip would select the higher version."
                    " Use another index, or quarantine the other set."
                )
                break


def order_problems(wheel_set: WheelSet, offer: Offer) -> Iterator[str]:
    """Yield a sentence for each project of which pip would select a wrong version."""
    for project, wheel in _by_project(wheel_set):
        unselected = {wheel.version, *offer.yanked.get(project, ())}
        versions = {*offer.versions.get(project, ())} - unselected
        highest = max(filter(_is_version, versions), key=Version, default=None)
        if highest is None or not _is_version(wheel.version):
            continue
        if Version(highest) > Version(wheel.version):
            yield (
                f"The index has {project} {highest}, which pip would select instead of"
                f" {wheel.version}."
            )
        elif _rocm(wheel.version) and _rocm(highest) > _rocm(wheel.version):
            yield (
                f"pip would select {project} {wheel.version} instead of {highest},"
                " which is for a newer ROCm."
            )


def missing_targets(embedded: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted targets that no embedded or generic target covers."""
    embedded = tuple(embedded)
    served = {*embedded}.union(*(covers().get(target, ()) for target in embedded))
    return tuple(target for target in wanted if target not in served)


def unused_targets(embedded: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the embedded targets that neither are nor cover a wanted target."""
    wanted = frozenset(wanted)
    return tuple(
        target
        for target in embedded
        if wanted.isdisjoint({target, *covers().get(target, ())})
    )


def expand(patterns: Iterable[str], wheel_set: WheelSet) -> tuple[str, ...]:
    """Replace `{major}` in names and paths with the ROCm major of a set."""
    major = RocmVersion(text=wheel_set.rocm_version).major
    return tuple(pattern.replace("{major}", str(major)) for pattern in patterns)


def _pythons(filename: str) -> Collection[str]:
    """Return the Pythons of a wheel's file name, such as cp312-cp312."""
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return ()
    return {f"{tag.interpreter}-{tag.abi}" for tag in tags}


def _split(version: str) -> tuple[str, str]:
    """Return the ROCm part and the variant of a version's local part.

    An invalid version is returned unchanged.
    """
    try:
        words = (Version(version).local or "").split(".")
    except ValueError:
        return version, ""
    at = next(
        (number for number, word in enumerate(words) if _VARIANT.match(word)),
        len(words),
    )
    return ".".join(words[:at]), ".".join(words[at:])


def _by_project(wheel_set: WheelSet) -> Sequence[tuple[str, Wheel]]:
    """Return each project of a set with one of its wheels."""
    return sorted({wheel.name: wheel for wheel in wheel_set.wheels}.items())


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except ValueError:  # or a number of more than 4300 digits
        return False
    return True


def _rocm(version: str) -> tuple[int, ...]:
    """Return the ROCm version in the local part of a version as numbers; empty if there is none."""
    match = re.search(r"\+rocm(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()
