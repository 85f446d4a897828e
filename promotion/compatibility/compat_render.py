"""Compatibility tables as reStructuredText for Sphinx and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from promotion.compatibility.tables import ModuleRow, Tables

_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Link:
    """A link with its text."""

    text: str
    url: str


Cell = tuple[str | Link, ...]
"""The lines of a cell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A table before it is rendered."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def sheets(tables: Tables, *, base: str = "") -> tuple[Sheet, ...]:
    """Return the tables in order, each with a note.

    Args:
        base: prefix of the keys of evidence, such as the URL of the bucket with a slash
            at the end.
    """
    inside = ("digest", "jax", "rocm", "python", "system")
    images = Sheet(
        title="Images",
        note="Container images by digest, and what is inside."
        + ("" if tables.images else " No image was given."),
        columns=("Image", "Digest", "JAX", "ROCm", "Python", "System", "Tests in it"),
        rows=tuple(
            # Tags of an image are more readable than `name`, which is a digest of the
            # contents.
            (
                tuple(map(str, image.get("tags") or (image.get("name") or _NOTHING,))),
                *((str(image.get(key) or _NOTHING),) for key in inside),
                tuple(_link(key, base) for key in image["evidence"]) or ("none",),
            )
            for image in tables.images
        ),
    )
    sets = Sheet(
        title="Wheel sets",
        note=(
            f"Sets promoted to the index {tables.index}, and how strongly they were"
            " tested on each target."
        ),
        columns=("JAX", "ROCm", "Python", "Tested on", "Offered", "Evidence"),
        rows=tuple(
            (
                (row.jax,),
                (row.rocm,),
                (", ".join(row.pythons),),
                tuple(f"{target}: {tier}" for target, tier in sorted(row.tiers.items()))
                or (_NOTHING,),
                ("yes" if row.offered else "no",),
                (Link(row.digest[:12], base + row.evidence),),
            )
            for row in tables.sets
        ),
    )
    libraries = Sheet(
        title="ROCm libraries",
        note=(
            f"Versions in ROCm {tables.rocm}."
            if tables.rocm
            else "No ROCm was given, so versions are unknown."
        ),
        columns=("Library", "Version", "Purpose", "Used in", "Read from"),
        rows=tuple(
            (
                (row.library.name,),
                (row.version or _NOTHING,),
                (row.library.purpose,),
                (row.library.used_in,),
                (tables.rocm_source if row.version else _NOTHING,),
            )
            for row in tables.libraries
        ),
    )
    modules = Sheet(
        title="JAX modules",
        note=(
            "Support in the newest set according to its evidence, and the first"
            " versions with continuous support."
        ),
        columns=(
            "Module",
            "Description",
            "Since JAX",
            "Since ROCm",
            "Works on",
            "Known unsupported",
            "Evidence",
        ),
        rows=tuple(_module(row, base) for row in tables.modules),
    )
    return images, sets, libraries, modules


def _module(row: ModuleRow, base: str) -> tuple[Cell, ...]:
    works = tuple(
        f"{item.target}: {item.tier}, {item.checks} checks"
        for item in row.words
        if item.tier
    )
    bad: dict[str, list[str]] = {}
    for item in row.words:
        for name, reason in item.unsupported:
            bad.setdefault(f"{name}: {reason}" if reason else name, []).append(
                item.target
            )
    return (
        (row.module.name,),
        (row.module.description,),
        (row.since_jax or _NOTHING,),
        (row.since_rocm or _NOTHING,),
        works or (("does not work",) if row.words else ("not tested",)),
        tuple(f"{what} ({', '.join(targets)})" for what, targets in bad.items())
        or (_NOTHING,),
        tuple(_link(item.evidence, base) for item in row.words) or (_NOTHING,),
    )


def _link(key: str, base: str) -> Link:
    """Return a link to evidence, named after the gate and the target in its key."""
    gate, target = key.split("/")[-3:-1]
    return Link(f"{gate} {target}", base + key)


def to_markdown(title: str, tables: Iterable[Sheet]) -> str:
    """Return the tables as GitHub Markdown."""
    lines = [f"# {title}", ""]
    for sheet in tables:
        lines += [f"## {sheet.title}", "", sheet.note, ""]
        if sheet.rows:
            lines += [_row(sheet.columns), _row(["---"] * len(sheet.columns))]
            lines += [
                _row("<br>".join(map(_markdown, cell)) for cell in row)
                for row in sheet.rows
            ]
            lines.append("")
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(line: str | Link) -> str:
    text = _escaped(line if isinstance(line, str) else line.text, "\\|<>*_`")
    return (
        text if isinstance(line, str) else f"[{text}]({quote(line.url, safe=':/+~')})"
    )


def _escaped(text: str, special: str) -> str:
    for character in special:
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def to_rst(title: str, tables: Sequence[Sheet]) -> str:
    """Return the tables as reStructuredText with list-tables, which need no widths."""
    lines = ["=" * len(title), title, "=" * len(title), ""]
    for sheet in tables:
        lines += [sheet.title, "-" * len(sheet.title), "", sheet.note, ""]
        if sheet.rows:
            lines += [".. list-table::", "    :header-rows: 1", ""]
            for row in ([(name,) for name in sheet.columns], *sheet.rows):
                for number, cell in enumerate(row):
                    marks = [
                        "      - " if number else "    * - ",
                        *[" " * 8] * (len(cell) - 1),
                    ]
                    lines += [
                        f"{mark}| {_rst(line)}"
                        for mark, line in zip(marks, cell, strict=False)
                    ]
            lines.append("")
    return "\n".join(lines)


def _rst(line: str | Link) -> str:
    text = _escaped(line if isinstance(line, str) else line.text, "\\*`|_")
    return (
        text
        if isinstance(line, str)
        else f"`{text} <{quote(line.url, safe=':/+~')}>`__"
    )
