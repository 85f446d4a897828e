"""Exemptions from tests or gates, which have an owner, a reason and an expiry date."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Exemption:
    """A skipped test, or an exception of the policy.

    Attributes:
        owner, reason: responsible person, and reason for the exemption.
        opened: first day on which the exemption is valid (UTC).
        expires: first day on which the exemption is no longer valid (UTC).
    """

    MAX_DAYS: ClassVar[int] = 92
    """Longest duration. Longer exemptions belong in the policy."""
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    """Fields that may be empty."""

    owner: str
    reason: str
    opened: date
    expires: date

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            texts = value if isinstance(value, tuple) else (value,)
            blank = not texts or any(
                isinstance(x, str) and not x.strip() for x in texts
            )
            if blank and field.name not in self.OPTIONAL:
                raise ValueError(f"{field.name} is empty")
        if not 0 < (self.expires - self.opened).days <= self.MAX_DAYS:
            raise ValueError(f"expires must be 1 to {self.MAX_DAYS} days after opened")

    def __str__(self) -> str:
        return (
            f"by {self.owner}, from {self.opened} until {self.expires}: {self.reason}"
        )

    def state(self, when: date) -> str:
        """Return why the exemption is not valid at a time, as `expired on …`; empty if it is."""
        day = when.astimezone(UTC).date() if isinstance(when, datetime) else when
        if day >= self.expires:
            return f"expired on {self.expires}"
        return f"opens on {self.opened}" if day < self.opened else ""

    def as_written(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        days = {"opened": self.opened.isoformat(), "expires": self.expires.isoformat()}
        return {**values, **days}
