"""The requirements of a policy for single gates, and their exceptions for gfx targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from itertools import chain
from typing import Any, Literal

from core.errors import CiBuildError
from core.frozen import frozen
from core.model import TIER_ORDER, Tier, WheelSet
from core.targets import expand, lists
from promotion.evidence.evidence import ANY

_FOR_TARGETS = {"min_passed", "max_skipped", "known_failures", "settings"}
"""Requirements of a gate that may differ between targets."""
_ALL = 100
"""Percent of all checks."""


def at_least(tier: str, required: Tier) -> bool:
    """Return whether a tier, or "none", is at least as strong as `required`.

    A tier outside of TIER_ORDER matches only itself.
    """
    if tier not in TIER_ORDER or required not in TIER_ORDER:
        return tier == required
    return TIER_ORDER.index(Tier(tier)) >= TIER_ORDER.index(required)


@frozen
class EvidenceKey:
    """A public key whose evidence counts.

    Attributes:
        key: the key in OpenSSH format, without comment.
        gates: gates whose evidence it may sign; empty means all.
        targets: gfx targets for which it may sign; empty means all, and evidence that
            does not depend on a target.
    """

    key: str
    gates: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def may_sign(self, gate: str, target: str) -> bool:
        """Return whether the key may sign evidence of a gate for a target."""
        return (not self.gates or gate in self.gates) and (
            not self.targets
            or not {target, target.partition(":")[0]}.isdisjoint(self.targets)
        )


@frozen
class GateRule:
    """The requirements for one gate; see `policy.toml`.

    Attributes:
        targets: gfx target -> the requirements for this target instead.
    """

    version: int
    tier: Tier
    per: Literal["set", "target", "xla-target", "tier"]
    min_passed: int | Literal["wheels", "device-members"]
    max_skipped: int
    known_failures: int | tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, GateRule] = field(default_factory=dict)

    def of(self, target: str) -> GateRule:
        """Return the requirements for a gfx target.

        An entry without features applies to all features.
        """
        return self.targets.get(
            target, self.targets.get(target.partition(":")[0], self)
        )

    def __post_init__(self) -> None:
        if isinstance(self.min_passed, int) and self.min_passed < 1:
            raise ValueError("min_passed is below 1")
        if not 0 <= self.max_skipped <= _ALL:
            raise ValueError("max_skipped is not a percentage")

    def required_targets(
        self, wheel_set: WheelSet, tier_of: Callable[[str], Tier]
    ) -> tuple[str, ...]:
        """Return the targets for which the gate needs evidence.

        Args:
            tier_of: returns the required tier of a target.
        """
        match self.per:
            case "set":
                return (ANY,)
            case "target":
                return wheel_set.targets
            case "tier":
                return tuple(
                    target
                    for target in wheel_set.targets
                    if at_least(tier_of(target), self.tier)
                )
            case _:
                accepted = lists()["compiler-supported"]
                return tuple(
                    target
                    for target in wheel_set.targets
                    if target.partition(":")[0] in accepted
                )

    def least(self, wheel_set: WheelSet) -> int:
        """Return the minimum number of passed checks for each target."""
        match self.min_passed:
            case "wheels":
                return max(1, len(wheel_set.wheels))
            case "device-members":
                members = chain.from_iterable(
                    wheel.members for wheel in wheel_set.wheels
                )
                return max(1, sum(bool(member.targets) for member in members))
            case number:
                return number


def with_targets(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a gate with one complete table for each target in `targets`.

    Raises:
        ValueError: a target is unknown, or has values that cannot differ.
    """
    exceptions = rule.get("targets", {})
    common = {name: value for name, value in rule.items() if name != "targets"}
    by_target: dict[str, dict[str, Any]] = {}
    # The values of a target replace those of its family.
    for word in sorted(exceptions, key=lambda one: -len(expanded([one]))):
        misplaced = set(exceptions[word]) - _FOR_TARGETS
        if misplaced:
            names = ", ".join(sorted(misplaced))
            raise ValueError(f"{names} cannot differ between the targets of a gate")
        for target in expanded([word]):
            by_target[target] = merged(by_target.get(target, common), exceptions[word])
    return {**common, "targets": by_target}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; other values are replaced."""
    both = {
        key: (
            merged(base[key], value)
            if isinstance(value, dict) and isinstance(base.get(key), dict)
            else value
        )
        for key, value in over.items()
    }
    return {**base, **both}


def expanded(words: Iterable[str]) -> tuple[str, ...]:
    """Return the gfx targets of a list of targets and families; ValueError for an unknown word."""
    listed = [*words]
    try:
        return tuple(map(str, expand(listed))) if listed else ()
    except CiBuildError as error:
        raise ValueError(error.message) from error
