"""Checks of the contents of wheels."""

from __future__ import annotations

import pytest

from wheelkit.inspect import contents


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (b"x = 1\nassert x or start(x)\n", 2),
        (b"assert path.exists()\n", 1),
        (b"assert isinstance(x, int) and all(len(y) > 1 for y in x)\n", 0),
        (b"assert (\n", 0),
    ],
)
def test_acting_assert_finds_calls(source: bytes, line: int) -> None:
    assert contents._acting_assert(source) == line
