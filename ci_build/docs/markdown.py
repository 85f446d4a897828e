"""Markdown of generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`+[^`]*`+)")
_SPECIAL = re.compile(r"([\\*_\[\]#])")


def plain(text: str) -> str:
    """Return text as Markdown that shows it unchanged; parts in backticks stay code."""
    parts = _CODE.split(text)
    return "".join(
        part if number % 2 else _escaped(part) for number, part in enumerate(parts)
    )


def _escaped(text: str) -> str:
    return (
        _SPECIAL.sub(r"\\\1", text)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace("|", "&#124;")
    )


def code(text: str) -> str:
    """Return text as inline code; backticks in it are kept by a longer fence."""
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def block(text: str) -> str:
    """Return text as a fenced block."""
    return f"```text\n{text.rstrip()}\n```"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown cells.

    `|` inside code must be escaped by the caller, as `plain` does for text.
    """
    lines = []
    for line in [columns, ["---"] * len(columns), *rows]:
        cells = " | ".join(cell.replace("\n", " ") for cell in line)
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def page(title: str, *parts: str) -> str:
    """Return a page from its title and its paragraphs, lists and tables."""
    return "\n\n".join((f"# {title}", *(part for part in parts if part))) + "\n"
