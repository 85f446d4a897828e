"""The user's choice table: backends that `python -m jax_aiter bench` measured on this machine's GPU.

The file is JSON, at JAX_AITER_CHOICES or else below the user's cache folder. Its rows hold for the versions of
jax_aiter and jaxlib that measured them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from jax_aiter._errors import ChoiceTableError
from jax_aiter._table import BACKENDS, OPERATIONS

OPTION = "JAX_AITER_CHOICES"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The fastest backend for an operation of some sizes on one kind of GPU.

    Attributes:
        operation: name in OPERATIONS.
        gfx: processor, such as "gfx942".
        compute_units: compute units of the GPU.
        m, n, k, out: sizes and dtype, as in `Problem`.
        backend: one of BACKENDS.
        kernel, splitk: AITER's kernel and its parts of K; "" and 0 for the handler's choice.
        microseconds: median time of each backend, of AITER the fastest kernel's.
    """

    operation: str
    gfx: str
    compute_units: int
    m: int
    n: int
    k: int
    out: str
    backend: str
    kernel: str = ""
    splitk: int = 0
    microseconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Times of the backends in one line."""
        return ", ".join(f"{name} {time:.1f} us" for name, time in sorted(self.microseconds.items()))

    @property
    def key(self) -> tuple[str, str, int, int, int, int, str]:
        """Subject of the row."""
        return self.operation, self.gfx, self.compute_units, self.m, self.n, self.k, self.out


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Content of a choice table.

    Attributes:
        path: path of the file.
        rows: valid rows; empty if there is no file.
        problem: reason why the rows of the file are not used, or "".
    """

    path: Path
    rows: Mapping[tuple[Any, ...], Row] = field(default_factory=dict)
    problem: str = ""

    def find(
        self, operation: str, places: Iterable[tuple[str, int]], problems: Iterable[tuple[int, int, int, str]]
    ) -> Row | None:
        """Return the row of the first problem that is measured on each of the GPUs with the same result.

        Args:
            operation: name in OPERATIONS.
            places: processor and compute units of each kind of GPU.
            problems: m, n, k and out, the most exact first.
        """
        kinds = tuple(places)
        for problem in problems:
            rows = [self.rows.get((operation, *place, *problem)) for place in kinds]
            chosen = {(row.backend, row.kernel, row.splitk) for row in rows if row is not None}
            if len(chosen) == 1 and None not in rows:
                return rows[0]
        return None


def place(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the choice table."""
    if named := environment.get(OPTION, ""):
        return Path(named)
    cache_folder = environment.get("XDG_CACHE_HOME", "")
    return (Path(cache_folder) if cache_folder else Path.home() / ".cache") / "jax_aiter" / "choices.json"


def read(version: str, environment: Mapping[str, str] = os.environ) -> Measured:
    """Return the user's choice table; each file is read once per process.

    Args:
        version: version of jax_aiter.
        environment: variables, of which JAX_AITER_CHOICES is read.

    Raises:
        ChoiceTableError: the file is damaged, or JAX_AITER_CHOICES names no file.
    """
    path = place(environment)
    if not path.is_file():
        if environment.get(OPTION, ""):
            raise ChoiceTableError(f"{OPTION}={path} names no file. Run `python -m jax_aiter bench`, or unset it.")
        return Measured(path=path)
    return _read(path, version)


@cache
def _read(path: Path, version: str) -> Measured:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, not {SCHEMA}")
        rows = tuple(_row(entry) for entry in data["rows"])
        versions = str(data["jax_aiter"]), str(data["jaxlib"])
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as problem:
        why = f"{problem} is missing" if isinstance(problem, KeyError) else str(problem)
        text = f"{path} is not a valid choice table: {why}. Delete it, or run `python -m jax_aiter bench` again."
        raise ChoiceTableError(text) from problem
    if versions != (version, version_of("jaxlib")):
        text = f"it was measured with jax_aiter {versions[0]} and jaxlib {versions[1]}; run bench again"
        return Measured(path=path, problem=text)
    return Measured(path=path, rows={row.key: row for row in rows})


def _row(entry: Mapping[str, Any]) -> Row:
    row = Row(**entry)
    for name in ("compute_units", "m", "n", "k", "splitk"):
        if not isinstance(getattr(row, name), int):
            raise TypeError(f"{name} is {getattr(row, name)!r}, not an integer")
    if row.operation not in OPERATIONS or row.backend not in BACKENDS:
        raise ValueError(f"{row.operation} with {row.backend} is not an operation with a backend")
    if not all(isinstance(time, int | float) for time in row.microseconds.values()):
        raise TypeError("microseconds has something other than numbers")
    return row


def write(path: Path, version: str, rows: Sequence[Row]) -> None:
    """Add rows to a choice table, replacing those of the same products and those of other versions.

    Raises:
        ChoiceTableError: the existing file is damaged.
        OSError: the file cannot be written.
    """
    old = _read(path, version).rows if path.is_file() else {}
    merged = {**old, **{row.key: row for row in rows}}
    body = {
        "schema": SCHEMA,
        "jax_aiter": version,
        "jaxlib": version_of("jaxlib"),
        "rows": [asdict(row) for _, row in sorted(merged.items())],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
        json.dump(body, draft, indent=1)
        draft.write("\n")
    Path(draft.name).replace(path)
    _read.cache_clear()
