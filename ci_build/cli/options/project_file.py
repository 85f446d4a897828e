"""The project file.

Defaults of options, in `ci_build.toml` or in `[tool.ci_build]` of `pyproject.toml`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ci_build.cli.options.environment import (
    ENV_PREFIX,
    LEDGER_KEY,
    OTHER_VARIABLES,
    SIGNING_KEY,
)
from ci_build.cli.options.table import PATHS, SWITCHES, option_names
from core.errors import FormatError
from core.frozen import frozen
from core.records import convert, read_table

NAME = "ci_build.toml"
_PYPROJECT = "pyproject.toml"
SECRETS = {name.removeprefix(ENV_PREFIX).lower() for name in (SIGNING_KEY, LEDGER_KEY)}
"""Options whose value is a secret, which no file may contain."""
_PATHS = {*PATHS, "bucket", "trust_config", "cluster_store"}
"""Options whose value may be a path."""
_HINT = "See the project file in the reference of options."
_Value = bool | int | str | list[int | str]


@frozen
class ProjectFile:
    """Defaults of options in a file.

    Attributes:
        path: the file; None if there is none.
        values: name of an option, such as python_versions -> value.
    """

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


NO_PROJECT_FILE = ProjectFile()


def find_project_file(folder: Path) -> ProjectFile:
    """Return the nearest project file of a folder or its parents.

    In one folder, `ci_build.toml` comes first.

    Raises:
        FormatError: the file is not TOML, or has an unknown key or an unusable value.
    """
    for place in (folder, *folder.parents):
        for path in (place / NAME, place / _PYPROJECT):
            if not os.access(path, os.R_OK):
                continue
            table: object = read_table(path, hint=_HINT)
            if path.name == _PYPROJECT:
                tool = convert(table, dict[str, Any], str(path)).get("tool")
                table = tool.get("ci_build") if isinstance(tool, dict) else None
            if table is not None:
                known = {*option_names(), *OTHER_VARIABLES} - SECRETS
                return ProjectFile(path=path, values=option_values(path, table, known))
    return NO_PROJECT_FILE


def option_values(
    path: Path, table: object, known: Collection[str]
) -> dict[str, str | bool]:
    """Return the values of options in a table of a file, as the command line would give them.

    A relative path is relative to the folder of the file.

    Args:
        known: names of the allowed options, such as python_versions.

    Raises:
        FormatError: a key is unknown, or a value has a wrong type.
    """
    values: dict[str, str | bool] = {}
    for key, value in convert(table, dict[str, _Value], str(path), hint=_HINT).items():
        name = key.replace("-", "_")
        problem = ""
        if name not in known:
            problem = f"unknown key{_near(name, known)}"
        elif name in values:
            problem = "the key is given twice"
        elif isinstance(value, bool) != (name in SWITCHES):
            problem = f"expected {'true or false' if name in SWITCHES else 'text'}"
        if problem:
            raise FormatError(f"{path}: {key}: {problem}.", hint=_HINT)
        values[name] = value if isinstance(value, bool) else _text(path, name, value)
    return values


def _near(name: str, known: Collection[str]) -> str:
    if name in SECRETS:
        return f" (a secret; use {ENV_PREFIX}{name.upper()})"
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _text(path: Path, name: str, value: int | str | list[int | str]) -> str:
    items = value if isinstance(value, list) else [value]
    texts = [str(item) for item in items]
    if name in _PATHS:
        words = PATHS.get(name, ())
        for number, text in enumerate(texts):
            if "://" not in text and "==" not in text and text not in words:
                texts[number] = str(path.parent / text)
    return ",".join(texts)
