"""Tests that are not run: the ledger of skips (`ledgers/skips.toml`).

Each entry has an owner, a reason and an expiry date. Incomplete entries are refused and
expired ones are ignored. Waivers of flaky tests are part of the policy.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.errors import RequestError
from core.targets import load_table

SKIPS = Path(__file__).with_name("ledgers") / "skips.toml"
ANY = "any"
PLATFORMS = ("rocm", "cpu", "cuda")
MAX_DAYS = 184
"""Longest duration of an entry before it must be reviewed."""

_SCHEMA_VERSION = 1
_HINT = "See the comment at the top of the file."
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownTest:
    """An entry of the ledger; see `ledgers/skips.toml`.

    Attributes:
        pattern: pattern of node ids, or of files if it has no `::`; the only wildcards
            are * and ?.
        jax: versions of jax to which the entry applies (PEP 440). Empty means any.
        families: exact names of families. Empty means any.
        opened: first day on which the entry is valid.
        expires: first day on which the entry is no longer valid.
    """

    id: str
    pattern: str
    jax: SpecifierSet
    families: tuple[str, ...]
    platforms: tuple[str, ...]
    reason: str
    link: str
    owner: str
    opened: date
    expires: date

    def state(self, today: date) -> str:
        """Return why the entry is not valid on a day, as `expired on …`; empty if it is valid."""
        return period_state(today, self.opened, self.expires)

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

    def as_written(self) -> dict[str, Any]:
        """Return the fields of the entry as in the ledger, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        days = {"opened": self.opened.isoformat(), "expires": self.expires.isoformat()}
        return {
            **values,
            **days,
            "jax": str(self.jax) or ANY,
            "families": self.families or ANY,
        }

    def __str__(self) -> str:
        return (
            f"{self.id}, by {self.owner}, from {self.opened} until {self.expires}:"
            f" {self.reason}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
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

    def idle(self, tests: Collection[str]) -> tuple[KnownTest, ...]:
        """Return the valid entries that match no test of a complete suite."""
        unmatched = []
        for entry in self.active:
            if not any(entry.matches(test) for test in tests):
                unmatched.append(entry)
        return tuple(unmatched)

    def missed(self, tests: Iterable[str]) -> tuple[tuple[KnownTest, int], ...]:
        """Return each invalid entry that matches tests, with the number of matches."""
        named = [*tests]
        counted = []
        for entry in self.over:
            matches = sum(entry.matches(test) for test in named)
            if matches:
                counted.append((entry, matches))
        return tuple(counted)


def load_entries(file: Path = SKIPS) -> tuple[KnownTest, ...]:
    """Return every entry of the ledger, in order.

    Raises:
        RequestError: an entry is invalid. The message lists all problems.
    """
    entries: list[KnownTest] = []
    problems: list[str] = []
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(
            f"{file} cannot be read: {error}.",
            hint="See the comment at the top of the file.",
        ) from error
    if tables.pop("schema", None) != _SCHEMA_VERSION or tables.keys() - {"entry"}:
        raise RequestError(
            f"{file} is not a ledger of schema {_SCHEMA_VERSION}.", hint=_HINT
        )
    for number, body in enumerate(tables.get("entry", ()), start=1):
        try:
            entries.append(parse_entry(body))
        except ValueError as error:
            problems.append(
                f"entry {number} of {file.name} ({body.get('id', 'without id')}):"
                f" {error}"
            )
    ids = [entry.id for entry in entries]
    problems += [
        f"{ids.count(name)} entries have the id {name}"
        for name in dict.fromkeys(ids)
        if ids.count(name) > 1
    ]
    if problems:
        raise RequestError(f"{file} is invalid: {'; '.join(problems)}.", hint=_HINT)
    return tuple(entries)


def parse_entry(body: Mapping[str, Any]) -> KnownTest:
    """Parse an entry; ValueError for a missing, unknown or invalid field."""
    texts = ("id", "pattern", "jax", "reason", "link", "owner")
    check_entry(body, texts=texts, others=("families", "platforms"), most_days=MAX_DAYS)
    if _ID.fullmatch(body["id"]) is None:
        raise ValueError("id must consist of lower-case letters, digits and hyphens")
    if not body["pattern"].strip("*?:/. "):
        raise ValueError(f"pattern {body['pattern']!r} matches every test")
    families = (
        ()
        if body["families"] == ANY
        else _names("families", body["families"], load_table().families)
    )
    try:
        versions = SpecifierSet("" if body["jax"] == ANY else body["jax"])
    except InvalidSpecifier as error:
        raise ValueError(f"jax is not a range of versions: {error}") from error
    platforms = _names("platforms", body["platforms"], PLATFORMS)
    return KnownTest(
        **{**body, "jax": versions, "families": families, "platforms": platforms}
    )


def check_entry(
    body: Mapping[str, Any],
    *,
    texts: Collection[str],
    others: Collection[str],
    most_days: int,
) -> None:
    """Check the fields of an entry with an expiry date, such as a known failure or a bypass.

    Args:
        texts: names of the fields that are texts.
        others: names of further fields besides `opened` and `expires`.
        most_days: maximum number of days from `opened` to `expires`.

    Raises:
        ValueError: a field is missing, unknown or invalid.
    """
    required = {*texts, *others, "opened", "expires"}
    if missing := sorted(required - body.keys()):
        raise ValueError(f"{', '.join(missing)} is missing")
    if unknown := sorted(body.keys() - required):
        raise ValueError(f"{', '.join(unknown)} is unknown")
    for name in texts:
        if not isinstance(body[name], str) or not body[name].strip():
            raise ValueError(f"{name} is not a text")
    # isinstance would accept a datetime, but the dates of an entry are days in UTC.
    if any(type(body[name]) is not date for name in ("opened", "expires")):
        raise ValueError("opened and expires must be dates such as 2026-01-31")
    if not 0 < (body["expires"] - body["opened"]).days <= most_days:
        raise ValueError(f"expires must be 1 to {most_days} days after opened")


def period_state(day: date, opened: date, expires: date) -> str:
    """Return why an entry is not valid on a day, as `expired on …`; empty if it is valid."""
    if day >= expires:
        return f"expired on {expires}"
    return f"opens on {opened}" if day < opened else ""


def _names(field: str, value: Any, known: Collection[str]) -> tuple[str, ...]:  # noqa: ANN401 - any value of TOML
    if not isinstance(value, list) or not value:
        raise ValueError(f"{field} is not a list of names, or is empty")
    if unknown := [name for name in value if name not in known]:
        raise ValueError(f"{field} has unknown names: {', '.join(map(repr, unknown))}")
    return tuple(value)


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
    chosen = [
        entry
        for entry in entries
        if entry.is_for(jax=jax, family=family, platform=platform)
    ]
    return KnownTests(
        active=tuple(entry for entry in chosen if not entry.state(today)),
        over=tuple(entry for entry in chosen if entry.state(today)),
        today=today,
    )


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
