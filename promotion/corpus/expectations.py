"""Expectations for the programs of the corpus.

A program without an entry in `expectations.toml` must compile.
"""

from __future__ import annotations

import enum
import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.errors import GateError
from core.targets import lists

FILE = Path(__file__).with_name("expectations.toml")
_SCHEMA = 1
_KEYS = {"programs", "targets", "jax", "kind", "error", "reason", "owner", "expires"}


class ExpectationKind(enum.StrEnum):
    """Expected result of a program."""

    COMPILES = "compiles"
    FAILS = "fails"
    NEEDS_DEVICE = "needs-device"


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusScope:
    """Programs, targets and versions of jax that an entry of a table applies to.

    Attributes:
        programs, targets: patterns of names; `*` stands for any characters.
        jax: versions of jax (PEP 440 specifiers).
        reason: reason for the entry, one sentence.
    """

    programs: tuple[str, ...] = ("*",)
    targets: tuple[str, ...] = ("*",)
    jax: str = ""
    reason: str = ""

    def is_for(self, jax_version: str) -> bool:
        """Report whether the entry applies to a version of jax."""
        return SpecifierSet(self.jax).contains(jax_version, prereleases=True)

    def covered(
        self, programs: Iterable[str], targets: Iterable[str]
    ) -> frozenset[tuple[str, str]]:
        """Return the pairs of program and target that the entry applies to."""
        own_programs = _matching(programs, self.programs)
        own_targets = _matching(targets, self.targets)
        return frozenset(itertools.product(own_programs, own_targets))

    def applies(self, program: str, target: str, jax_version: str) -> bool:
        """Report whether the entry applies to a program on a target with a version of jax."""
        return bool(self.covered([program], [target])) and self.is_for(jax_version)


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match a pattern of shells."""
    matching = []
    for name in names:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            matching.append(name)
    return matching


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation(CorpusScope):
    """Entry of `expectations.toml`, or the default for programs without an entry.

    Attributes:
        error: text that the compiler's error must contain; with another error the check
            fails.
        owner: project that can fix the failure.
        expires: last day of the entry (ISO 8601).
        expired: whether the last day has passed.
    """

    kind: ExpectationKind = ExpectationKind.COMPILES
    error: str = ""
    owner: str = ""
    expires: str = ""
    expired: bool = False


COMPILES = Expectation()


def load_expectations(
    file: Path = FILE, *, programs: Sequence[str], today: str
) -> tuple[Expectation, ...]:
    """Load and validate all entries.

    Args:
        file: TOML file in the format that the first lines of `expectations.toml`
            document.
        programs: names of all programs.
        today: ISO 8601 date that decides whether an entry is expired.

    Raises:
        GateError: the file cannot be read, a field is missing, unknown or wrong, a
            pattern matches nothing, or two entries apply to the same program, target
            and version; the message lists all problems.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise GateError(
            f"Cannot read {file}: {error}.", hint="Fix the file."
        ) from error
    problems = [] if data.get("schema") == _SCHEMA else [f"schema is not {_SCHEMA}"]
    problems += [
        f"unknown key {key!r}" for key in data.keys() - {"schema", "expectation"}
    ]
    entries: list[Expectation] = []
    for number, item in enumerate(data.get("expectation", ()), 1):
        errors = list(_problems(item, programs))
        problems += [f"entry {number}: {problem}" for problem in errors]
        if not errors:
            lists = {key: tuple(item[key]) for key in ("programs", "targets")}
            kind = ExpectationKind(item["kind"])
            expires = item["expires"].isoformat()
            fields: dict[str, Any] = {**item, **lists, "kind": kind, "expires": expires}
            entries.append(Expectation(**fields, expired=today > expires))
    problems += _overlaps(entries, programs)
    if problems:
        text = "; ".join(problems)
        raise GateError(
            f"Cannot load {file.name}: {text}.",
            hint="Fix the file; its first lines document the fields.",
        )
    return tuple(entries)


def _problems(item: Mapping[str, Any], programs: Sequence[str]) -> Iterator[str]:
    """Yield the problems of an entry."""
    needs_error = item.get("kind") == ExpectationKind.FAILS
    required = _KEYS if needs_error else _KEYS - {"error"}
    yield from (f"{key} is missing" for key in sorted(required - item.keys()))
    yield from (f"{key} is unknown" for key in sorted(item.keys() - required))
    if item.get("kind") not in (
        None,
        ExpectationKind.FAILS,
        ExpectationKind.NEEDS_DEVICE,
    ):
        yield f"kind must be 'fails' or 'needs-device', not {item['kind']!r}"
    for key, names in (
        ("programs", programs),
        ("targets", lists()["compiler-supported"]),
    ):
        yield from _bad_patterns(key, item.get(key, names), names)
    for key in ("jax", "error", "reason", "owner"):
        if key in item and not (isinstance(item[key], str) and item[key].strip()):
            yield f"{key} is not a string or is empty"
    if type(item.get("expires", date.min)) is not date:
        yield "expires is not a date such as 2027-03-31"
    try:
        SpecifierSet(str(item.get("jax", "")))
    except InvalidSpecifier:
        yield f"jax is not a version specifier such as '>=0.10,<0.11': {item['jax']!r}"


def _bad_patterns(key: str, patterns: object, names: Sequence[str]) -> Iterator[str]:
    if not isinstance(patterns, Sequence) or isinstance(patterns, str) or not patterns:
        yield f"{key} is not a list of patterns"
        return
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(
            fnmatchcase(name, pattern) for name in names
        ):
            yield f"{pattern!r} matches none of the {key}"


def _overlaps(entries: Sequence[Expectation], programs: Sequence[str]) -> Iterator[str]:
    """Yield pairs of entries that apply to the same program, target and version."""
    numbered = [
        (number, entry, entry.covered(programs, lists()["compiler-supported"]))
        for number, entry in enumerate(entries, 1)
    ]
    for (i, first, ours), (j, second, theirs) in itertools.combinations(numbered, 2):
        # Overlapping ranges of versions share a version at which one of them begins or
        # ends.
        ends = [
            end.version.removesuffix(".*")
            for end in (*SpecifierSet(first.jax), *SpecifierSet(second.jax))
        ]
        version = next(
            (end for end in ends if first.is_for(end) and second.is_for(end)), None
        )
        if ours & theirs and version:
            program, target = min(ours & theirs)
            yield f"entries {i} and {j} both apply to {program} on {target} with jax {version}"
