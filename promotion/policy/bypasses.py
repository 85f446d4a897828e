"""Bypasses: who lets which gates be passed over, for what, and until when; whatever is not complete does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from core.model import WheelSet

MAX_DAYS = 92
"""A bypass that is open for longer is a policy, and belongs there."""
_TEXTS, _LISTS, _DATES = ("owner", "reason", "channel", "index"), ("gates", "targets"), ("opened", "expires")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bypass:
    """One entry `[[bypass_tests_for_releases]]` of the policy.

    Attributes:
        owner, reason: who answers for it, and why.
        opened: first day on which it counts (UTC).
        expires: first day on which it does not count any more.
        channel, index: where it counts.
        gates: names of the gates that it passes over.
        targets: gfx targets, or "any" for gates that do not depend on one.
        set: digest of the one set that it is for; empty when it is for a version.
        version: the jax version that it is for; empty when it is for a set.
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
        return f"by {self.owner}, from {self.opened} until {self.expires}: {self.reason}"

    def is_for(self, wheel_set: WheelSet) -> bool:
        """Whether it speaks of a set, and of the set's index."""
        named = wheel_set.digest == self.set if self.set else wheel_set.jax_version == self.version
        return named and wheel_set.index == self.index

    def state(self, now: datetime) -> str:
        """Why it does not count at a time, as `expired on …`; empty when it does."""
        today = now.astimezone(UTC).date()
        if today >= self.expires:
            return f"expired on {self.expires}"
        return f"opens on {self.opened}" if today < self.opened else ""

    def covers(self, gate: str, target: str) -> bool:
        """Whether it passes over a gate's word on a target."""
        return gate in self.gates and target in self.targets


def parse_bypass(body: Mapping[str, Any]) -> Bypass:
    """Read an entry; ValueError says what it lacks or has too much."""
    wanted = {*_TEXTS, *_LISTS, *_DATES}
    if missing := sorted(wanted - body.keys()):
        raise ValueError(f"it has no {', '.join(missing)}")
    if ("set" in body) == ("version" in body):
        raise ValueError("it names not exactly one of set and version")
    if unknown := sorted(body.keys() - wanted - {"set", "version"}):
        raise ValueError(f"it has {', '.join(unknown)}, which nobody knows")
    for name in (*_TEXTS, *({"set", "version"} & body.keys())):
        if not isinstance(body[name], str) or not body[name].strip():
            raise ValueError(f"its {name} is no text")
    for name in _LISTS:
        listed = body[name]
        if not isinstance(listed, list) or not listed or not all(isinstance(item, str) and item for item in listed):
            raise ValueError(f"its {name} are no list of names")
    # A datetime is a date too, but the days of an entry are UTC's.
    if any(type(body[name]) is not date for name in _DATES):
        raise ValueError("its dates are not like 2026-01-31")
    if not 0 < (body["expires"] - body["opened"]).days <= MAX_DAYS:
        raise ValueError(f"it is not open for 1 to {MAX_DAYS} days")
    return Bypass(**{**body, **{name: tuple(body[name]) for name in _LISTS}})


def parse_bypasses(bodies: Iterable[Any]) -> tuple[tuple[Bypass, ...], tuple[str, ...]]:
    """The complete entries, and a sentence on each that is not complete."""
    good, void = [], []
    for number, body in enumerate(bodies, start=1):
        try:
            if not isinstance(body, dict):
                raise ValueError("it is no table")
            good.append(parse_bypass(body))
        except ValueError as error:
            void.append(f"Bypass {number} of the policy does not count: {error}.")
    return tuple(good), tuple(void)
