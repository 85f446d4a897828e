"""Checks of the contents of wheels."""

from __future__ import annotations

import ast
from unittest import mock

import pytest

from wheelkit.inspect import contents


def test_equal_files_of_several_wheels_are_parsed_once() -> None:
    source = b"print(once := 1)\n"
    with mock.patch.object(ast, "parse", wraps=ast.parse) as parse:
        texts = [contents._syntax(source, (3, minor))[0] for minor in (7, 7, 8)]
    assert parse.call_count == 2, "once for each Python"
    assert texts[0] == texts[1]
    assert "in line 1" in texts[0]
    assert texts[2] == ""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (b"assert register() is None\n", 1),
        (b"x = 1\nassert x or start(x)\n", 2),
        (b"assert path.exists()\n", 1),
        (b"assert isinstance(x, int) and all(len(y) > 1 for y in x)\n", 0),
        (b"assert commit_hash.isalnum()\n", 0),
        (b"register()\n", 0),
        (b"assert (\n", 0),
    ],
)
def test_acting_assert_finds_calls(source: bytes, line: int) -> None:
    assert contents._acting_assert(source) == line
