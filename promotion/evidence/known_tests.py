"""Exemptions of tests, and those tests that are not run: `ledgers/skips.toml`.

Each entry of this ledger has an owner, a reason and an expiry date. Incomplete entries are
refused and expired ones are ignored. Exceptions for failing tests are part of the policy.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import field, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from packaging.specifiers import SpecifierSet

from core.errors import FormatError
from core.frozen import frozen
from core.records import read_toml
from core.targets import load_table

SKIPS = Path(__file__).with_name("ledgers") / "skips.toml"
ANY = "any"
Platform = Literal["rocm", "cpu", "cuda"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)

_SCHEMA_VERSION = 1


@frozen
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
        for own in fields(self):
            value = getattr(self, own.name)
            texts = value if isinstance(value, tuple) else (value,)
            blank = not texts or any(
                isinstance(x, str) and not x.strip() for x in texts
            )
            if blank and own.name not in self.OPTIONAL:
                raise ValueError(f"{own.name} is empty")
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
        values = {own.name: getattr(self, own.name) for own in fields(self)}
        days = {"opened": self.opened.isoformat(), "expires": self.expires.isoformat()}
        return {**values, **days}


@frozen
class KnownTest(Exemption):
    """An entry of the ledger; see `ledgers/skips.toml`.

    Attributes:
        pattern: pattern of node ids, or of files if it has no `::`; the only wildcards
            are * and ?.
        jax: versions of jax to which the entry applies (PEP 440). Empty means any.
        families: exact names of families. Empty means any.
    """

    MAX_DAYS = 184
    OPTIONAL = frozenset({"families"})

    id: str
    pattern: str
    platforms: tuple[Platform, ...]
    link: str
    jax: SpecifierSet = field(default_factory=SpecifierSet)
    families: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Exemption.__post_init__(self)
        check_pattern(self.pattern)
        unknown = set(self.families) - set(load_table().families)
        if unknown:
            raise ValueError(f"unknown families: {', '.join(sorted(unknown))}")

    def is_for(self, *, jax: str, family: str, platform: str) -> bool:
        """Return whether the entry applies to a run."""
        return (
            platform in self.platforms
            and (not self.families or family in self.families)
            and self.jax.contains(jax, prereleases=True)
        )

    def matches(self, test: str) -> bool:
        """Return whether the entry applies to a node id."""
        return re.fullmatch(regex_of(self.pattern), test) is not None

    def __str__(self) -> str:
        return f"{self.id}, {Exemption.__str__(self)}"


@frozen
class _Ledger:
    """Content of `skips.toml`."""

    entry: tuple[KnownTest, ...] = ()


@frozen
class KnownTests:
    """The entries for one run.

    Attributes:
        active: the valid entries.
        over: entries that have expired or are not yet valid.
        today: the day of the run.
    """

    active: tuple[KnownTest, ...] = ()
    over: tuple[KnownTest, ...] = ()
    today: date = date.min

    def missed(self, tests: Iterable[str]) -> tuple[tuple[KnownTest, int], ...]:
        """Return each invalid entry that matches tests, with the number of matches."""
        named = [*tests]
        counted = [(entry, sum(map(entry.matches, named))) for entry in self.over]
        return tuple(row for row in counted if row[1])


def load_entries(file: Path = SKIPS) -> tuple[KnownTest, ...]:
    """Return every entry of the ledger, in order.

    Raises:
        FormatError: an entry is invalid, or two entries have the same id.
    """
    hint = "See the comment at the top of the file."
    entries = read_toml(file, _Ledger, schema=_SCHEMA_VERSION, hint=hint).entry
    for name, count in Counter(entry.id for entry in entries).items():
        if count > 1:
            raise FormatError(f"{file}: {count} entries have the id {name}.", hint=hint)
    return entries


def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern that matches every test."""
    if not pattern.strip("*?:/. "):
        raise ValueError(f"{pattern!r} matches every test")


def known_tests_for(
    entries: Iterable[KnownTest], *, jax: str, family: str, platform: str, today: date
) -> KnownTests:
    """Return the entries for a run.

    Args:
        jax: version of jax, such as 0.10.2.
        family: exact name of the family, or empty on a CPU.
        platform: rocm, cpu or cuda.
        today: day of the run in UTC.
    """
    active: list[KnownTest] = []
    over: list[KnownTest] = []
    for entry in entries:
        if entry.is_for(jax=jax, family=family, platform=platform):
            (over if entry.state(today) else active).append(entry)
    return KnownTests(active=tuple(active), over=tuple(over), today=today)


def regex_of(pattern: str) -> str:
    """Return the regular expression that matches whole node ids for a pattern.

    A pattern without `::` matches files.
    """
    regex = pattern_of(pattern).pattern
    return (
        f"(?s:{regex})"
        if "::" in pattern
        else f"(?s:{regex.replace('.*', '[^:]*')}(?:::.*)?)"
    )


@functools.lru_cache(maxsize=4096)
def pattern_of(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern in which * and ? are wildcards."""
    # Not fnmatch, which would interpret the brackets in the node ids of parametrised
    # tests.
    return re.compile(
        re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL
    )
