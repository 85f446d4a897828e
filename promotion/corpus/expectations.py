"""Expectations for the programs of the corpus.

A program without an entry in `expectations.toml` must compile.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.specifiers import SpecifierSet

from core.errors import FormatError
from core.records import read_toml
from core.targets import lists

FILE = Path(__file__).with_name("expectations.toml")
_SCHEMA = 1


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
    jax: SpecifierSet = field(default_factory=SpecifierSet)
    reason: str = ""

    def is_for(self, jax_version: str) -> bool:
        """Report whether the entry applies to a version of jax."""
        return self.jax.contains(jax_version, prereleases=True)

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
        expires: last day of the entry.
        expired: whether the last day has passed.
    """

    kind: ExpectationKind = ExpectationKind.COMPILES
    error: str = ""
    owner: str = ""
    expires: date | None = None
    expired: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _ExpectationFile:
    """Content of `expectations.toml`."""

    expectation: tuple[Expectation, ...] = ()


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
        FormatError: a field is missing, unknown or wrong, a pattern matches nothing, or
            two entries apply to the same program, target and version.
    """
    content = read_toml(file, _ExpectationFile, schema=_SCHEMA)
    problems: list[str] = []
    for number, entry in enumerate(content.expectation, 1):
        for problem in _problems(entry, programs):
            problems.append(f"entry {number}: {problem}")
    problems += _overlaps(content.expectation, programs)
    if problems:
        raise FormatError(f"{file.name}: {'; '.join(problems)}.")
    entries = []
    for entry in content.expectation:
        expired = entry.expires is not None and today > entry.expires.isoformat()
        entries.append(replace(entry, expired=expired))
    return tuple(entries)


def _problems(entry: Expectation, programs: Sequence[str]) -> Iterator[str]:
    """Yield the problems of an entry that depend on the corpus."""
    if entry.kind is ExpectationKind.COMPILES:
        yield "kind must be fails or needs-device"
    for key in ("reason", "owner", "expires"):
        if not getattr(entry, key):
            yield f"{key} is missing"
    if (entry.kind is ExpectationKind.FAILS) != bool(entry.error):
        yield "error is required for the kind fails, and only for it"
    targets = lists()["compiler-supported"]
    for key, names in (("programs", programs), ("targets", targets)):
        for pattern in getattr(entry, key):
            if not any(fnmatchcase(name, pattern) for name in names):
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
        ends = [end.version.removesuffix(".*") for end in (*first.jax, *second.jax)]
        version = next(
            (end for end in ends if first.is_for(end) and second.is_for(end)), None
        )
        if ours & theirs and version:
            program, target = min(ours & theirs)
            yield f"entries {i} and {j} both apply to {program} on {target} with jax {version}"
