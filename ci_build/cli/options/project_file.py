"""The project file.

Defaults of options, in `ci_build.toml` or in `[tool.ci_build]` of `pyproject.toml`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci_build.cli.options.environment import (
    ENV_PREFIX,
    LEDGER_KEY,
    OTHER_VARIABLES,
    SIGNING_KEY,
)
from ci_build.cli.options.table import PATHS, SWITCHES, option_names
from core.errors import RequestError

NAME = "ci_build.toml"
_PYPROJECT = "pyproject.toml"
SECRETS = {name.removeprefix(ENV_PREFIX).lower() for name in (SIGNING_KEY, LEDGER_KEY)}
"""Options whose value is a secret, which no file may contain."""
_PATHS = (
    "bucket",
    "trust_config",
    "cluster_store",
)
"""Options besides those of `table.py` whose value may be a path."""


@dataclass(frozen=True, kw_only=True, slots=True)
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
        RequestError: the file is not TOML, or has an unknown key or an unusable value.
    """
    for place in (folder, *folder.parents):
        for path in (place / NAME, place / _PYPROJECT):
            if (table := _table(path)) is not None:
                return ProjectFile(path=path, values=_values(path, table))
    return NO_PROJECT_FILE


def _table(path: Path) -> Mapping[str, Any] | None:
    """Return the table of a file; None if there is none."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    if path.name == _PYPROJECT and b"ci_build" not in text:
        return None
    try:
        document = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{path} is not valid TOML: {error}.",
            hint="See the project file in the reference of options.",
        ) from error
    if path.name == NAME:
        return document
    tool = document.get("tool")
    table = tool.get("ci_build") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise RequestError(
            f"[tool.ci_build] of {path} is not a table.", hint="Correct it."
        )
    return table


def _values(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    known = {*option_names(), *OTHER_VARIABLES} - SECRETS
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise RequestError(
                f"{path} has an unknown key: {key!r}{_near(name, known)}.",
                hint="Correct or remove it.",
            )
        if name in values:
            raise RequestError(
                f"{path} sets {key!r} twice.", hint="Remove one of them."
            )
        values[name] = _value(path, name, value)
    return values


def _near(name: str, known: set[str]) -> str:
    if name in SECRETS:
        return f" (a secret; use {ENV_PREFIX}{name.upper()})"
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _value(path: Path, name: str, value: Any) -> Any:  # noqa: ANN401 - a value of TOML
    """Return a value as the command line would give it.

    A relative path is relative to the folder of the file.
    """
    if name in SWITCHES:
        if isinstance(value, bool):
            return value
        raise RequestError(
            f"{name} in {path} is {value!r}.", hint="Write true or false."
        )
    items = value if isinstance(value, list) else [value]
    if not all(
        isinstance(item, str | int) and not isinstance(item, bool) for item in items
    ):
        raise RequestError(
            f"{name} in {path} is {value!r}.",
            hint="Write text, a whole number, or a list of them.",
        )
    texts = [str(item) for item in items]
    if name in (*PATHS, *_PATHS):
        texts = [
            text if "://" in text or "==" in text else str(path.parent / text)
            for text in texts
        ]
    return ",".join(texts)
