"""Lines and tables in the width of a terminal."""

from __future__ import annotations

import pytest

from core.terminal import fold, table


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("short", ["short"]),
        ("one two three four", ["one two", "  three", "  four"]),
        ("  one two three", ["  one two", "    three"]),
        (
            "at /a/path/longer/than/a/row is",
            ["at", "  /a/path/longer/than/a/row", "  is"],
        ),
        ("run `ci_build gate all` now", ["run", "  `ci_build gate all`", "  now"]),
        ("a\nb", ["a", "b"]),
        ("", [""]),
    ],
)
def test_fold_breaks_lines_between_words(text: str, rows: list[str]) -> None:
    assert fold(text, 9).split("\n") == rows


def test_table_folds_cells_and_aligns_numbers() -> None:
    rows = [
        ("a wheel", "9.0 MB"),
        ("b\x1b[2J", "10.0 MB"),
    ]
    text = table(("name", "size"), rows, (1,))
    assert text.splitlines() == [
        "",
        "name         size",
        text.splitlines()[2],
        "a wheel    9.0 MB",
        "b [2J     10.0 MB",
    ]
    narrow = table(("name", "size"), rows, (1,), 12).splitlines()
    assert max(map(len, narrow)) <= 12
