"""Ledgers of known skips and flakes (`ledgers/*.toml`).

An entry has an owner, a reason and an expiry date. Incomplete entries are refused; expired ones have no effect.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from core.errors import RequestError
from core.targets import load_table

LEDGERS = Path(__file__).with_name("ledgers")
ANY = "any"
PLATFORMS = ("rocm", "cpu", "cuda")
MAX_DAYS = 184
"""Longest period of an entry, after which it must be reviewed."""

_SCHEMA_VERSION = 1
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class KnownTestKind(enum.StrEnum):
    """Ledger of an entry."""

    SKIP = "skips"
    FLAKE = "flakes"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownTest:
    """An entry of a ledger; see `ledgers/skips.toml`.

    Attributes:
        pattern: pattern of node ids with * and ?; without `::`, a pattern of files.
        jax: versions of jax (PEP 440); empty matches any.
        families: exact names; empty matches any.
        opened: first day on which it applies.
        expires: first day on which it no longer applies.
    """

    id: str
    kind: KnownTestKind
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
        """Return why the entry does not apply on a day, as `expired on …`; "" if it applies."""
        if today >= self.expires:
            return f"expired on {self.expires}"
        return f"opens on {self.opened}" if today < self.opened else ""

    def is_for(self, *, jax: str, family: str, platform: str) -> bool:
        """Return whether the entry applies to such a run."""
        return (
            platform in self.platforms
            and (not self.families or family in self.families)
            and self.jax.contains(jax, prereleases=True)
        )

    def matches(self, test: str) -> bool:
        """Return whether the entry matches a test's node id."""
        return re.fullmatch(regex_of(self.pattern), test) is not None

    def as_written(self) -> dict[str, Any]:
        """Return the fields as in the ledger, and the ledger, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        days = {"opened": self.opened.isoformat(), "expires": self.expires.isoformat()}
        return {**values, **days, "jax": str(self.jax) or ANY, "families": self.families or ANY}

    def __str__(self) -> str:
        return f"{self.id} ({self.kind}), by {self.owner}, from {self.opened} until {self.expires}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownTests:
    """Entries that apply to one run.

    Attributes:
        active: entries that apply on the day of the run.
        inactive: entries that have expired or are not open yet.
        today: day of the run, in UTC.
    """

    active: tuple[KnownTest, ...] = ()
    inactive: tuple[KnownTest, ...] = ()
    today: date = date.min

    def of(self, test: str, kind: KnownTestKind) -> KnownTest | None:
        """Return the first active entry of a ledger that matches a test."""
        return next((entry for entry in self.active if entry.kind is kind and entry.matches(test)), None)

    def unmatched(self, tests: Collection[str]) -> tuple[KnownTest, ...]:
        """Return the active entries that match no test of a whole suite."""
        return tuple(entry for entry in self.active if not any(entry.matches(test) for test in tests))

    def inactive_matches(self, tests: Iterable[str]) -> tuple[tuple[KnownTest, int], ...]:
        """Return the inactive entries with the number of these tests that they match, if any."""
        names = [*tests]
        counted = ((entry, sum(entry.matches(test) for test in names)) for entry in self.inactive)
        return tuple((entry, count) for entry, count in counted if count)


def load_entries(folder: Path = LEDGERS) -> tuple[KnownTest, ...]:
    """Return all entries of all ledgers, in order.

    Raises:
        RequestError: all problems of all entries at once.
    """
    entries: list[KnownTest] = []
    problems: list[str] = []
    for kind in KnownTestKind:
        file = folder / f"{kind}.toml"
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(f"Cannot read {file}: {error}.", hint="Its first lines describe the format.") from error
        if tables.pop("schema", None) != _SCHEMA_VERSION or tables.keys() - {"entry"}:
            raise RequestError(
                f"{file} is not a ledger of schema {_SCHEMA_VERSION}.", hint="Its first lines describe the format."
            )
        for number, body in enumerate(tables.get("entry", ()), start=1):
            try:
                entries.append(parse_entry(kind, body))
            except ValueError as error:
                problems.append(f"entry {number} of {file.name} ({body.get('id', 'without id')}): {error}")
    ids = [entry.id for entry in entries]
    problems += [f"there are {ids.count(name)} entries {name}" for name in dict.fromkeys(ids) if ids.count(name) > 1]
    if problems:
        raise RequestError(
            f"The ledgers of tests are invalid: {'; '.join(problems)}.",
            hint=f"{folder.name}/skips.toml describes the fields of an entry.",
        )
    return tuple(entries)


def parse_entry(kind: KnownTestKind, body: Mapping[str, Any]) -> KnownTest:
    """Parse an entry; ValueError describes a missing, unknown or invalid field."""
    required = {field.name for field in fields(KnownTest)} - {"kind"}
    if missing := sorted(required - body.keys()):
        raise ValueError(f"it has no {', '.join(missing)}")
    if unknown := sorted(body.keys() - required):
        raise ValueError(f"it has unknown fields: {', '.join(unknown)}")
    for name in ("id", "pattern", "jax", "reason", "link", "owner"):
        if not isinstance(body[name], str) or not body[name].strip():
            raise ValueError(f"its {name} is not a text")
    if _ID.fullmatch(body["id"]) is None:
        raise ValueError("its id is not made of small letters, digits and hyphens")
    if not body["pattern"].strip("*?:/. "):
        raise ValueError(f"its pattern {body['pattern']!r} matches every test")
    # A datetime is a date too, but the days of an entry are UTC's.
    if any(type(body[name]) is not date for name in ("opened", "expires")):
        raise ValueError("its dates are not like 2026-01-31")
    if not 0 < (body["expires"] - body["opened"]).days <= MAX_DAYS:
        raise ValueError(f"it is not open for 1 to {MAX_DAYS} days")
    families = () if body["families"] == ANY else _names("families", body["families"], load_table().families)
    try:
        versions = SpecifierSet("" if body["jax"] == ANY else body["jax"])
    except InvalidSpecifier as error:
        raise ValueError(f"its jax is not a range of versions: {error}") from error
    platforms = _names("platforms", body["platforms"], PLATFORMS)
    return KnownTest(**{**body, "kind": kind, "jax": versions, "families": families, "platforms": platforms})


def _names(field: str, value: Any, known: Collection[str]) -> tuple[str, ...]:  # noqa: ANN401 - whatever TOML holds
    if not isinstance(value, list) or not value:
        raise ValueError(f"its {field} are not a list of names")
    if unknown := [name for name in value if name not in known]:
        raise ValueError(f"its {field} contain unknown names: {', '.join(map(repr, unknown))}")
    return tuple(value)


def known_tests_for(entries: Iterable[KnownTest], *, jax: str, family: str, platform: str, today: date) -> KnownTests:
    """Return the entries that apply to a run.

    Args:
        entries: all of them.
        jax: version, such as 0.10.2.
        family: exact name; empty if there is none, as on a CPU.
        platform: rocm, cpu or cuda.
        today: day in UTC.
    """
    chosen = [entry for entry in entries if entry.is_for(jax=jax, family=family, platform=platform)]
    return KnownTests(
        active=tuple(entry for entry in chosen if not entry.state(today)),
        inactive=tuple(entry for entry in chosen if entry.state(today)),
        today=today,
    )


def check_run(*, jax: str, family: str) -> None:
    """Check the properties of a run, for which unknown names would silently match no entry.

    Raises:
        RequestError: an unknown family or an invalid version.
    """
    families = load_table().families
    if family and family not in families:
        near = difflib.get_close_matches(family, families) or families
        raise RequestError(f"Unknown family: {family!r}.", hint=f"Did you mean {', '.join(near)}?")
    try:
        Version(jax)
    except InvalidVersion as error:
        raise RequestError(f"Invalid version of jax: {jax!r}.", hint="Give a version like 0.10.2.") from error


def inapplicable_reason(entry: KnownTest, *, jax: str, family: str, platform: str, today: date) -> str:
    """Return why an entry does not apply to a run; "" if it applies."""
    reasons = []
    if platform not in entry.platforms:
        reasons.append(f"it is for {', '.join(entry.platforms)}")
    if entry.families and family not in entry.families:
        reasons.append(f"it is for {', '.join(entry.families)}")
    if not entry.jax.contains(jax, prereleases=True):
        reasons.append(f"it is for jax {entry.jax}")
    if state := entry.state(today):
        reasons.append(f"it {state}")
    return ", and ".join(reasons)


def regex_of(pattern: str) -> str:
    """Return the regular expression of an entry's pattern for whole node ids; without `::`, it matches files."""
    regex = pattern_of(pattern).pattern
    return f"(?s:{regex})" if "::" in pattern else f"(?s:{regex.replace('.*', '[^:]*')}(?:::.*)?)"


@functools.lru_cache(maxsize=4096)
def pattern_of(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of tests, in which only * and ? are special."""
    # Not fnmatch: the brackets of parametrised tests are literal.
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
