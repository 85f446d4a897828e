"""What is expected of the programs of the corpus: that they compile, unless `expectations.toml` says otherwise."""

from __future__ import annotations

import enum
import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """What becomes of a program."""

    COMPILES = "compiles"
    FAILS = "fails"
    NEEDS_DEVICE = "needs-device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """One entry of `expectations.toml`, or that there is none.

    Attributes:
        programs, targets: patterns; `*` stands for any characters.
        jax: versions of jax that it holds for (PEP 440 specifiers).
        error: what the error has to contain, so that another failure of the same program is still one.
        reason: why, in one sentence.
        owner: who has to mend it.
        expires: ISO 8601 date of the last day that it holds without somebody looking at it again.
        expired: that day has passed.
    """

    programs: tuple[str, ...] = ("*",)
    targets: tuple[str, ...] = ("*",)
    jax: str = ""
    kind: ExpectationKind = ExpectationKind.COMPILES
    error: str = ""
    reason: str = ""
    owner: str = ""
    expires: str = ""
    expired: bool = False

    def is_for(self, jax_version: str) -> bool:
        """Whether it is about a version of jax."""
        return SpecifierSet(self.jax).contains(jax_version, prereleases=True)

    def covered(self, programs: Iterable[str], targets: Iterable[str]) -> frozenset[tuple[str, str]]:
        """Which of these programs it is about, on which of these targets."""
        return frozenset(
            (program, target)
            for program in programs
            if any(fnmatchcase(program, pattern) for pattern in self.programs)
            for target in targets
            if any(fnmatchcase(target, pattern) for pattern in self.targets)
        )


COMPILES = Expectation()


def find(known: Iterable[Expectation], program: str, jax_version: str, target: str, today: str) -> Expectation:
    """The expectation that holds; `COMPILES` where no entry does."""
    for entry in known:
        if entry.covered([program], [target]) and entry.is_for(jax_version):
            return replace(entry, expired=today > entry.expires)
    return COMPILES


def load_expectations(file: Path = FILE, *, programs: Sequence[str]) -> tuple[Expectation, ...]:
    """Read the entries and check them all.

    Args:
        file: in the format that the first lines of `expectations.toml` explain.
        programs: names of all programs.

    Raises:
        GateError: lists every field that is missing, unknown or wrong, every pattern that fits nothing, and every
            two entries that hold for the same program, target and version.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise GateError(f"{file} cannot be read: {error}.", hint="Mend it.") from error
    problems = [] if data.get("schema") == _SCHEMA else [f"schema is not {_SCHEMA}"]
    problems += [f"unknown key {key!r}" for key in data.keys() - {"schema", "expectation"}]
    entries: list[Expectation] = []
    for number, item in enumerate(data.get("expectation", ()), 1):
        found = list(_problems(item, programs))
        problems += [f"entry {number}: {problem}" for problem in found]
        if not found:
            fields: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in item.items()
            }
            fields |= {"kind": ExpectationKind(item["kind"]), "expires": item["expires"].isoformat()}
            entries.append(Expectation(**fields))
    problems += _overlaps(entries, programs)
    if problems:
        text = "; ".join(problems)
        raise GateError(f"{file.name} cannot be used: {text}.", hint="Its first lines say what it may hold.")
    return tuple(entries)


def _problems(item: Mapping[str, Any], programs: Sequence[str]) -> Iterator[str]:
    """What is wrong with an entry."""
    needs_error = item.get("kind") == ExpectationKind.FAILS
    wanted = _KEYS if needs_error else _KEYS - {"error"}
    yield from (f"{key} is missing" for key in sorted(wanted - item.keys()))
    yield from (f"{key} is not known here" for key in sorted(item.keys() - wanted))
    if item.get("kind") not in (None, ExpectationKind.FAILS, ExpectationKind.NEEDS_DEVICE):
        yield f"kind is {item['kind']!r}, neither 'fails' nor 'needs-device'"
    for key, names in (("programs", programs), ("targets", lists()["compiler-supported"])):
        yield from _bad_patterns(key, item.get(key, names), names)
    for key in ("jax", "error", "reason", "owner"):
        if key in item and not (isinstance(item[key], str) and item[key].strip()):
            yield f"{key} is not a text"
    if type(item.get("expires", date.min)) is not date:
        yield "expires is not a date such as 2027-03-31"
    try:
        SpecifierSet(str(item.get("jax", "")))
    except InvalidSpecifier:
        yield f"jax is {item['jax']!r}, not versions such as '>=0.10,<0.11'"


def _bad_patterns(key: str, patterns: object, names: Sequence[str]) -> Iterator[str]:
    if not isinstance(patterns, Sequence) or isinstance(patterns, str) or not patterns:
        yield f"{key} is not a list of patterns"
        return
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatchcase(name, pattern) for name in names):
            yield f"{pattern!r} fits none of the {key}"


def _overlaps(entries: Sequence[Expectation], programs: Sequence[str]) -> Iterator[str]:
    """Pairs of entries of which it is not clear which one holds."""
    numbered = [
        (number, entry, entry.covered(programs, lists()["compiler-supported"]))
        for number, entry in enumerate(entries, 1)
    ]
    for (i, first, ours), (j, second, theirs) in itertools.combinations(numbered, 2):
        # Two ranges of versions that overlap do so at a version where one of them begins or ends.
        ends = [end.version.removesuffix(".*") for end in (*SpecifierSet(first.jax), *SpecifierSet(second.jax))]
        version = next((end for end in ends if first.is_for(end) and second.is_for(end)), None)
        if ours & theirs and version:
            program, target = min(ours & theirs)
            yield f"entries {i} and {j} both hold for {program} on {target} with jax {version}"
