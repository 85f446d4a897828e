"""What is known of single tests before they run: the ledgers of skips and flakes (`ledgers/*.toml`).

An entry has an owner, a reason and an end; whatever is not complete is refused, and whatever is over does nothing.
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
"""What is known for longer has to be looked at again."""

_SCHEMA_VERSION = 1
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class KnownTestKind(enum.StrEnum):
    """Which ledger an entry is in."""

    SKIP = "skips"
    FLAKE = "flakes"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownTest:
    """One entry of a ledger; see `ledgers/skips.toml`.

    Attributes:
        pattern: of node ids, with * and ? only; without `::` of files.
        jax: versions that it is for (PEP 440); empty is any.
        families: exact names; empty is any.
        opened: first day on which it counts.
        expires: first day on which it does not count any more.
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
        """Why it does not count on a day, as `expired on …`; empty when it does."""
        if today >= self.expires:
            return f"expired on {self.expires}"
        return f"opens on {self.opened}" if today < self.opened else ""

    def is_for(self, *, jax: str, family: str, platform: str) -> bool:
        """Whether it speaks of such a run."""
        return (
            platform in self.platforms
            and (not self.families or family in self.families)
            and self.jax.contains(jax, prereleases=True)
        )

    def matches(self, test: str) -> bool:
        """Whether it speaks of a test, by its node id."""
        return re.fullmatch(regex_of(self.pattern), test) is not None

    def as_written(self) -> dict[str, Any]:
        """Its fields as its ledger has them, and which one that is: JSON values."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        days = {"opened": self.opened.isoformat(), "expires": self.expires.isoformat()}
        return {**told, **days, "jax": str(self.jax) or ANY, "families": self.families or ANY}

    def __str__(self) -> str:
        return f"{self.id} ({self.kind}), by {self.owner}, from {self.opened} until {self.expires}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownTests:
    """The entries that speak of one run.

    Attributes:
        active: those that count on its day.
        over: those that would, but whose time is over, or has not come.
        today: the day.
    """

    active: tuple[KnownTest, ...] = ()
    over: tuple[KnownTest, ...] = ()
    today: date = date.min

    def of(self, test: str, kind: KnownTestKind) -> KnownTest | None:
        """The first entry of a ledger that counts for a test."""
        return next((entry for entry in self.active if entry.kind is kind and entry.matches(test)), None)

    def idle(self, tests: Collection[str]) -> tuple[KnownTest, ...]:
        """Entries that match none of the tests of a whole suite: they can go."""
        return tuple(entry for entry in self.active if not any(entry.matches(test) for test in tests))

    def missed(self, tests: Iterable[str]) -> tuple[tuple[KnownTest, int], ...]:
        """Entries whose time is over, each with how many of these tests it would have spoken of."""
        named = [*tests]
        counted = ((entry, sum(entry.matches(test) for test in named)) for entry in self.over)
        return tuple((entry, count) for entry, count in counted if count)


def load_entries(folder: Path = LEDGERS) -> tuple[KnownTest, ...]:
    """Every entry of every ledger, in order.

    Raises:
        RequestError: all problems of all entries at once.
    """
    found: list[KnownTest] = []
    problems: list[str] = []
    for kind in KnownTestKind:
        file = folder / f"{kind}.toml"
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(
                f"{file} cannot be read: {error}.", hint="Its first lines say what it may hold."
            ) from error
        if tables.pop("schema", None) != _SCHEMA_VERSION or tables.keys() - {"entry"}:
            raise RequestError(
                f"{file} is no ledger of schema {_SCHEMA_VERSION}.", hint="Its first lines say what it may hold."
            )
        for number, body in enumerate(tables.get("entry", ()), start=1):
            try:
                found.append(parse_entry(kind, body))
            except ValueError as error:
                problems.append(f"entry {number} of {file.name} ({body.get('id', 'without id')}): {error}")
    ids = [entry.id for entry in found]
    problems += [f"there are {ids.count(name)} entries {name}" for name in dict.fromkeys(ids) if ids.count(name) > 1]
    if problems:
        raise RequestError(
            f"The ledgers of tests cannot be used: {'; '.join(problems)}.",
            hint=f"{folder.name}/skips.toml says what an entry holds.",
        )
    return tuple(found)


def parse_entry(kind: KnownTestKind, body: Mapping[str, Any]) -> KnownTest:
    """Read an entry; ValueError says what it lacks or has too much."""
    wanted = {field.name for field in fields(KnownTest)} - {"kind"}
    if missing := sorted(wanted - body.keys()):
        raise ValueError(f"it has no {', '.join(missing)}")
    if unknown := sorted(body.keys() - wanted):
        raise ValueError(f"it has {', '.join(unknown)}, which nobody knows")
    for name in ("id", "pattern", "jax", "reason", "link", "owner"):
        if not isinstance(body[name], str) or not body[name].strip():
            raise ValueError(f"its {name} is no text")
    if _ID.fullmatch(body["id"]) is None:
        raise ValueError("its id is not of small letters, digits and hyphens")
    if not body["pattern"].strip("*?:/. "):
        raise ValueError(f"its pattern {body['pattern']!r} stands for every test")
    # A datetime is a date too, but the days of an entry are UTC's.
    if any(type(body[name]) is not date for name in ("opened", "expires")):
        raise ValueError("its dates are not like 2026-01-31")
    if not 0 < (body["expires"] - body["opened"]).days <= MAX_DAYS:
        raise ValueError(f"it is not open for 1 to {MAX_DAYS} days")
    families = () if body["families"] == ANY else _names("families", body["families"], load_table().families)
    try:
        versions = SpecifierSet("" if body["jax"] == ANY else body["jax"])
    except InvalidSpecifier as error:
        raise ValueError(f"its jax is no range of versions: {error}") from error
    platforms = _names("platforms", body["platforms"], PLATFORMS)
    return KnownTest(**{**body, "kind": kind, "jax": versions, "families": families, "platforms": platforms})


def _names(field: str, value: Any, known: Collection[str]) -> tuple[str, ...]:  # noqa: ANN401 - whatever TOML holds
    if not isinstance(value, list) or not value:
        raise ValueError(f"its {field} are no list of names")
    if unknown := [name for name in value if name not in known]:
        raise ValueError(f"its {field} hold {', '.join(map(repr, unknown))}, which nobody knows")
    return tuple(value)


def known_tests_for(entries: Iterable[KnownTest], *, jax: str, family: str, platform: str, today: date) -> KnownTests:
    """The entries that speak of a run.

    Args:
        entries: all of them.
        jax: version, such as 0.10.2.
        family: exact name; empty where there is none, as on a CPU.
        platform: rocm, cpu or cuda.
        today: a day of UTC.
    """
    chosen = [entry for entry in entries if entry.is_for(jax=jax, family=family, platform=platform)]
    return KnownTests(
        active=tuple(entry for entry in chosen if not entry.state(today)),
        over=tuple(entry for entry in chosen if entry.state(today)),
        today=today,
    )


def check_run(*, jax: str, family: str) -> None:
    """Refuse words that no run could have: what is known of it would seem to be nothing.

    Raises:
        RequestError: a family that is not spelled as in core/targets.toml, or no version.
    """
    families = load_table().families
    if family and family not in families:
        near = difflib.get_close_matches(family, families) or families
        raise RequestError(f"{family!r} is no family.", hint=f"Give one like {', '.join(near)}.")
    try:
        Version(jax)
    except InvalidVersion as error:
        raise RequestError(f"{jax!r} is no version of jax.", hint="Give one like 0.10.2.") from error


def inapplicable_reason(entry: KnownTest, *, jax: str, family: str, platform: str, today: date) -> str:
    """Why an entry does not count in a run; empty when it does."""
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
    """The regular expression of whole node ids that an entry's pattern stands for; without `::` of files."""
    regex = pattern_of(pattern).pattern
    return f"(?s:{regex})" if "::" in pattern else f"(?s:{regex.replace('.*', '[^:]*')}(?:::.*)?)"


@functools.lru_cache(maxsize=4096)
def pattern_of(pattern: str) -> re.Pattern[str]:
    """A pattern of tests: * and ? stand for anything, all else for itself."""
    # Not fnmatch: the brackets of a parametrised test stand for themselves.
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
