"""Text in the width of a terminal: lines and tables broken between words.

Words are never broken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_UNIT = re.compile(r"\s*(?:[^\s`]|`[^`]*`|`)+")
"""A word with the space before it; a command in backticks is one word, since users copy it."""
_INDENT = 2
"""Columns by which the second row of a broken line is indented."""
_GAP = "  "
"""Space between two columns of a table."""
_PLAIN_WIDTH = 160
"""Width in characters of a table without a terminal; one with longer words is wider."""


def width_of(stream: TextIO) -> int | None:
    """Return the number of columns of the terminal behind a stream.

    None if there is no terminal.
    """
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # no descriptor, no terminal, or a closed stream
        return None


def printable(text: str) -> str:
    """Return a text in one line.

    Control characters, which could move the cursor, are replaced by spaces.
    """
    return _CONTROL.sub(" ", text)


def fold(text: str, width: int | None, indent: int = _INDENT) -> str:
    """Break the lines of a text between words where they exceed a width; a longer word stays whole.

    A terminal breaks long words, such as paths, URLs and commands, by itself without a
    line break, so that they can be copied.

    Args:
        width: number of columns; None breaks nothing.
        indent: columns by which the second row of a line is indented more than the
            line.
    """
    if width is None:
        return text
    return "\n".join(
        row for line in text.split("\n") for row in _fold_line(line, width, indent)
    )


def _fold_line(line: str, width: int, indent: int) -> list[str]:
    from rich.cells import cell_len  # Start-up time: importing rich costs 0.1 s.

    if cell_len(line) <= width:
        return [line]
    start = " " * (len(line) - len(line.lstrip(" ")) + indent)
    rows = [""]
    for unit in _UNIT.findall(line):
        # A word that is longer than a row stays on its row, which the terminal breaks.
        if (
            not rows[-1].strip()
            or cell_len(rows[-1] + unit) <= width
            or cell_len(start + unit.lstrip()) > width
        ):
            rows[-1] += unit
        else:
            rows.append(start + unit.lstrip())
    return rows


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[int] = (),
    width: int | None = None,
) -> str:
    """Return a table as text, in which words are whole.

    If it cannot be narrow enough, a block of lines for each row.

    Args:
        numeric: indices of the columns that are aligned on the right.
        width: number of columns of the terminal; None for no terminal, where a line has
            160 columns or more.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    cells = [
        [column, *(row[number] for row in rows)]
        for number, column in enumerate(columns)
    ]
    room = (width or _PLAIN_WIDTH) - len(_GAP) * (len(columns) - 1)
    widths = _column_widths(cells, room)
    if sum(widths) > room and width is not None:
        return "\n".join(
            fold(line, width) for row in rows for line in _block(columns, row)
        )
    line = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (
        sum(widths) + len(_GAP) * (len(columns) - 1)
    )
    heading, *others = (list(_row(row, widths, numeric)) for row in (columns, *rows))
    return "\n".join(["", *heading, line, *(text for row in others for text in row)])


def _column_widths(cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of columns, as narrow as words allow if room is short."""
    from rich.cells import cell_len  # Start-up time: importing rich costs 0.1 s.

    widths = [max(map(cell_len, column)) for column in cells]
    least = [
        max(
            (cell_len(unit.strip()) for cell in column for unit in _UNIT.findall(cell)),
            default=0,
        )
        for column in cells
    ]
    while sum(widths) > max(room, sum(least)):
        widest = max(
            range(len(widths)),
            key=lambda number: (widths[number] > least[number], widths[number]),
        )
        widths[widest] -= 1
    return widths


def _row(
    cells: Sequence[str], widths: Sequence[int], numeric: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a row."""
    from rich.cells import cell_len  # Start-up time: importing rich costs 0.1 s.

    folded = [
        fold(cell, width, 0).split("\n")
        for cell, width in zip(cells, widths, strict=True)
    ]
    for parts in zip_longest(*folded, fillvalue=""):
        spaces = [
            " " * (width - cell_len(part))
            for part, width in zip(parts, widths, strict=True)
        ]
        padded = [
            space + part if number in numeric else part + space
            for number, (part, space) in enumerate(zip(parts, spaces, strict=True))
        ]
        yield _GAP.join(padded).rstrip()


def _block(columns: Sequence[str], row: Sequence[str]) -> Iterator[str]:
    """Yield the first cell of a row, then its other nonempty cells with their headings."""
    yield row[0]
    yield from (
        f"  {column}: {cell}"
        for column, cell in zip(columns[1:], row[1:], strict=True)
        if cell
    )
