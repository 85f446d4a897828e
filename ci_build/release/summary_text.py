"""A summary as Markdown for the job summary of a CI service, or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci_build.release.run_summary import RunSummary, SetSummary
from core.atomic import write_whole
from core.model import to_json
from core.units import human

_LONGEST = 100
"""Characters of a value that are shown."""
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


@dataclass(frozen=True, slots=True)
class _Heading:
    text: str
    level: int


@dataclass(frozen=True, slots=True)
class _Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


_Block = _Heading | _Table | str


def write_summary(summary: RunSummary, file: Path) -> None:
    """Write a summary as JSON if the file's name ends in .json, else append it as Markdown."""
    if file.suffix.lower() == ".json":
        text = json.dumps(to_json(summary), indent=1, ensure_ascii=False)
        write_whole(file, f"{text}\n".encode())
        return
    with file.open("a", encoding="utf-8") as stream:
        stream.write(as_markdown(summary))


def as_markdown(summary: RunSummary) -> str:
    """Return a summary as Markdown (GitHub Flavored Markdown, tables)."""
    return "\n\n".join(map(_markdown, _blocks(summary))) + "\n\n"


def _title(summary: RunSummary) -> str:
    return (
        f"{summary.command} {summary.index}, channel {summary.channel}, {summary.time}"
    )


def _blocks(summary: RunSummary) -> Iterator[_Block]:
    yield _Heading(_title(summary), 2)
    if not summary.sets:
        yield "Nothing to do."
    for one in summary.sets:
        yield from _set_blocks(one)


def _set_blocks(one: SetSummary) -> Iterator[_Block]:
    of = f": jax {one.jax}, ROCm {one.rocm}" if one.set else ""
    yield _Heading(f"{f'{one.name} ' if one.name else ''}{one.state}{of}", 3)
    if one.error:
        yield one.error
    if not one.set:
        return
    entry = f", ledger entry {one.entry}" if one.entry else ""
    compared = (
        f" Compared with set {one.baseline[:12]}."
        if one.baseline
        else " No set was promoted before."
    )
    yield f"Set {one.set}{entry}.{compared}"
    rows = [
        (row.target, row.before, row.now, "; ".join(row.blocked_by) or "-")
        for row in one.targets
    ]
    yield _Table(("target", "tier before", "tier now", "blocked by"), rows)
    if general := [text for text in one.blocked_by if text not in one.error]:
        yield from general
    if one.missing:
        yield _Heading("Evidence to produce", 4)
        yield _Table(
            ("gate", "target", "state", "command"),
            [
                (item.gate, item.target, " ".join(item.problems), item.command)
                for item in one.missing
            ],
        )
    if one.jobs and one.jobs.without_runner:
        yield f"No runner: {', '.join(one.jobs.without_runner)}."
    if one.changed:
        yield _Heading("Changed inputs", 4)
        inputs = [
            (name, _short(old), _short(new)) for name, (old, new) in one.changed.items()
        ]
        yield _Table(("field", "before", "now"), inputs)
    yield from _numbers(one)


def _numbers(one: SetSummary) -> Iterator[_Block]:
    """Yield the tables of sizes, checks of gates, and checks of the released index."""
    if one.sizes:
        yield _Heading("Sizes", 4)
        sizes = [
            (name, human(old) if old else "-", human(new), _growth(old, new))
            for name, (old, new) in one.sizes.items()
        ]
        yield _Table(("project", "before", "now", "growth"), sizes)
    if one.counts:
        yield _Heading("Gates", 4)
        words = ("passed", "known", "failed", "skipped")
        rows = []
        for item in one.counts:
            numbers = [_number(item.before, item.now, word) for word in words]
            about = (item.gate, item.target, item.outcome)
            rows.append((*about, *numbers, f"{item.seconds:.0f}"))
        yield _Table(("gate", "target", "result", *words, "seconds"), rows)
    if one.checks:
        yield _Heading("Released index, installed with pip and uv", 4)
        yield _Table(("check", "result"), [*one.checks.items()])


def _number(before: Mapping[str, int], now: Mapping[str, int], word: str) -> str:
    """Return a count, with the earlier one if it differs."""
    new = now.get(word, 0)
    old = before.get(word)
    return f"{new}" if old in (None, new) else f"{new} (before {old})"


def _growth(old: int, new: int) -> str:
    if not new:
        return "gone"
    return f"{(new - old) / old * 100:+.1f} %" if old else "new"


def _short(value: object) -> str:
    if value is None:
        return "-"
    text = value
    if not isinstance(text, str):
        text = json.dumps(to_json(value), sort_keys=True)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _markdown(block: _Block) -> str:
    if isinstance(block, str):
        return "  \n".join(map(_escaped, block.splitlines()))
    if isinstance(block, _Heading):
        return f"{'#' * block.level} {_escaped(block.text)}"
    lines = [block.columns, *block.rows]
    rows = [f"| {' | '.join(map(_escaped, row))} |" for row in lines]
    rows.insert(1, f"| {' | '.join(['---'] * len(block.columns))} |")
    return "\n".join(rows)


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
