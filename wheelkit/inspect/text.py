"""Text report of an inspection: sizes, device code, libraries, findings.

Readable in 100 columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import PurePosixPath

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from core.model import Finding, Severity
from core.terminal import fold, table
from core.units import human
from wheelkit.findings import finding_kinds
from wheelkit.inspect.inspection_model import WheelMetadata, WheelReport

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_INDENT = 2
_SHOWN_MEMBERS = 3
_SHOWN_LIBRARIES = 12


def render(report: WheelReport, console: Console) -> None:
    """Print one wheel's report."""
    console.print()
    console.print(
        report.filename, style="bold", markup=False, highlight=False, soft_wrap=True
    )
    width = console.width - _INDENT
    _print(console, _facts(report, width))
    for heading, block in (
        ("Content", _parts(report, width) if report.parts else None),
        (_device_heading(report), _device(report, width) if report.targets else None),
        ("Libraries", _libraries(report, width) if report.elfs else None),
    ):
        if block is not None:
            _print(console, block, heading=heading)
    render_findings(report.findings, console)


def render_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print findings grouped by kind, with the place and the remedy."""
    _print(
        console,
        _findings(findings) if findings else _line("nothing found"),
        heading="Findings",
    )
    counts = []
    for s in Severity:
        counts.append(f"{sum(f.severity is s for f in findings)} {s.value}s")
    if findings:
        console.print(
            "  "
            + ", ".join(
                c.removesuffix("s") if c.startswith("1 ") else c for c in counts
            )
        )


def _print(console: Console, block: RenderableType, *, heading: str = "") -> None:
    if heading:
        console.print()
        console.print(heading, style="bold", markup=False, highlight=False)
    if isinstance(
        block, Text
    ):  # it has the right width, apart from words that users copy
        console.print(
            Text("\n").join(Text(" " * _INDENT) + line for line in block.split("\n")),
            soft_wrap=True,
        )
    else:
        console.print(Padding(block, (0, 0, 0, _INDENT)), highlight=False)


def _grid(*columns: str) -> Table:
    """Return a table without lines and headings; columns named `*` take the remaining width."""
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        grid.add_column(no_wrap=column != "*", overflow="fold")
    return grid


def _line(text: str, style: str = "") -> Text:
    """Return text without markup; control characters are replaced."""
    return Text(_safe(text), style=style, overflow="fold")


def _safe(text: str) -> str:
    return "".join(
        (
            letter
            if letter.isprintable() or letter == "\n"
            else "\N{REPLACEMENT CHARACTER}"
        )
        for letter in text
    )


def _rows(pairs: Sequence[tuple[str, str]], width: int) -> Text:
    """Return a line for each name with a value, in which words such as digests stay whole."""
    first = max(len(name) for name, value in pairs if value) + 2
    lines = []
    for name, value in pairs:
        if value:
            rows = fold(_safe(value), max(width - first, 1), 0).split("\n")
            lines.append(
                Text.assemble(
                    (name.ljust(first), "dim"), ("\n" + " " * first).join(rows)
                )
            )
    return Text("\n").join(lines)


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[int],
    width: int,
) -> Text:
    return Text(table(columns, rows, numeric, width).strip("\n"))


def _facts(report: WheelReport, width: int) -> Text:
    checked = "hashes not verified"
    if report.verified:
        checked = (
            "RECORD and device code checked" if report.targets else "RECORD checked"
        )
    rows = [
        (
            "size",
            (
                f"{human(report.size)} in {report.files} files, {checked}"
                if report.files
                else human(report.size)
            ),
        ),
        ("sha256", report.sha256),
    ]
    if report.metadata:
        rows += _metadata(report.metadata)
    if report.rocm:
        rows.append(
            (
                "ROCm",
                f"{', '.join(report.rocm)}, from the compiler's mark in the libraries",
            )
        )
    if report.platform:
        allowed = report.platform.external
        but = (
            f", given {len(allowed)} libraries of ROCm: {' '.join(allowed)}"
            if allowed
            else ""
        )
        rows.append(("runs on", f"{report.platform.policy}{but}"))
    return _rows(rows, width)


def _metadata(meta: WheelMetadata) -> Iterator[tuple[str, str]]:
    yield "summary", meta.summary
    yield "Python", meta.requires_python or "any (no Requires-Python)"
    yield "licence", ", ".join(filter(None, (meta.license, *meta.license_files)))
    always = [line for line in meta.requires_dist if "extra ==" not in line]
    yield "requires", ", ".join(always) or "nothing"
    if meta.extras:
        lines = [line.replace("'", '"') for line in meta.requires_dist]
        counts = {}
        for extra in meta.extras:
            counts[extra] = sum(f'extra == "{extra}"' in line for line in lines)
        yield (
            "extras",
            ", ".join(f"{extra} ({count})" for extra, count in counts.items()),
        )
    for group, entries in meta.entry_points.items():
        yield (
            "entry points",
            f"[{group}] "
            + ", ".join(f"{name} = {ref}" for name, ref in entries.items()),
        )


def _parts(report: WheelReport, width: int) -> Text:
    whole = sum(part.stored for part in report.parts) or 1
    rows = [
        (
            part.name,
            human(part.stored),
            f"{100 * part.stored / whole:.1f} %",
            human(part.unpacked),
        )
        for part in report.parts
    ]
    rows.append(
        ("sum", human(whole), "", human(sum(part.unpacked for part in report.parts)))
    )
    return _table(("part", "in the wheel", "share", "unpacked"), rows, (1, 2, 3), width)


def _device_heading(report: WheelReport) -> str:
    devices = [elf.device for elf in report.elfs if elf.device.bundles]
    formats = sorted(set(chain.from_iterable(device.formats for device in devices)))
    stored = sum(d.stored for d in devices)
    unpacked = sum(d.unpacked for d in devices)
    targets = (
        "1 target" if len(report.targets) == 1 else f"{len(report.targets)} targets"
    )
    if not formats:  # plain code objects, without a bundle around them
        objects = sum(1 for elf in report.elfs if elf.machine == "amdgpu")
        return (
            f"Device code: {targets} in {objects} code"
            f" object{'s' if objects > 1 else ''}"
        )
    bundles = sum(d.bundles for d in devices)
    many = "1 fat binary" if bundles == 1 else f"{bundles} fat binaries"
    return (
        f"Device code: {targets} in {many} ({', '.join(formats)}), {human(stored)} ->"
        f" {human(unpacked)}"
    )


def _device(report: WheelReport, width: int) -> Table:
    cells = [f"{code.target} {human(code.code_bytes)}" for code in report.targets]
    across = max(1, width // (max(map(len, cells)) + 2))
    grid = _grid(*[""] * across)
    height = -(-len(cells) // across)
    for row in range(height):
        grid.add_row(
            *(
                _line(cells[i]) if i < len(cells) else ""
                for i in range(row, height * across, height)
            )
        )
    return grid


def _libraries(report: WheelReport, width: int) -> Text:
    rows = []
    for elf in sorted(report.elfs, key=lambda item: -item.size)[:_SHOWN_LIBRARIES]:
        versions = " ".join(
            f"{prefix}_{number}"
            for prefix, number in elf.symbol_versions.items()
            if "GLIBC" in prefix
        )
        rows.append(
            (
                _safe(PurePosixPath(elf.path).name),
                human(elf.size),
                human(elf.symbol_table_bytes) if elf.symbol_table_bytes else "-",
                (
                    f"{len(elf.device.targets)} x {elf.device.bundles}"
                    if elf.device.bundles
                    else "-"
                ),
                f"{len(elf.runpath) or '-'}" + (" (RPATH)" if elf.rpath else ""),
                _safe(versions),
            )
        )
    shown = _table(
        ("file", "size", "symbols", "targets", "RUNPATH", "highest versions"),
        rows,
        (1, 2, 3, 4),
        width,
    )
    more = len(report.elfs) - _SHOWN_LIBRARIES
    return shown.append(f"\nand {more} more", "dim") if more > 0 else shown


def _findings(findings: Sequence[Finding]) -> Table:
    grid = _grid("", "*")
    for (severity, code), group in itertools.groupby(
        findings, key=lambda item: (item.severity, item.code)
    ):
        items = list(group)
        head = Text.assemble(
            (finding_kinds()[code].title, "bold"), (f"  {code}", "dim")
        )
        grid.add_row(Text(severity.value, style=_STYLE[severity]), head)
        for item in items[:_SHOWN_MEMBERS]:
            place = PurePosixPath(item.member).name
            message = (
                item.message.replace("It ", "it ", 1)
                if item.message.startswith("It ")
                else item.message
            )
            grid.add_row("", _line(f"{place}: {message}" if place else item.message))
        if len(items) > _SHOWN_MEMBERS:
            hidden = items[_SHOWN_MEMBERS:]
            names = list(
                dict.fromkeys(PurePosixPath(item.member).name for item in hidden)
            )
            named = (
                f" in {', '.join(names)}"
                if all(names) and len(names) <= _SHOWN_LIBRARIES
                else ""
            )
            grid.add_row("", _line(f"and {len(hidden)} more{named}"))
        grid.add_row("", _line(f"-> {items[0].remedy}", "green"))
    return grid
