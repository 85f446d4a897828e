"""Expectations for the programs of the corpus.

A program without an entry in `expectations.toml` must compile.
"""

from __future__ import annotations

import enum
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


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Report whether a name matches a pattern of shells."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Entry of `expectations.toml`, or the default for programs without an entry.

    Attributes:
        programs, targets: patterns of names; `*` stands for any characters.
        jax: versions of jax (PEP 440 specifiers).
        reason: reason for the entry, one sentence.
        error: text that the compiler's error must contain; with another error the check
            fails.
        owner: project that can fix the failure.
        expires: last day of the entry.
        expired: whether the last day has passed.
    """

    programs: tuple[str, ...] = ("*",)
    targets: tuple[str, ...] = ("*",)
    jax: SpecifierSet = field(default_factory=SpecifierSet)
    reason: str = ""
    kind: ExpectationKind = ExpectationKind.COMPILES
    error: str = ""
    owner: str = ""
    expires: date | None = None
    expired: bool = False

    def applies(self, program: str, target: str, jax_version: str) -> bool:
        """Report whether the entry applies to a program on a target with a version of jax."""
        return (
            _matches(program, self.programs)
            and _matches(target, self.targets)
            and self.jax.contains(jax_version, prereleases=True)
        )


@dataclass(frozen=True, kw_only=True)
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
        FormatError: a field is missing, unknown or wrong, or a pattern matches nothing.
    """
    content = read_toml(file, _ExpectationFile, schema=_SCHEMA)
    problems: list[str] = []
    for number, entry in enumerate(content.expectation, 1):
        for problem in _problems(entry, programs):
            problems.append(f"entry {number}: {problem}")
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
