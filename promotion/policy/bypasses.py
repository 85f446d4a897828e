"""Bypasses: temporary permissions to promote sets without certain gates.

Incomplete entries are void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from core.model import WheelSet
from promotion.evidence.known_tests import check_entry, period_state

MAX_DAYS = 92
"""Longest duration of a bypass or a waiver. Longer exceptions belong in the policy."""
_T = TypeVar("_T")
_TEXTS = ("owner", "reason", "channel", "index")
_LISTS = ("gates", "targets")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bypass:
    """An entry `[[bypass_tests_for_releases]]` of the policy.

    Attributes:
        owner, reason: responsible person, and reason for the bypass.
        opened: first day on which the bypass is valid (UTC).
        expires: first day on which the bypass is no longer valid (UTC).
        channel, index: channel and index to which the bypass applies.
        gates: names of the bypassed gates.
        targets: gfx targets, or "any" for gates that do not depend on a target.
        set: digest of the bypassed set. Empty if the bypass is for a version.
        version: jax version of the bypassed sets. Empty if the bypass is for one set.
    """

    owner: str
    reason: str
    opened: date
    expires: date
    channel: str
    index: str
    gates: tuple[str, ...]
    targets: tuple[str, ...]
    set: str = ""
    version: str = ""

    def __str__(self) -> str:
        return (
            f"by {self.owner}, from {self.opened} until {self.expires}: {self.reason}"
        )

    def is_for(self, wheel_set: WheelSet) -> bool:
        """Return whether the bypass applies to a set and its index."""
        named = (
            wheel_set.digest == self.set
            if self.set
            else wheel_set.jax_version == self.version
        )
        return named and wheel_set.index == self.index

    def state(self, now: datetime) -> str:
        """Return why the bypass is not valid at a time, as `expired on …`; empty if it is valid."""
        return period_state(now.astimezone(UTC).date(), self.opened, self.expires)

    def covers(self, gate: str, target: str) -> bool:
        """Return whether the bypass applies to a gate for a target."""
        return gate in self.gates and not {target, target.partition(":")[0]}.isdisjoint(
            self.targets
        )


def whole_number(value: Any, *, least: int = 1, most: int = 1_000_000) -> int:  # noqa: ANN401 - any value of TOML
    """Return a value of a TOML file if it is a whole number from `least` to `most`.

    ValueError otherwise.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
    return value


def parse_bypass(body: Mapping[str, Any]) -> Bypass:
    """Parse an entry; ValueError for a missing, unknown or invalid field."""
    about = [name for name in ("set", "version") if name in body]
    check_entry(body, texts=(*_TEXTS, *about), others=_LISTS, most_days=MAX_DAYS)
    if len(about) != 1:
        raise ValueError("exactly one of set and version is required")
    for name in _LISTS:
        listed = body[name]
        if (
            not isinstance(listed, list)
            or not listed
            or not all(isinstance(item, str) and item for item in listed)
        ):
            raise ValueError(f"{name} is not a list of names, or is empty")
    return Bypass(**{**body, **{name: tuple(body[name]) for name in _LISTS}})


def parse_bypasses(bodies: Iterable[Any]) -> tuple[tuple[Bypass, ...], tuple[str, ...]]:
    """Return the valid entries, and a sentence for each void entry."""
    return parse_each(bodies, parse_bypass, "Bypass")


def parse_each(
    bodies: Iterable[Any], parse: Callable[[Mapping[str, Any]], _T], kind: str
) -> tuple[tuple[_T, ...], tuple[str, ...]]:
    """Return the valid entries of a table of the policy, and a sentence for each void entry.

    Args:
        parse: parser of one entry, which raises ValueError if the entry is invalid.
        kind: noun for an entry, such as Bypass.
    """
    good = []
    void = []
    for number, body in enumerate(bodies, start=1):
        try:
            if not isinstance(body, dict):
                raise ValueError("it is not a table")
            good.append(parse(body))
        except ValueError as error:
            void.append(f"{kind} {number} of the policy is void: {error}.")
    return tuple(good), tuple(void)
