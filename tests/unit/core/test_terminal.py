"""Lines and tables in the width of a terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from core.terminal import fold, table, width_of

WORDS = st.text(st.sampled_from("ab/.`") | st.sampled_from("\u4e2d"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("short", ["short"]),
        ("one two three four", ["one two", "  three", "  four"]),
        ("  one two three", ["  one two", "    three"]),
        ("error: /a/path/longer/than/a/row is wrong", ["error: /a/path/longer/than/a/row", "  is", "  wrong"]),
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
        assert cell_len(row) <= width or cell_len(row.split()[-1]) + 2 > width or "`" in row
    assert fold(text, None) == text


def test_no_terminal_has_no_width() -> None:
    assert width_of(io.StringIO()) is None


ROWS = [("gfx942", "Instinct MI300X", "3", "\x1b[31m\nred"), ("gfx90a", "MI210", "22", "")]
COLUMNS = ("target", "product", "size", "note")


def test_table_narrows_the_widest_column_between_words() -> None:
    assert table(COLUMNS, ROWS, (2,), 32).splitlines() == [
        "",
        "target  product   size  note",
        "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 32,
        "gfx942  Instinct     3   [31m",
        "        MI300X           red",
        "gfx90a  MI210       22",
    ]


def test_table_that_cannot_fit_becomes_a_block_for_each_row() -> None:
    assert table(COLUMNS, ROWS, (2,), 20).splitlines() == [
        "gfx942", "  product: Instinct", "    MI300X", "  size: 3", "  note:  [31m red", "gfx90a",
        "  product: MI210", "  size: 22",
    ]  # fmt: skip


def test_table_without_a_terminal_never_breaks_words() -> None:
    url = "https://host.invalid/" + "a" * 200
    text = table(("version", "URL"), [("7.2", url), ("7.1 " * 50, "x")])
    assert url in text
    assert max(map(len, text.splitlines())) < 240
