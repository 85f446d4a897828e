"""Exceptions from the rule that each registered kernel has code for all targets."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from core.frozen import frozen
from core.model import GfxTarget, WheelSet
from core.records import read_toml
from promotion.policy.set_rules import missing_targets
from wheelkit.gpu.registration import RegisteredKernels

RULES_FILE = Path(__file__).with_suffix(".toml")
_SCHEMA_VERSION = 1


@frozen
class KernelRule:
    """One entry of `kernel_rules.toml`, which documents the fields."""

    member: str
    pattern: re.Pattern[str]
    targets: tuple[str, ...]
    reason: str
    rocm: SpecifierSet = field(default_factory=SpecifierSet)
    jax: SpecifierSet = field(default_factory=SpecifierSet)

    def excuses(self, kernel: str, target: str) -> bool:
        """Report whether the rule allows a target to lack a kernel."""
        processor = GfxTarget.parse(target).processor
        return not any(fnmatchcase(processor, glob) for glob in self.targets) and bool(
            self.pattern.search(kernel)
        )


@frozen
class KernelRules:
    """Content of `kernel_rules.toml`."""

    only: tuple[KernelRule, ...]
    alike: Mapping[str, tuple[str, ...]]


@functools.cache
def load_rules() -> KernelRules:
    """Load the rules."""
    return read_toml(RULES_FILE, KernelRules, schema=_SCHEMA_VERSION)


def foreign_targets(
    member: str, groups: Iterable[Iterable[str]]
) -> Iterator[tuple[str, ...]]:
    """Yield the processors of a library with equal code that published wheels do not have.

    Args:
        groups: targets with equal machine code.
    """
    known = load_rules().alike["xla" if "xla_rocm" in member else "small"]
    for group in groups:
        names = {name.partition(":")[0] for name in group}
        if len(names) > 1 and not any(names <= {*row.split()} for row in known):
            yield tuple(sorted(names))


def rules_for(wheel_set: WheelSet, member: str) -> tuple[KernelRule, ...]:
    """Return the rules for one library of a set."""
    # A development version has the number of the release that follows it.
    rocm = Version(Version(wheel_set.rocm_version).base_version)
    jax = Version(wheel_set.jax_version)
    return tuple(
        rule
        for rule in load_rules().only
        if rocm in rule.rocm
        and rule.jax.contains(jax, prereleases=True)
        and rule.member.replace("{major}", str(rocm.major)) == member
    )


def missing_kernels(
    registered: Sequence[RegisteredKernels],
    kernels_by_bundle: Mapping[int, Mapping[str, Collection[str]]],
    target: str,
    rules: Sequence[KernelRule],
) -> tuple[str, ...]:
    """Return the registered kernels without code for a target and without an exception, sorted.

    Args:
        registered: registered kernels per bundle.
        kernels_by_bundle: address of a bundle -> target -> kernels with code.
        target: target of the set; code for a generic target that includes it counts
            too.
        rules: rules for this library.
    """
    without_code: set[str] = set()
    for bundle in registered:
        codes = kernels_by_bundle.get(bundle.address, {})
        present: set[str] = set()
        for name, kernels in codes.items():
            if not missing_targets([name], [target]):
                present.update(kernels)
        without_code |= bundle.kernels - present
    for rule in rules:
        without_code -= {
            kernel for kernel in without_code if rule.excuses(kernel, target)
        }
    return tuple(sorted(without_code))
