"""Environment and deselected tests from the scripts with which JAX runs its own suite; no script is executed.

The reader understands assignments, `source`, and the command lines of pytest. A setting that is visible to tests, and
cannot be determined without executing something, is an error: results under other conditions would be meaningless.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import GateError

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_REFERENCE = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(?::?-([^}}]*))?\}})")
_COMPUTED = re.compile(r"\$\(|`")
_OPEN, _CLOSE = frozenset({"if", "for", "while", "until", "case"}), frozenset({"fi", "done", "esac"})
_WORDS_BEFORE = frozenset({"then", "else", "elif", "do", "!", "time", "exec", "command", "env"})
_OPAQUE = frozenset({"eval", "declare", "typeset", "read", "printf", "local"})
_NOT_FOR_TESTS = "JAXCI_"
"""Part of the names of variables that only the scripts themselves use."""
_OURS = frozenset(
    {
        *("JAX_ENABLE_ROCM_XDIST", "JAX_ENABLE_CUDA_XDIST", "NPROC", "PATH", "PY_COLORS"),
        *("MAX_PROCESSES", "MAX_PROCESSES_ARG"),
    }
)
"""Variables that the gate sets itself, so that computed values in scripts are no error."""
_PROCESSES = frozenset({"-n", "--numprocesses", "--maxprocesses"})
"""Options for the number of processes, which the gate sets, so that computed values in scripts are no error."""
_MARKS = frozenset({"multiaccelerator", "not multiaccelerator"})
"""Marks that the passes of the gate select."""
_CHOOSING = re.compile(r"(?<!\S)(--deselect|--ignore|-k|-m)(?![\w-])")
_INSTALLERS = ("install_wheels_locally.sh", "setup_build_environment.sh", "setup_portserver.sh")
"""Sourced scripts that install or build; they are ignored, since the gate makes its own environment."""
_FILES_DEEP = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Settings that a script contains.

    Attributes:
        env: variables that tests see.
        deselect: node ids to leave out, or their beginnings.
        ignore: files to leave out.
    """

    env: Mapping[str, str]
    deselect: tuple[str, ...]
    ignore: tuple[str, ...]


@dataclass
class _ScriptReader:
    root: Path
    values: dict[str, str | None] = field(default_factory=dict)
    """Values of variables; None if only execution would determine them."""
    exported: dict[str, str] = field(default_factory=dict)
    """Variable -> place of the export."""
    conditional: dict[str, str] = field(default_factory=dict)
    """Variable -> place of an assignment under a condition."""
    choosing: dict[str, str] = field(default_factory=dict)
    """Variable -> place of an assignment under a condition, with options that select tests."""
    pytest: list[str] = field(default_factory=list)
    all_exported: bool = False


def read_script(root: Path, name: str) -> Script:
    """Read a script of a checkout and the scripts that it sources.

    Args:
        name: path of the script, relative to the root of the checkout.

    Raises:
        GateError: the script is missing, does not run pytest, or has settings for tests that cannot be determined.
    """
    reading = _ScriptReader(root=root)
    _read(reading, name, 0)
    if not reading.pytest:
        raise _unreadable(name, "it does not run pytest")
    env: dict[str, str] = {}
    for variable, where in reading.exported.items():
        if not _for_tests(variable):
            continue
        if variable in reading.conditional:
            raise _unreadable(reading.conditional[variable], f"{variable} depends on a condition")
        value = reading.values[variable]
        if value is None:
            raise _unreadable(where, f"{variable} is computed")
        env[variable] = value
    if not env:
        raise _unreadable(name, "it sets nothing for tests")
    words = [word for line in reading.pytest for word in _words(reading, line, name)]
    options = list(_options(words))
    for option, value in options:
        if option == "-k" or (option == "-m" and value not in _MARKS):
            raise _unreadable(name, f"it chooses tests with {option} {value!r}")
    return Script(
        env=env,
        deselect=tuple(dict.fromkeys(value for option, value in options if option == "--deselect")),
        ignore=tuple(dict.fromkeys(value for option, value in options if option == "--ignore")),
    )


def _for_tests(variable: str) -> bool:
    """Return whether a variable may affect tests."""
    return variable.isupper() and variable not in _OURS and _NOT_FOR_TESTS not in variable


def _read(reading: _ScriptReader, name: str, deep: int) -> None:
    path = reading.root / name
    if deep > _FILES_DEEP or not path.resolve().is_relative_to(reading.root.resolve()):
        raise _unreadable(name, "it is outside the checkout or sources itself")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise _unreadable(name, f"reading failed: {problem}") from problem
    depth = 0
    for number, line in _statements(text):
        where = f"{name}:{number}"
        first = line.split(None, 1)[0]
        depth += (first in _OPEN or line.endswith("() {")) - (first in _CLOSE or first == "}")
        _statement(reading, line, where, deep, inside=depth > 0)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield statements with their line numbers; continued lines and multi-line quotes are joined, comments dropped."""
    pending, begun = "", 0
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


def _statement(reading: _ScriptReader, line: str, where: str, deep: int, *, inside: bool) -> None:
    words = line.split()
    while words and words[0] in _WORDS_BEFORE:
        words = words[1:]
    if not words:
        return
    verb, rest = words[0], line[line.index(words[0]) + len(words[0]) :].strip()
    if verb in ("source", "."):
        target = _value(reading, rest.split()[0]) if rest else None
        if target is None:
            raise _unreadable(where, "it sources a computed path")
        target = target.removeprefix("./")
        if Path(target).name not in _INSTALLERS:
            _read(reading, target, deep + 1)
    elif verb == "set":
        reading.all_exported |= "allexport" in words or any(re.fullmatch("-[a-z]*a[a-z]*", word) for word in words)
    elif verb in _OPAQUE:
        raise _unreadable(where, f"it uses {verb}")
    elif verb == "unset":
        for name in rest.split():
            reading.values.pop(name, None)
            reading.exported.pop(name, None)
    elif verb in ("export", "readonly"):
        _assign(reading, rest, where, exported=verb == "export", inside=inside)
    elif _ASSIGNMENT.match(line) and not _runs_pytest(line):
        _assign(reading, line, where, exported=reading.all_exported, inside=inside)
    elif _runs_pytest(line):
        reading.pytest.append(line)


def _runs_pytest(line: str) -> bool:
    return re.search(r"(?:-m\s+|^|\s)pytest(?:\s|$)", line) is not None and not line.startswith("echo")


def _assign(reading: _ScriptReader, text: str, where: str, *, exported: bool, inside: bool) -> None:
    match = _ASSIGNMENT.match(text)
    if match is None:  # `export NAME` of a variable set before
        for name in text.split():
            if re.fullmatch(_NAME, name) and name in reading.values:
                reading.exported[name] = where
        return
    name = match[1]
    reading.values[name] = _value(reading, match[2])
    if exported or name in reading.exported:
        reading.exported[name] = where
    if inside:
        reading.conditional[name] = where
        if _CHOOSING.search(match[2]):
            reading.choosing[name] = where


def _value(reading: _ScriptReader, text: str) -> str | None:
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


def _expand(reading: _ScriptReader, word: str) -> str | None:
    unknown = False

    def put(match: re.Match[str]) -> str:
        nonlocal unknown
        name, default = match[1] or match[2], match[3]
        value = reading.values.get(name, None if default is None else default)
        if value is None:
            unknown = True
            return ""
        return value.strip('"')

    expanded = _REFERENCE.sub(put, word)
    return None if unknown or "$" in expanded else expanded


def _words(reading: _ScriptReader, line: str, script: str) -> list[str]:
    """Return the arguments of pytest on a command line; a variable may contain several arguments."""
    words: list[str] = []
    for word in shlex.split(line, comments=True):
        match = _REFERENCE.fullmatch(word)
        if match is None:
            words = [] if word == "pytest" else [*words, word]
            continue
        name = match[1] or match[2]
        if name in reading.choosing:
            raise _unreadable(reading.choosing[name], "a condition decides which tests are left out")
        value = reading.values.get(name, match[3])
        if value is None and _for_tests(name.upper()) and not (words and words[-1] in _PROCESSES):
            raise _unreadable(script, f"pytest's argument {name} is computed")
        words += (value or "").split()
    return words


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--deselect", "--ignore", "-k", "-m"):
            yield name, value if equals else words[number + 1] if number + 1 < len(words) else ""


def _unreadable(where: str, why: str) -> GateError:
    return GateError(
        f"Cannot determine how JAX's suite runs from {where}: {why}.",
        hint="Use another checkout, or extend promotion/gates/device/shell_env.py.",
    )
