"""Lines and tables in the width of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from core.terminal import fold

WORDS = st.text(
    st.sampled_from("ab/.`") | st.sampled_from("\u4e2d"), min_size=1, max_size=12
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("short", ["short"]),
        ("one two three four", ["one two", "  three", "  four"]),
        ("  one two three", ["  one two", "    three"]),
        (
            "error: /a/path/longer/than/a/row is wrong",
            ["error: /a/path/longer/than/a/row", "  is", "  wrong"],
        ),
        ("run `ci_build gate all` now", ["run `ci_build gate all`", "  now"]),
        ("\u4e2d\u4e2d \u4e2d\u4e2d\u4e2d", ["\u4e2d\u4e2d", "  \u4e2d\u4e2d\u4e2d"]),
        ("a\nb", ["a", "b"]),
        ("", [""]),
    ],
)
def test_fold_breaks_lines_between_words(text: str, rows: list[str]) -> None:
    assert fold(text, 9).split("\n") == rows


@given(st.lists(WORDS, max_size=20), st.integers(1, 40))
def test_fold_keeps_all_words_and_is_stable(words: list[str], width: int) -> None:
    text = " ".join(words)
    folded = fold(text, width)
    assert folded.split() == text.split()
    for row in folded.split("\n"):
        assert (
            cell_len(row) <= width
            or cell_len(row.split()[-1]) + 2 > width
            or "`" in row
        )
    assert fold(text, None) == text
