"""Golden lists: what the wheels for one JAX version registered when somebody last looked at it and agreed.

`plugin/golden/<jax>.toml` lists what each extension module hands to XLA; `pjrt/golden/<jax>.toml` lists what XLA's
plugin offers through its C API and which handlers jax registers with it. `ci_build gate load SET --update-golden`
writes them, so that a change shows in review.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import GateError

Lists = Mapping[str, Mapping[str, str | int]]
"""Section, such as `_solver.registrations` -> name -> what is known of it, such as the stages of the handler."""

PARTS = ("plugin", "pjrt")
ROOT = Path(__file__).parents[3]
"""Where `plugin/golden` and `pjrt/golden` are."""

_HEADER = """\
# What the {part} wheel for jax {jax_version} registers; `ci_build gate load SET --update-golden` writes this file.
# {about}
"""
_ABOUT = {
    "plugin": "Each extension module: handler or type = its stages.",
    "pjrt": "The C API: PJRT_Extension_Type = bytes of its table. Handlers that jax registers: name = FFI API version.",
}


def golden_file(root: Path, part: str, jax_version: str) -> Path:
    """Where the list of one part for one JAX version is kept."""
    return root / part / "golden" / f"{jax_version}.toml"


def digest(root: Path) -> str:
    """SHA-256 over all golden lists: a gate that compared with others has another one."""
    sums = hashlib.sha256()
    for part in PARTS:
        for path in sorted((root / part / "golden").glob("*.toml")):
            sums.update(f"{part} {path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return sums.hexdigest()


def read(path: Path) -> Lists | None:
    """A golden list; None when there is none.

    Raises:
        GateError: it is no list of this form.
    """
    try:
        return dict(_sections(tomllib.loads(path.read_text(encoding="utf-8")), ()))
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as problem:
        hint = "Mend it, or write it anew with --update-golden."
        raise GateError(f"{path} is not a golden list: {problem}.", hint=hint) from problem


def dump(lists: Lists, *, part: str, jax_version: str) -> str:
    """The text of a golden list; equal lists give equal text."""
    out = [_HEADER.format(part=part, jax_version=jax_version, about=_ABOUT[part])]
    for section, rows in sorted(lists.items()):
        out.append(f"\n[{section}]\n")
        out += [f"{_key(name)} = {json.dumps(value)}\n" for name, value in sorted(rows.items())]
    return "".join(out)


def differences(golden: Lists, found: Lists) -> Iterator[tuple[str, str]]:
    """(section, what differs) for each section that is not as the golden list has it."""
    for section in sorted(golden.keys() | found.keys()):
        wanted, has = golden.get(section, {}), found.get(section, {})
        parts = [
            ("does not register", sorted(wanted.keys() - has.keys())),
            ("registers in addition", sorted(has.keys() - wanted.keys())),
            (
                "registers otherwise",
                [
                    f"{name} ({has[name]}, not {wanted[name]})"
                    for name in sorted(wanted.keys() & has.keys())
                    if has[name] != wanted[name]
                ],
            ),
        ]
        if text := "; ".join(f"{verb} {', '.join(names)}" for verb, names in parts if names):
            yield section, text


def _sections(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str | int]]]:
    rows = {name: value for name, value in table.items() if not isinstance(value, dict)}
    if not all(isinstance(value, (str, int)) for value in rows.values()) or (rows and not path):
        raise TypeError(f"section {'.'.join(path) or 'at the top'} has values that are neither texts nor numbers")
    if rows or (path and not table):
        yield ".".join(path), rows
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _sections(value, (*path, name))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
