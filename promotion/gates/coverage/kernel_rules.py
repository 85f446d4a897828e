"""Which registered kernels a target must have code for: all, but for what `kernel_rules.toml` names with a reason."""

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
from core.model import GfxTarget, RocmVersion, WheelSet
from promotion.policy.set_rules import missing_targets
from wheelkit.gpu.registration import RegisteredKernels

RULES_FILE = Path(__file__).with_suffix(".toml")
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRule:
    """One entry of the file; see its first lines."""

    jax: SpecifierSet
    member: str
    pattern: re.Pattern[str]
    targets: tuple[str, ...]
    reason: str

    def excuses(self, kernel: str, target: str) -> bool:
        """Whether a target need not have a kernel."""
        processor = GfxTarget.parse(target).processor
        return not any(fnmatchcase(processor, glob) for glob in self.targets) and bool(self.pattern.search(kernel))


def load_rules(file: Path = RULES_FILE) -> tuple[KernelRule, ...]:
    """Read the file.

    Raises:
        RequestError: a field that is missing, unknown or of the wrong kind.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        if data.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        rules = tuple(_rule(**row) for row in data.pop("only"))
        if data:
            raise ValueError(f"{', '.join(data)} is not known")
    except (KeyError, TypeError, ValueError, InvalidSpecifier, re.error) as error:
        raise RequestError(f"{file} cannot be used: {error}.", hint="Its first lines say what it may hold.") from error
    return rules


def _rule(*, jax: str, member: str, pattern: str, targets: list[str], reason: str) -> KernelRule:
    if not (targets and reason):
        raise ValueError("each entry needs targets and a reason")
    return KernelRule(
        jax=SpecifierSet(jax, prereleases=True), member=member, pattern=re.compile(pattern),
        targets=tuple(targets), reason=reason,
    )  # fmt: skip


def rules_for(rules: Iterable[KernelRule], wheel_set: WheelSet, member: str) -> tuple[KernelRule, ...]:
    """The rules for one library of a set."""
    major, jax = RocmVersion(text=wheel_set.rocm_version).major, Version(wheel_set.jax_version)
    return tuple(rule for rule in rules if jax in rule.jax and rule.member.replace("{major}", str(major)) == member)


def missing(
    registered: Sequence[RegisteredKernels],
    held: Mapping[int, Mapping[str, Collection[str]]],
    target: str,
    rules: Sequence[KernelRule],
) -> tuple[str, ...]:
    """Registered kernels that have no code for a target and no excuse, sorted.

    Args:
        registered: what the host code registers, per bundle.
        held: address of a bundle -> target -> kernels that it has code for.
        target: a target of the set; code of a generic target that covers it counts.
        rules: those for this library.
    """
    found: set[str] = set()
    for bundle in registered:
        codes = held.get(bundle.address, {})
        there = {
            kernel for name, kernels in codes.items() if not missing_targets([name], [target]) for kernel in kernels
        }
        found |= bundle.kernels - there
    return tuple(sorted(kernel for kernel in found if not any(rule.excuses(kernel, target) for rule in rules)))
