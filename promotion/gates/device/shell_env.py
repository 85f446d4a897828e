"""Environment and deselected tests from the scripts with which JAX runs its own suite.

No script is executed.

A setting that is visible to tests, and cannot be determined without executing
something, is an error with its line: results under other conditions would be
meaningless. The user can then give the values of variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import GateError, RequestError
from promotion.gates.device.shell_reader import (
    SET_BY_GATE,
    ScriptReader,
    UnreadLine,
    for_tests,
    pytest_options,
)

_MARKS = frozenset({"multiaccelerator", "not multiaccelerator"})
"""Marks that the passes of the gate select."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Settings that a script contains.

    Attributes:
        env: variables that tests see.
        deselect: node ids to leave out, or their beginnings.
        ignore: files to leave out.
        unread: lines of unknown effect that were passed over, since the user gave
            values of variables.
    """

    env: Mapping[str, str]
    deselect: tuple[str, ...]
    ignore: tuple[str, ...]
    unread: tuple[str, ...] = ()


def read_script(
    root: Path, name: str, given: Mapping[str, str] | None = None
) -> Script:
    """Read a script of a checkout and the scripts that it sources.

    Args:
        name: path of the script, relative to the root of the checkout.
        given: values of variables that cannot be determined. With such values, lines of
            unknown effect are passed over.

    Raises:
        GateError: the script is missing, does not run pytest, or has settings for tests
            that cannot be determined.
        RequestError: a given variable is set by the gate, or its value can be
            determined.
    """
    given = given or {}
    script, problems = _read_with(root, name, {})
    if given:
        _check_given(given, script, problems, name)
        script, problems = _read_with(root, name, given)
    unread = tuple(str(problem) for problem in problems if not problem.variable)
    if left := [problem for problem in problems if problem.variable or not given]:
        names = list(
            dict.fromkeys(problem.variable for problem in left if problem.variable)
        ) or ["NAME"]
        raise GateError(
            f"Cannot determine how JAX's suite runs from {'; '.join(map(str, left))}.",
            hint=f"Give the values with {' '.join(f'--suite-env {name}=VALUE' for name in names)}.",
        )
    return Script(
        env=script.env, deselect=script.deselect, ignore=script.ignore, unread=unread
    )


def _check_given(
    given: Mapping[str, str], script: Script, problems: Iterable[UnreadLine], name: str
) -> None:
    """Refuse given values that would have no effect, or change a value of the script."""
    opened = {problem.variable for problem in problems}
    for variable in given:
        if variable in SET_BY_GATE:
            raise RequestError(
                f"--suite-env: the gate itself sets {variable}.", hint="Omit it."
            )
        if variable in opened:
            continue
        if variable in script.env:
            raise RequestError(
                f"--suite-env: {name} already sets {variable} to {script.env[variable]!r}.",
                hint="Omit it.",
            )
        if "" not in opened:
            raise RequestError(
                f"--suite-env: {name} leaves no value of {variable} open.",
                hint="Omit it.",
            )


def _read_with(
    root: Path, name: str, given: Mapping[str, str]
) -> tuple[Script, tuple[UnreadLine, ...]]:
    """Return the settings of a script, and the lines that cannot be read."""
    reading = ScriptReader(root=root, given=given, values={**given})
    reading.read(name)
    env: dict[str, str] = {}
    for variable, where in reading.exported.items():
        value = reading.values.get(variable)
        if not for_tests(variable):
            continue
        if variable in reading.conditional:
            reading.problem(
                reading.conditional[variable],
                f"{variable} depends on a condition",
                variable,
            )
        elif value is None:
            reading.problem(where, f"{variable} is computed", variable)
        else:
            env[variable] = value
    options = list(pytest_options(reading))
    for option, value in options:
        if option == "-k" or (option == "-m" and value not in _MARKS):
            reading.problem(name, f"it chooses tests with {option} {value!r}")
    if not reading.problems and not (env and reading.pytest):
        reading.problem(
            name,
            "it sets nothing for tests" if reading.pytest else "it does not run pytest",
        )
    # A given variable that no line assigns replaces what lines of unknown effect would
    # set.
    env |= {
        variable: value
        for variable, value in given.items()
        if variable not in reading.used
    }
    deselect = dict.fromkeys(v for option, v in options if option == "--deselect")
    ignore = dict.fromkeys(v for option, v in options if option == "--ignore")
    script = Script(env=env, deselect=tuple(deselect), ignore=tuple(ignore))
    return script, tuple(reading.problems)
