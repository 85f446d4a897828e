"""A terminal as SVG.

Text with positions and colours, drawn in the fonts of the reader's machine.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from itertools import groupby

import pyte
from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.text import Text

# As rich's own format, without its fonts, which browsers would load from another
# server.
_FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_LINES = 500
"""Lines of the terminal, more than any command prints."""


def draw(command: str, output: bytes, columns: int) -> str:
    """Return the SVG of a terminal after a command that wrote some bytes."""
    screen = pyte.Screen(columns, _LINES)
    pyte.ByteStream(screen).feed(output)
    rows = [_styled(screen.buffer[line], columns) for line in range(screen.cursor.y)]
    while rows and not rows[-1].plain:
        rows.pop()
    console = Console(
        width=columns,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for row in rows:
        console.print(row, no_wrap=True, crop=False)
    return console.export_svg(title="", code_format=_FORMAT, unique_id="terminal")


def _styled(row: Mapping[int, Char], columns: int) -> Text:
    """Return a row of the terminal emulator as text with styles."""
    cells = [row[column] for column in range(columns)]
    text = Text()
    for style, run in groupby(
        cells, lambda cell: (cell.fg, cell.bg, cell.bold, cell.italics, cell.reverse)
    ):
        front, back, bold, italic, reverse = style
        look = Style(
            color=_color(front),
            bgcolor=_color(back),
            bold=bold,
            italic=italic,
            reverse=reverse,
        )
        text.append("".join(cell.data for cell in run), look)
    text.rstrip()
    return text


def _color(name: str) -> str | None:
    """Return the name of a colour of the emulator for rich."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("bright", "bright_").replace("brown", "yellow")
