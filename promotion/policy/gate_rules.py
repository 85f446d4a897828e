"""The requirements of a policy for single gates, and their exceptions for gfx targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.errors import CiBuildError, RequestError
from core.model import TIER_ORDER, Tier, WheelSet
from core.targets import expand, lists
from promotion.evidence.evidence import ANY
from promotion.policy.families import GATE, IMAGE

if TYPE_CHECKING:  # the policy consists of these rules
    from promotion.policy.promotion_policy import Policy

_FOR_TARGETS = {"min_passed", "may_skip", "known_failures", "settings"}
"""Requirements of a gate that may differ between targets."""


def at_least(tier: Tier | None, required: Tier) -> bool:
    """Return whether a tier is at least as strong as `required`.

    A tier outside of TIER_ORDER matches only itself.
    """
    if tier not in TIER_ORDER or required not in TIER_ORDER:
        return tier is required
    return TIER_ORDER.index(tier) >= TIER_ORDER.index(required)


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRule:
    """The requirements for one gate; see `policy.toml`.

    Attributes:
        targets: gfx target -> the requirements for this target instead.
    """

    tier: Tier
    per: str
    min_passed: int | str
    may_skip: bool
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
        least = self.min_passed
        known_failures = self.known_failures
        good = (
            self.per in ("set", "target", "xla-target", "tier")
            and (
                least in ("wheels", "device-members")
                or (type(least) is int and least > 0)
            )
            and type(self.may_skip) is bool
            and (
                _is_strings(known_failures)
                if isinstance(known_failures, tuple)
                else type(known_failures) is int and known_failures >= 0
            )
            and _is_strings(tuple(self.settings.values()))
        )
        if not good:
            raise RequestError(
                f"policy.toml has an invalid gate: {self}.",
                hint="See the comment at the top of the file.",
            )

    def about(self, wheel_set: WheelSet, policy: Policy) -> tuple[str, ...]:
        """Return the targets for which the gate needs evidence."""
        match self.per:
            case "set":
                return (ANY,)
            case "target":
                return wheel_set.targets
            case "tier":
                return tuple(
                    target
                    for target in wheel_set.targets
                    if at_least(policy.required_tier(target), self.tier)
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
                return max(
                    1,
                    sum(
                        bool(member.targets)
                        for wheel in wheel_set.wheels
                        for member in wheel.members
                    ),
                )
            case int(number):
                return number
            case other:
                raise AssertionError(f"GateRule accepted {other!r}")


def parse_gate(name: str, body: Mapping[str, Any]) -> GateRule:
    """Parse the requirements for a gate; KeyError, TypeError or ValueError if they are invalid.

    An image is required by its digest, and only of the gate that runs in one.
    """
    rule = _gate(body)
    for one in (rule, *rule.targets.values()):
        image = one.settings.get("image", "")
        if image and (name != GATE or not IMAGE.fullmatch(image)):
            raise ValueError(
                f"settings of the gate {name} has the image {image!r}; only {GATE} has"
                " one: NAME@sha256:…"
            )
    return rule


def _gate(rule: Mapping[str, Any]) -> GateRule:
    known_failures = rule["known_failures"]
    exceptions = rule.get("targets", {})
    common = {name: value for name, value in rule.items() if name != "targets"}
    if (
        misplaced := {name for changes in exceptions.values() for name in changes}
        - _FOR_TARGETS
    ):
        raise ValueError(
            f"{', '.join(sorted(misplaced))} cannot differ between the targets of a"
            " gate"
        )
    by_target: dict[str, dict[str, Any]] = {}
    # The values of a target replace those of its family.
    for word in sorted(
        exceptions, key=lambda word: len(expanded([word])), reverse=True
    ):
        for target in expanded([word]):
            by_target[target] = merged(by_target.get(target, common), exceptions[word])
    return GateRule(
        **{
            **common,
            "tier": Tier(rule["tier"]),
            "known_failures": (
                strings(known_failures)
                if isinstance(known_failures, list)
                else known_failures
            ),
            "targets": {target: _gate(values) for target, values in by_target.items()},
        }
    )


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


def strings(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any value of TOML
    """Return a list of strings as a tuple; ValueError for another value."""
    if not isinstance(value, list) or not _is_strings(tuple(value)):
        raise ValueError(f"{value!r} is not a list of strings")
    return tuple(value)


def _is_strings(values: tuple[Any, ...]) -> bool:
    return all(isinstance(item, str) for item in values)
