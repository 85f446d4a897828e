"""TOML and JSON files as frozen dataclasses: msgspec converts and checks the values."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec

from core.errors import FormatError

_T = TypeVar("_T")
_ANY_KEY = "[...]"
"""msgspec's mark for a key of a mapping in the path of a value."""


def read_toml(path: Path, kind: type[_T], *, schema: int = 0, hint: str = "") -> _T:
    """Read a TOML file.

    Args:
        kind: a dataclass, or another type that msgspec converts to.
        schema: required value of the key `schema`; 0 for a file without a schema.
        hint: remedy for a file in another format.

    Raises:
        FormatError: the file cannot be read, or has another format.
    """
    return convert(
        read_table(path, hint=hint), kind, str(path), schema=schema, hint=hint
    )


def read_table(path: Path, *, hint: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file; FormatError if it cannot be read or is not TOML."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror}.", hint=hint
        ) from error
    return parse_table(data, str(path), hint=hint)


def parse_table(data: bytes, source: str, *, hint: str = "") -> dict[str, Any]:
    """Return the tables in the bytes of a TOML file; FormatError if they are not TOML."""
    try:
        return tomllib.loads(data.decode())
    except ValueError as error:
        raise FormatError(f"{source} is not TOML: {error}.", hint=hint) from error


def parse_toml(
    data: bytes, kind: type[_T], source: str, *, schema: int = 0, hint: str = ""
) -> _T:
    """Return the value in the bytes of a TOML file; see `read_toml` and `convert`."""
    body = parse_table(data, source, hint=hint)
    return convert(body, kind, source, schema=schema, hint=hint)


def add_names(tables: object) -> None:
    """Store the key of each table in a table of tables as its `name`."""
    if isinstance(tables, dict):
        for name, table in tables.items():
            if isinstance(table, dict):
                table["name"] = name


def read_json(
    data: str | bytes, kind: type[_T], source: str, *, schema: int = 0, hint: str = ""
) -> _T:
    """Return the value in JSON text; see `read_toml` and `convert`."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FormatError(f"{source} is not JSON: {error}.", hint=hint) from error
    return convert(body, kind, source, schema=schema, hint=hint)


def convert(
    body: Any,  # noqa: ANN401 - any value of JSON or TOML
    kind: type[_T],
    source: str,
    *,
    schema: int = 0,
    hint: str = "",
) -> _T:
    """Return a value of a type from values of JSON or TOML.

    Unknown keys of dataclasses are refused. A `__post_init__` that raises ValueError
    adds checks, whose messages get the name of the file and the key.

    Args:
        source: name of the file in messages.

    Raises:
        FormatError: a key is missing or unknown, or a value has a wrong type.
    """
    if schema:
        body = _without_schema(body, schema, source, hint)
    try:
        value = _converted(body, kind)
    except ValueError as error:
        message = str(error)
        problem, path = _problem(message)
        place = _named_path(body, path, lambda: _fails(body, kind, message))
        where = f"{place}: " if place else ""
        raise FormatError(f"{source}: {where}{problem}.", hint=hint) from error
    unknown = ", ".join(_unknown_keys(body, value, ""))
    if unknown:
        raise FormatError(f"{source}: unknown keys: {unknown}.", hint=hint)
    return value


def _without_schema(body: object, schema: int, source: str, hint: str) -> object:
    """Return a table without its key `schema`, which must have the given value."""
    if not isinstance(body, dict) or "schema" not in body:
        raise FormatError(f"{source}: schema: missing key.", hint=hint)
    if body["schema"] != schema:
        raise FormatError(
            f"{source}: schema: expected {schema}, got {body['schema']!r}.",
            hint=hint or "Use the version of ci_build that wrote the file.",
        )
    return {key: value for key, value in body.items() if key != "schema"}


def _converted(body: object, kind: type[_T]) -> _T:
    """Convert a value; ValueError with msgspec's message for the first wrong value."""
    try:
        return msgspec.convert(body, kind, str_keys=True, dec_hook=_from_text)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _fails(body: object, kind: type, message: str) -> bool:
    """Return whether a conversion fails with this message."""
    try:
        _converted(body, kind)
    except ValueError as error:
        return str(error) == message
    return False


def _from_text(kind: type, value: object) -> object:
    """Return a value of a class that is not made for JSON, such as a regular expression."""
    if get_origin(kind) is not re.Pattern:
        return kind(value)
    try:
        return re.compile(str(value))
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


def _problem(message: str) -> tuple[str, str]:
    """Return problem and path of the value from a message of msgspec."""
    text, _, path = message.replace("`key` in ", "").partition(" - at `$")
    text = re.sub("^Object missing required field (.*)", r"missing key \1", text)
    text = text.replace("`", "")
    return text[:1].lower() + text[1:], path.rstrip("`").lstrip(".")


def _named_path(body: Any, path: str, fails: Callable[[], bool]) -> str:  # noqa: ANN401
    """Return a path with the keys for which msgspec has only a mark.

    A mapping is reduced to one key after the other until the conversion fails again.
    """
    named = ""
    node = body
    for part in re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", path):
        if part == _ANY_KEY and isinstance(node, dict):
            part = _failing_key(node, fails)
        index = part.startswith("[")
        named += part if index or not named else f".{part}"
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list) and index:
            node = node[int(part[1:-1])]
    return named


def _failing_key(node: dict[str, Any], fails: Callable[[], bool]) -> str:
    """Reduce a mapping to its failing key, and return that; `*` if no key fails alone."""
    entries = dict(node)
    for key, value in entries.items():
        node.clear()
        node[key] = value
        if fails():
            return key
    node.update(entries)
    return "*"


def _unknown_keys(body: Any, value: Any, path: str) -> Iterator[str]:  # noqa: ANN401
    """Yield the keys that the dataclasses of a converted value ignored."""
    if isinstance(body, list):
        if isinstance(value, (list, tuple)):
            for number, (part, converted) in enumerate(zip(body, value, strict=True)):
                yield from _unknown_keys(part, converted, f"{path}[{number}]")
        return
    if not isinstance(body, dict):
        return
    prefix = f"{path}." if path else ""
    if dataclasses.is_dataclass(value):
        names = {field.name for field in dataclasses.fields(value)}
        for key, part in body.items():
            if key in names:
                inner = getattr(value, key)
                yield from _unknown_keys(part, inner, f"{prefix}{key}")
            else:
                yield f"{prefix}{key}"
    elif isinstance(value, dict):
        # Numbers are texts in JSON. A TypedDict has no other keys than those it declares.
        for key, converted in value.items():
            yield from _unknown_keys(body[str(key)], converted, f"{prefix}{key}")
