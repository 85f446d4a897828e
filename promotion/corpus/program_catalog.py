"""The corpus: programs, descriptions of GPUs and expectations.

Declarations are parsed from the source, without importing jax; `child.py` compiles the
programs in the Python of the wheels under test. A program without an entry in
`expectations.toml` must compile.
"""

from __future__ import annotations

import ast
import difflib
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path

from packaging.specifiers import SpecifierSet

from core.digests import sha256_of
from core.errors import FormatError, GateError, RequestError
from core.frozen import frozen
from core.model import GfxTarget
from core.records import read_toml
from core.targets import lists
from promotion.corpus.programs.declaration import (
    DeclarationError,
    Program,
    declare,
    program_name,
)

FILE = Path(__file__).with_name("expectations.toml")
_SCHEMA = 1


class ExpectationKind(enum.StrEnum):
    """Expected result of a program; see `expectations.toml`."""

    COMPILES = "compiles"
    FAILS = "fails"
    FAILS_WITHOUT_DEVICE = "fails-without-device"
    NEEDS_DEVICE = "needs-device"

    @property
    def is_failure(self) -> bool:
        """Whether the compiler is expected to report an error or to crash."""
        return self in (self.FAILS, self.FAILS_WITHOUT_DEVICE)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Report whether a name matches a pattern of shells."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@frozen
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


@frozen
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
        yield "kind must be fails, fails-without-device or needs-device"
    for key in ("reason", "owner", "expires"):
        if not getattr(entry, key):
            yield f"{key} is missing"
    if entry.kind.is_failure != bool(entry.error):
        yield "error is required for failures, and only for them"
    targets = lists()["compiler-supported"]
    for key, names in (("programs", programs), ("targets", targets)):
        for pattern in getattr(entry, key):
            if not any(fnmatchcase(name, pattern) for name in names):
                yield f"{pattern!r} matches none of the {key}"


FOLDER = Path(__file__).parent
CHILD = FOLDER / "child.py"
_DATA = ("*.py", "*.toml", "programs/*.py", "specs/*.txtpb")


@frozen
class CompileCorpus:
    """Programs, GPUs and expectations for the compile gate.

    Attributes:
        programs: all programs, sorted by name.
        specs: gfx target -> description of the GPU
            (stream_executor.GpuTargetConfigProto, text format), for each target of
            XLA's allow-list.
        child: path of `child.py`, which compiles the programs.
        digest: SHA-256 of the whole corpus.
    """

    programs: tuple[Program, ...]
    specs: Mapping[str, str]
    expectations: tuple[Expectation, ...] = ()
    child: Path = CHILD
    digest: str

    def choose(self, corpus: str, names: Sequence[str] = ()) -> tuple[Program, ...]:
        """Return the programs of the small or full corpus, or only the given ones.

        The small corpus covers every group and takes about a quarter of the time of the
        full corpus, which includes it.

        Raises:
            RequestError: a corpus, program or group is unknown.
        """
        if corpus not in ("small", "full"):
            raise RequestError(
                f"Unknown corpus: {corpus!r}.", hint="Choose small or full."
            )
        if not names:
            return tuple(
                program
                for program in self.programs
                if corpus in ("full", program.corpus)
            )
        known_names = {program.name for program in self.programs}
        known_names |= {program.group for program in self.programs}
        for name in names:
            if name not in known_names:
                near = difflib.get_close_matches(name, known_names, n=4) or sorted(
                    n for n in known_names if "." not in n
                )
                raise RequestError(
                    f"The corpus has no program or group {name!r}.",
                    hint=f"Did you mean {', '.join(near)}?",
                )
        return tuple(
            program
            for program in self.programs
            if program.name in names or program.group in names
        )

    def expectation(self, program: str, target: str, jax_version: str) -> Expectation:
        """Return the expectation for a program on a gfx target.

        Without an entry, this is `COMPILES`.
        """
        processor = GfxTarget.parse(target).processor
        applicable = (
            entry
            for entry in self.expectations
            if entry.applies(program, processor, jax_version)
        )
        return next(applicable, COMPILES)


def load_corpus(today: str = "") -> CompileCorpus:
    """Load the corpus of this repository.

    Args:
        today: ISO 8601 date for the expiry of expectations; empty means the current
            date.

    Raises:
        GateError: a program or an expectation is invalid.
    """
    programs = read_programs()
    names = tuple(program.name for program in programs)
    return CompileCorpus(
        programs=programs,
        specs={
            path.stem: path.read_text(encoding="utf-8")
            for path in sorted(FOLDER.glob("specs/*.txtpb"))
        },
        expectations=load_expectations(
            programs=names, today=today or datetime.now(UTC).date().isoformat()
        ),
        digest=digest(),
    )


def digest(folder: Path = FOLDER) -> str:
    """Return the SHA-256 of the corpus: programs, child, specs and expectations."""
    paths = sorted(chain.from_iterable(map(folder.glob, _DATA)))
    lines = (f"{path.relative_to(folder)} {sha256_of(path)}\n" for path in paths)
    return sha256_of("".join(lines).encode())


@cache
def read_programs(folder: Path = FOLDER / "programs") -> tuple[Program, ...]:
    """Return all programs, sorted by name.

    Raises:
        GateError: a declaration is invalid.
    """
    programs: list[Program] = []
    try:
        for path in sorted(folder.glob("*.py")):
            programs += _declared(path)
    except (DeclarationError, SyntaxError) as error:
        raise GateError(
            f"A program of the corpus is invalid: {error}",
            hint=f"Fix the program in {folder}.",
        ) from error
    return tuple(sorted(programs, key=lambda program: program.name))


def _declared(path: Path) -> Iterator[Program]:
    """Yield the programs that a module declares, without importing it."""
    nodes = ast.parse(path.read_text(encoding="utf-8"), path.name).body
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        for call in function.decorator_list:
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "program":
                continue
            name = program_name(path.stem, function.name)
            try:
                arguments = list(map(ast.literal_eval, call.args))
                options = {
                    str(word.arg): ast.literal_eval(word.value)
                    for word in call.keywords
                }
            except ValueError as error:
                text = f"{name}: its declaration must consist of literals."
                raise DeclarationError(text) from error
            yield declare(name, *arguments, **options)
