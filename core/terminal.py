"""Text in the width of a terminal: lines and tables broken between words."""

from __future__ import annotations

import io
import os
import re
import textwrap
from collections.abc import Sequence
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_COMMAND = re.compile(r"`[^`]*`")
_NO_BREAK = "\N{NO-BREAK SPACE}"
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


def fold(text: str, width: int | None, indent: int = 2) -> str:
    """Break the lines of a text between words where they exceed a width.

    A word that is longer than a row stays whole: the terminal breaks it without a line
    break, so that paths, URLs, and commands in backticks can be copied.

    Args:
        width: number of columns; None breaks nothing.
        indent: columns by which the second row of a line is indented more than the
            line.
    """
    if width is None:
        return text
    rows: list[str] = []
    for line in text.split("\n"):
        start = " " * (len(line) - len(line.lstrip(" ")))
        whole = _COMMAND.sub(lambda match: match[0].replace(" ", _NO_BREAK), line)
        rows += textwrap.wrap(
            whole.lstrip(" "),
            width,
            initial_indent=start,
            subsequent_indent=start + " " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(rows).replace(_NO_BREAK, " ")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[int] = (),
    width: int | None = None,
) -> str:
    """Return a table as text.

    Args:
        numeric: indices of the columns that are aligned on the right.
        width: number of columns of the terminal; None for no terminal, where a line has
            160 columns, or more if words are longer.
    """
    # Start-up time: importing rich costs 0.1 s.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        grid.add_column(
            column,
            justify="right" if number in numeric else "left",
            overflow="fold",
        )
    for row in rows:
        grid.add_row(*[Text(printable(cell)) for cell in row])
    output = io.StringIO()
    console = Console(file=output, width=width or 1 << 16, color_system=None)
    if width is None:
        console.width = max(_PLAIN_WIDTH, console.measure(grid).minimum)
    console.print(grid)
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    return "\n".join(["", *lines])
