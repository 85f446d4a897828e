"""Text report of an inspection: sizes, device code, libraries, findings.

Readable in 100 columns.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import PurePosixPath

from rich.columns import Columns
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
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that could move the cursor."""
_SHOWN_LIBRARIES = 12


def render(report: WheelReport, console: Console) -> None:
    """Print one wheel's report."""
    console.print()
    console.print(
        report.filename, style="bold", markup=False, highlight=False, soft_wrap=True
    )
    width = console.width - _INDENT
    _print(console, _facts(report, width))
    if report.parts:
        _print(console, _parts(report, width), heading="Content")
    if report.targets:
        _print(console, _device(report), heading=_device_heading(report))
    if report.elfs:
        _print(console, _libraries(report, width), heading="Libraries")
    render_findings(report.findings, console)


def render_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print findings grouped by kind, with the place and the remedy."""
    _print(
        console,
        _findings(findings) if findings else _line("nothing found"),
        heading="Findings",
    )
    counts = Counter(item.severity for item in findings)
    if findings:
        console.print(f"  {', '.join(_count(counts[s], s.value) for s in Severity)}")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _print(console: Console, block: RenderableType, *, heading: str = "") -> None:
    if heading:
        console.print()
        console.print(heading, style="bold", markup=False, highlight=False)
    # Text has the right width, apart from words that users copy.
    if isinstance(block, Text):
        console.print(
            Text("\n").join(Text(" " * _INDENT) + line for line in block.split("\n")),
            soft_wrap=True,
        )
    else:
        console.print(Padding(block, (0, 0, 0, _INDENT)), highlight=False)


def _line(text: str, style: str = "") -> Text:
    """Return text without markup; control characters are replaced."""
    return Text(_safe(text), style=style, overflow="fold")


def _safe(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _rows(pairs: Sequence[tuple[str, str]], width: int) -> Text:
    """Return a line for each name with a value, in which words such as digests stay whole."""
    pairs = [(name, value) for name, value in pairs if value]
    first = max(len(name) for name, _ in pairs) + 2
    lines = []
    for name, value in pairs:
        folded = fold(_safe(value), max(width - first, 1), 0)
        indented = folded.replace("\n", "\n" + " " * first)
        lines.append(Text.assemble((name.ljust(first), "dim"), indented))
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
        checked = f"RECORD{' and device code' if report.targets else ''} checked"
    files = f" in {report.files} files, {checked}" if report.files else ""
    rows = [("size", f"{human(report.size)}{files}"), ("sha256", report.sha256)]
    if report.metadata:
        rows += _metadata(report.metadata)
    if report.rocm:
        origin = "from the compiler's mark in the libraries"
        rows.append(("ROCm", f"{', '.join(report.rocm)}, {origin}"))
    if report.platform:
        text = report.platform.policy
        if allowed := report.platform.external:
            text += f", given {len(allowed)} libraries of ROCm: {' '.join(allowed)}"
        rows.append(("runs on", text))
    return _rows(rows, width)


def _metadata(meta: WheelMetadata) -> Iterator[tuple[str, str]]:
    yield "summary", meta.summary
    yield "Python", meta.requires_python or "any (no Requires-Python)"
    yield "licence", ", ".join(filter(None, (meta.license, *meta.license_files)))
    always = [line for line in meta.requires_dist if "extra ==" not in line]
    yield "requires", ", ".join(always) or "nothing"
    if meta.extras:
        yield "extras", ", ".join(meta.extras)
    for group, entries in meta.entry_points.items():
        listed = ", ".join(f"{name} = {ref}" for name, ref in entries.items())
        yield "entry points", f"[{group}] {listed}"


def _parts(report: WheelReport, width: int) -> Text:
    whole = sum(report.parts.values()) or 1
    rows = []
    for name, size in report.parts.items():
        rows.append((name, human(size), f"{100 * size / whole:.1f} %"))
    rows.append(("sum", human(whole), ""))
    return _table(("part", "unpacked", "share"), rows, (1, 2), width)


def _device_heading(report: WheelReport) -> str:
    devices = [elf.device for elf in report.elfs if elf.device.bundles]
    formats = sorted(set(chain.from_iterable(device.formats for device in devices)))
    stored = sum(d.stored for d in devices)
    unpacked = sum(d.unpacked for d in devices)
    targets = _count(len(report.targets), "target")
    if not formats:  # plain code objects, without a bundle around them
        objects = sum(elf.machine == "amdgpu" for elf in report.elfs)
        return f"Device code: {targets} in {_count(objects, 'code object')}"
    bundles = sum(d.bundles for d in devices)
    many = "1 fat binary" if bundles == 1 else f"{bundles} fat binaries"
    return (
        f"Device code: {targets} in {many} ({', '.join(formats)}),"
        f" {human(stored)} -> {human(unpacked)}"
    )


def _device(report: WheelReport) -> Columns:
    cells = [_line(f"{c.target} {human(c.code_bytes)}") for c in report.targets]
    return Columns(cells, padding=(0, 2), column_first=True)


def _libraries(report: WheelReport, width: int) -> Text:
    rows = []
    for elf in sorted(report.elfs, key=lambda item: -item.size)[:_SHOWN_LIBRARIES]:
        versions = " ".join(
            f"{prefix}_{number}"
            for prefix, number in elf.symbol_versions.items()
            if "GLIBC" in prefix
        )
        bundles = elf.device.bundles
        rows.append(
            (
                _safe(PurePosixPath(elf.path).name),
                human(elf.size),
                human(elf.symbol_table_bytes) if elf.symbol_table_bytes else "-",
                f"{len(elf.device.targets)} x {bundles}" if bundles else "-",
                f"{len(elf.runpath)}{' (RPATH)' if elf.rpath else ''}",
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
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
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
            message = f"{place}: {item.message}" if place else item.message
            grid.add_row("", _line(message))
        if len(items) > _SHOWN_MEMBERS:
            grid.add_row("", _line(f"and {len(items) - _SHOWN_MEMBERS} more"))
        grid.add_row("", _line(f"-> {items[0].remedy}", "green"))
    return grid
