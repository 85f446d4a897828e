"""The TOML files of the repository: their own description and their keys, for the reference."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "table",
}
_LONGEST = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class TomlFile:
    """A TOML file.

    Attributes:
        path: relative to the repository.
        names: tables whose keys are names that the file chooses -> word for such a
            name. `*` stands for such a name in the path of a table; the table of the
            whole file is empty.
    """

    path: str
    names: Mapping[str, str]


TOML_FILES = (
    TomlFile(
        path="promotion/policy.toml",
        names={
            "": "channel",
            "*.tiers": "target",
            "*.device_members": "project",
            "*.sizes": "project",
            "*.gates": "gate",
            "*.keys": "key",
            "*.ledger_keys": "key",
            "*.attestations.identities": "identity",
            "*.index": "index",
            "*.gates.*.targets": "target",
            "*.gates.*.settings": "setting",
        },
    ),
    TomlFile(
        path="promotion/policy/families.toml",
        names={
            "when": "trigger",
            "family": "family",
            "family.*.single": "label",
            "family.*.multi": "label",
        },
    ),
    TomlFile(path="ci_build/release/continuous.toml", names={"": "night"}),
    TomlFile(path="core/defaults.toml", names={}),
    TomlFile(
        path="core/targets.toml",
        names={"targets": "target", "families": "family", "generics": "target"},
    ),
    TomlFile(path="core/rocm_layouts.toml", names={}),
    TomlFile(path="core/rocm_releases.toml", names={"": "name"}),
    TomlFile(path="ci_build/rocm/parts.toml", names={}),
    TomlFile(path="ci_build/wheelset/source/sources.toml", names={}),
    TomlFile(path="ci_build/wheelset/source/pins.toml", names={}),
    TomlFile(path="docker/images.toml", names={}),
    TomlFile(
        path="kernels/modules.toml", names={"modules": "module", "sources": "source"}
    ),
    TomlFile(path="kernels/toolchains.toml", names={}),
    TomlFile(path="promotion/compatibility/compatibility.toml", names={}),
    TomlFile(path="promotion/corpus/expectations.toml", names={}),
    TomlFile(path="promotion/evidence/ledgers/skips.toml", names={}),
    TomlFile(path="promotion/gates/compile/budget.toml", names={}),
    TomlFile(path="promotion/gates/coverage/kernel_rules.toml", names={}),
    TomlFile(path="promotion/gates/device/jax_suite.toml", names={}),
    TomlFile(path="promotion/gates/install/installers.toml", names={}),
    TomlFile(path="wheelkit/findings.toml", names={"*": "code", "": "severity"}),
)


def comment_of(file: TomlFile) -> str:
    """Return the comment at the top of a file, which describes it, without the comment signs."""
    lines = list[str]()
    for line in (ROOT / file.path).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") and (line or not lines):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines).strip()


def keys_of(file: TomlFile) -> Iterator[tuple[str, str, str]]:
    """Yield path, type and example of each key, once for tables with free names."""
    found: dict[str, tuple[str, str]] = {}
    data = tomllib.loads((ROOT / file.path).read_text(encoding="utf-8"))
    for path, value in _walk(data, "", "", file.names):
        found.setdefault(
            path, (_TYPES.get(type(value), type(value).__name__), _example(value))
        )
    yield from ((path, kind, example) for path, (kind, example) in found.items())


def _walk(
    table: Mapping[str, Any], path: str, shape: str, names: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the keys below a table.

    Args:
        path: path of the table with words for chosen names.
        shape: the same with `*` for chosen names.
    """
    for key, value in table.items():
        # At the top of a file, plain values such as `schema` are no chosen names.
        chosen = shape in names and not (shape == "" and not isinstance(value, dict))
        if chosen:
            word = f"<{names[shape]}>"
        elif re.fullmatch(r"[\w-]+", key):
            word = key
        else:
            word = f'"{key}"'
        below = _joined(path, word)
        below_shape = _joined(shape, "*" if chosen else key)
        if isinstance(value, dict) and value:
            yield from _walk(value, below, below_shape, names)
        elif (
            isinstance(value, list)
            and value
            and all(isinstance(item, dict) for item in value)
        ):
            for item in value:
                yield from _walk(item, f"{below}[]", below_shape, names)
        else:
            yield below, value


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _example(value: object) -> str:
    text = (
        " ".join(str(value).lower().split())
        if isinstance(value, bool)
        else " ".join(str(value).split())
    )
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
