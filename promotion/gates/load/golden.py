"""Golden lists: reviewed lists of everything that the wheels for one JAX version register.

`plugin/golden/<jax>.toml` lists the handlers of each extension module;
`pjrt/golden/<jax>.toml` lists the C API of XLA's plugin and the handlers that jax
registers with the plugin. `ci_build gate load SET --update` writes the lists, so
that a change shows in review.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import FormatError
from core.records import read_table

Lists = Mapping[str, Mapping[str, str | int]]
"""Section (such as `_solver.registrations`) -> name -> value (such as the type of the handler)."""

PARTS = ("plugin", "pjrt")
ROOT = Path(__file__).parents[3]
"""Directory that contains `plugin/golden` and `pjrt/golden`."""

_HEADER = """\
# What the {part} wheel for jax {jax_version} registers.
# `ci_build gate load SET --update` writes this file.
# {about}
"""
_ABOUT = {
    "plugin": "Handler = its stages, or `custom call`. Type = its parts.",
    "pjrt": (
        "The C API: PJRT_Extension_Type = bytes of its table. Handlers that jax"
        " registers: name = FFI API version."
    ),
}


def golden_file(root: Path, part: str, jax_version: str) -> Path:
    """Return the path of the list of one part for one JAX version."""
    return root / part / "golden" / f"{jax_version}.toml"


def digest(root: Path) -> str:
    """Return the SHA-256 over all golden lists."""
    sums = hashlib.sha256()
    for part in PARTS:
        for path in sorted((root / part / "golden").glob("*.toml")):
            sums.update(
                f"{part} {path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
            )
    return sums.hexdigest()


def read(path: Path) -> Lists | None:
    """Read a golden list; None when the file does not exist.

    Raises:
        FormatError: the file is not a golden list.
    """
    if not path.exists():
        return None
    hint = "Fix the file, or write it again with --update."
    try:
        return dict(_sections(read_table(path, hint=hint), ()))
    except TypeError as problem:
        raise FormatError(
            f"{path} is not a golden list: {problem}.", hint=hint
        ) from problem


def dump(lists: Lists, *, part: str, jax_version: str) -> str:
    """Return the text of a golden list; equal lists have equal text."""
    out = [_HEADER.format(part=part, jax_version=jax_version, about=_ABOUT[part])]
    for section, rows in sorted(lists.items()):
        out.append(f"\n[{section}]\n")
        out += [
            f"{_key(name)} = {json.dumps(value)}\n"
            for name, value in sorted(rows.items())
        ]
    return "".join(out)


def differences(golden: Lists, found: Lists) -> Iterator[tuple[str, str]]:
    """Yield (section, description) for each section that differs from the golden list."""
    for section in sorted(golden.keys() | found.keys()):
        expected = golden.get(section, {})
        actual = found.get(section, {})
        parts = [
            ("does not register", sorted(expected.keys() - actual.keys())),
            ("registers in addition", sorted(actual.keys() - expected.keys())),
            (
                "registers otherwise",
                [
                    f"{name} ({actual[name]}, not {expected[name]})"
                    for name in sorted(expected.keys() & actual.keys())
                    if actual[name] != expected[name]
                ],
            ),
        ]
        if text := "; ".join(
            f"{verb} {', '.join(names)}" for verb, names in parts if names
        ):
            yield section, text


def _sections(
    table: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, str | int]]]:
    rows = {name: value for name, value in table.items() if not isinstance(value, dict)}
    if not all(isinstance(value, (str, int)) for value in rows.values()) or (
        rows and not path
    ):
        raise TypeError(
            f"section {'.'.join(path) or 'at the top'} has values that are neither"
            " strings nor integers"
        )
    if rows or (path and not table):
        yield ".".join(path), rows
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _sections(value, (*path, name))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
