"""Values of JSON and TOML files: conversion, and messages with file and key."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from core.errors import FormatError
from core.records import parse_toml, read_json, read_toml


class _Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class _Row:
    size: int
    colour: _Colour = _Colour.RED
    pattern: re.Pattern[str] = re.compile("")
    versions: SpecifierSet | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("below 0")


@dataclass(frozen=True, kw_only=True)
class _File:
    rows: tuple[_Row, ...]
    named: Mapping[str, Mapping[str, _Row]] = field(default_factory=dict)
    numbers: Mapping[int, str] = field(default_factory=dict)


def test_json_valid_values_converted() -> None:
    row = b'{"size": 1, "colour": "red", "pattern": "a+", "versions": ">=1"}'
    text = b'{"schema": 2, "rows": [%b], "numbers": {"3": "x"}}' % row
    expected = _Row(size=1, pattern=re.compile("a+"), versions=SpecifierSet(">=1"))
    assert read_json(text, _File, "f", schema=2) == _File(
        rows=(expected,), numbers={3: "x"}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 1", "f.toml: rows: expected array, got int."),
        ("", "f.toml: missing key rows."),
        ("rows = [{}]", "f.toml: rows[0]: missing key size."),
        ("rows = [{size = true}]", "f.toml: rows[0].size: expected int, got bool."),
        ("rows = [{size = -1}]", "f.toml: rows[0]: below 0."),
        ("rows = [{size = 1, colour = 'x'}]", "f.toml: rows[0].colour: "),
        ("rows = [{size = 1, pattern = '('}]", "f.toml: rows[0].pattern: not a reg"),
        ("rows = [{size = 1, versions = '!'}]", "f.toml: rows[0].versions: invalid"),
        ("rows = [{size = 1, more = 1}]", "f.toml: unknown keys: rows[0].more."),
        (
            "rows = []\nnamed.a.b.size = 1\nnamed.a.c.size = ''",
            "f.toml: named.a.c.size: expected int, got str.",
        ),
        (
            "rows = []\nnamed.a.b = {size = 1, more = 2}",
            "f.toml: unknown keys: named.a.b.more.",
        ),
        ("rows = []\nnumbers.a = 'x'", "f.toml: numbers: expected int, got str."),
        ("rows", "f.toml is not TOML: "),
    ],
)
def test_toml_wrong_value_names_file_and_key(text: str, message: str) -> None:
    with pytest.raises(FormatError) as error:
        parse_toml(text.encode(), _File, "f.toml")
    assert error.value.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"rows": []}', "f: schema: missing key."),
        (b'{"schema": 1, "rows": []}', "f: schema: expected 2, got 1."),
        (b"[]", "f: schema: missing key."),
        (b"{", "f is not JSON: "),
        (b"\xff", "f is not JSON: "),
        (b"[" * 100_000, "f is not JSON: "),
    ],
)
def test_json_damaged_text_names_file(text: bytes, message: str) -> None:
    with pytest.raises(FormatError) as error:
        read_json(text, _File, "f", schema=2)
    assert error.value.message.startswith(message)


def test_toml_missing_file_reported(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_toml(tmp_path / "f.toml", _File)
