"""Reader of shell scripts: variables, conditions, sourced files and pytest's command lines.

Nothing is executed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_REFERENCE = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(?::?-([^}}]*))?\}})")
_COMPUTED = re.compile(r"\$\(|`")
_OPEN = frozenset({"if", "for", "while", "until", "case"})
_CLOSE = frozenset({"fi", "done", "esac"})
_WORDS_BEFORE = frozenset(
    {"then", "else", "elif", "do", "!", "time", "exec", "command", "env"}
)
_OPAQUE = frozenset({"eval", "declare", "typeset", "read", "printf", "local"})
_NOT_FOR_TESTS = "JAXCI_"
"""Part of the names of variables that only the scripts themselves use."""
SET_BY_GATE = frozenset(
    {
        *(
            "JAX_ENABLE_ROCM_XDIST",
            "JAX_ENABLE_CUDA_XDIST",
            "NPROC",
            "PATH",
            "PY_COLORS",
        ),
        *("MAX_PROCESSES", "MAX_PROCESSES_ARG", "LD_LIBRARY_PATH", "ROCM_PATH"),
    }
)
"""Variables that the gate sets itself, so that computed values in scripts are no error.

The ROCm comes from `--rocm` or from the wheels' loader, and LD_LIBRARY_PATH belongs to
it.
"""
_PROCESSES = frozenset({"-n", "--numprocesses", "--maxprocesses"})
"""Options for the number of processes, which the gate sets itself."""
_CHOOSING = re.compile(r"(?<!\S)(--deselect|--ignore|-k|-m)(?![\w-])")
_INSTALLERS = (
    "install_wheels_locally.sh",
    "setup_build_environment.sh",
    "setup_portserver.sh",
)
"""Sourced scripts that install or build.

They are ignored, since the gate makes its own environment.
"""
_FILES_DEEP = 8


@dataclass(frozen=True, slots=True)
class UnreadLine:
    """A line that cannot be read; without a variable, its effect on tests is unknown."""

    where: str
    why: str
    variable: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass
class ScriptReader:
    """State of a shell after the lines that were read.

    Attributes:
        root: the checkout.
        given: values that the user gave, which replace all assignments.
        values: values of variables; None if only execution would determine them.
        exported: variable -> place of the export.
        conditional: variable -> place of an assignment under a condition.
        choosing: variable -> place of an assignment under a condition, with options
            that select tests.
        used: given variables that the script assigns or passes to pytest.
        pytest: command lines that run pytest, with their places.
        problems: lines that cannot be read.
    """

    root: Path
    given: Mapping[str, str]
    values: dict[str, str | None] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    conditional: dict[str, str] = field(default_factory=dict)
    choosing: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    pytest: list[tuple[str, str]] = field(default_factory=list)
    all_exported: bool = False
    problems: dict[UnreadLine, None] = field(default_factory=dict)

    def read(self, name: str) -> None:
        """Read a script, given relative to the root, and the scripts that it sources."""
        _read(self, name, 0)

    def problem(self, where: str, why: str, variable: str = "") -> None:
        """Record a line that cannot be read."""
        self.problems[UnreadLine(where, why, variable)] = None


def for_tests(variable: str) -> bool:
    """Return whether a variable may affect tests."""
    return (
        variable.isupper()
        and variable not in SET_BY_GATE
        and _NOT_FOR_TESTS not in variable
    )


def _read(reading: ScriptReader, name: str, deep: int) -> None:
    path = reading.root / name
    if deep > _FILES_DEEP or not path.resolve().is_relative_to(reading.root.resolve()):
        reading.problem(name, "it is outside the checkout or sources itself")
        return
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        reading.problem(name, "the checkout has no such file")
        return
    except (OSError, UnicodeDecodeError) as problem:
        reading.problem(name, f"reading failed: {problem}")
        return
    depth = 0
    for number, line in _statements(text):
        where = f"{name}:{number}"
        first = line.split(None, 1)[0]
        depth += (first in _OPEN or line.endswith("() {")) - (
            first in _CLOSE or first == "}"
        )
        _statement(reading, line, where, deep, inside=depth > 0)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield statements with their line numbers.

    Continued lines and multi-line quotes are joined, comments dropped.
    """
    pending = ""
    begun = 0
    for number, raw in enumerate(text.splitlines(), 1):
        if not pending and raw.lstrip().startswith("#"):
            continue
        begun = begun if pending else number
        pending += raw
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        if _open_quote(pending):
            pending += "\n"
            continue
        if line := pending.strip():
            yield begun, line
        pending = ""
    if pending.strip():
        yield begun, pending.strip()


def _open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def _statement(
    reading: ScriptReader, line: str, where: str, deep: int, *, inside: bool
) -> None:
    words = line.split()
    while words and words[0] in _WORDS_BEFORE:
        words = words[1:]
    if not words:
        return
    verb = words[0]
    rest = line[line.index(words[0]) + len(words[0]) :].strip()
    if verb in ("source", "."):
        target = _value(reading, rest.split()[0]) if rest else None
        if target is None:
            reading.problem(where, "it sources a computed path")
        elif Path(target).name not in _INSTALLERS:
            _read(reading, target.removeprefix("./"), deep + 1)
    elif verb == "set":
        reading.all_exported |= "allexport" in words or any(
            re.fullmatch("-[a-z]*a[a-z]*", word) for word in words
        )
    elif verb in _OPAQUE:
        reading.problem(where, f"it uses {verb}")
    elif verb == "unset":
        for name in set(rest.split()) - reading.given.keys():
            reading.values.pop(name, None)
            reading.exported.pop(name, None)
    elif verb in ("export", "readonly"):
        _assign(reading, rest, where, exported=verb == "export", inside=inside)
    elif _ASSIGNMENT.match(line) and not _runs_pytest(line):
        _assign(reading, line, where, exported=reading.all_exported, inside=inside)
    elif _runs_pytest(line):
        reading.pytest.append((line, where))


def _runs_pytest(line: str) -> bool:
    return re.search(
        r"(?:-m\s+|^|\s)pytest(?:\s|$)", line
    ) is not None and not line.startswith("echo")


def _assign(
    reading: ScriptReader, text: str, where: str, *, exported: bool, inside: bool
) -> None:
    match = _ASSIGNMENT.match(text)
    if match is None:  # `export NAME` of a variable set before
        for name in text.split():
            if re.fullmatch(_NAME, name) and name in reading.values:
                reading.exported[name] = where
        return
    name = match[1]
    if name in reading.given:
        reading.used.add(name)
        inside = False
    else:
        reading.values[name] = _value(reading, match[2])
    if exported or name in reading.exported:
        reading.exported[name] = where
    if inside:
        reading.conditional[name] = where
        if _CHOOSING.search(match[2]):
            reading.choosing[name] = where


def _value(reading: ScriptReader, text: str) -> str | None:
    """Return the value of a word; None if only execution would determine it."""
    if _COMPUTED.search(text) and not text.startswith("'"):
        return None
    try:
        parts = shlex.split(text, comments=True)
    except ValueError:
        return None
    if len(parts) > 1:
        return None
    word = parts[0] if parts else ""
    return word if text.startswith("'") else _expand(reading, word)


def _expand(reading: ScriptReader, word: str) -> str | None:
    unknown = False

    def put(match: re.Match[str]) -> str:
        nonlocal unknown
        name = match[1] or match[2]
        default = match[3]
        value = reading.values.get(name, None if default is None else default)
        if value is None:
            unknown = True
            return ""
        return value.strip('"')

    expanded = _REFERENCE.sub(put, word)
    return None if unknown or "$" in expanded else expanded


def _words(reading: ScriptReader, line: str, where: str) -> list[str]:
    """Return the arguments of pytest on a command line.

    A variable may contain several arguments.
    """
    words: list[str] = []
    for word in shlex.split(line, comments=True):
        match = _REFERENCE.fullmatch(word)
        if match is None:
            words = [] if word == "pytest" else [*words, word]
            continue
        name = match[1] or match[2]
        if name in reading.choosing:
            reading.problem(
                reading.choosing[name],
                f"a condition decides which tests {name} leaves out",
                name,
            )
        reading.used |= {name} & reading.given.keys()
        value = reading.values.get(name, match[3])
        if (
            value is None
            and for_tests(name.upper())
            and not (words and words[-1] in _PROCESSES)
        ):
            reading.problem(where, f"pytest's argument {name} is computed", name)
        words += (value or "").split()
    return words


def pytest_options(reading: ScriptReader) -> Iterator[tuple[str, str]]:
    """Yield (option, value) for the options of pytest's command lines that select tests."""
    words: list[str] = []
    for line, where in reading.pytest:
        words += _words(reading, line, where)
    for word, following in zip(words, (*words[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        if name in ("--deselect", "--ignore", "-k", "-m"):
            yield name, value if equals else following
