"""Exceptions from the rule that each registered kernel has code for all targets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from core.errors import RequestError
from core.model import GfxTarget, WheelSet
from promotion.policy.set_rules import missing_targets
from wheelkit.gpu.registration import RegisteredKernels

RULES_FILE = Path(__file__).with_suffix(".toml")
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRule:
    """One entry of `kernel_rules.toml`, which documents the fields."""

    rocm: SpecifierSet
    jax: SpecifierSet
    member: str
    pattern: re.Pattern[str]
    targets: tuple[str, ...]
    reason: str

    def excuses(self, kernel: str, target: str) -> bool:
        """Report whether the rule allows a target to lack a kernel."""
        processor = GfxTarget.parse(target).processor
        return not any(fnmatchcase(processor, glob) for glob in self.targets) and bool(
            self.pattern.search(kernel)
        )


def load_rules(file: Path = RULES_FILE) -> tuple[KernelRule, ...]:
    """Load the rules.

    Raises:
        RequestError: a field is missing, unknown or of the wrong type.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        if data.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        rules = tuple(_rule(**row) for row in data.pop("only"))
        if data:
            raise ValueError(f"unknown keys: {', '.join(data)}")
    except (KeyError, TypeError, ValueError, InvalidSpecifier, re.error) as error:
        raise RequestError(
            f"Cannot load {file}: {error}.",
            hint="Fix the file; its first lines document the fields.",
        ) from error
    return rules


def _rule(
    *,
    member: str,
    pattern: str,
    targets: list[str],
    reason: str,
    rocm: str = "",
    jax: str = "",
) -> KernelRule:
    if not (targets and reason):
        raise ValueError("each entry needs targets and a reason")
    return KernelRule(
        rocm=SpecifierSet(rocm),
        jax=SpecifierSet(jax, prereleases=True),
        member=member,
        pattern=re.compile(pattern),
        targets=tuple(targets),
        reason=reason,
    )


def rules_for(
    rules: Iterable[KernelRule], wheel_set: WheelSet, member: str
) -> tuple[KernelRule, ...]:
    """Return the rules for one library of a set."""
    # A development version has the number of the release that follows it.
    rocm = Version(Version(wheel_set.rocm_version).base_version)
    jax = Version(wheel_set.jax_version)
    return tuple(
        rule
        for rule in rules
        if rocm in rule.rocm
        and jax in rule.jax
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
        present = {
            kernel
            for name, kernels in codes.items()
            if not missing_targets([name], [target])
            for kernel in kernels
        }
        without_code |= bundle.kernels - present
    return tuple(
        sorted(
            kernel
            for kernel in without_code
            if not any(rule.excuses(kernel, target) for rule in rules)
        )
    )
