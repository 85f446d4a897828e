"""Text report of an inspection: sizes, device code, libraries, findings; readable in 100 columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from core.model import Finding, Severity
from core.units import human
from wheelkit.findings import finding_kinds
from wheelkit.inspect.model import WheelMetadata, WheelReport

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_SHOWN_MEMBERS = 3
_SHOWN_LIBRARIES = 12


def render(report: WheelReport, console: Console) -> None:
    """Print one wheel's report."""
    console.print()
    console.print(report.filename, style="bold", markup=False, highlight=False, overflow="fold")
    _print(console, _facts(report))
    for heading, block in (
        ("Content", _parts(report) if report.parts else None),
        (_device_heading(report), _device(report, console.width) if report.targets else None),
        ("Libraries", _libraries(report) if report.elfs else None),
    ):
        if block is not None:
            _print(console, block, heading=heading)
    render_findings(report.findings, console)


def render_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print findings grouped by kind, with the place and the remedy."""
    _print(console, _findings(findings) if findings else _line("nothing found"), heading="Findings")
    counts = [f"{sum(f.severity is s for f in findings)} {s.value}s" for s in Severity]
    if findings:
        console.print("  " + ", ".join(c.removesuffix("s") if c.startswith("1 ") else c for c in counts))


def _print(console: Console, block: RenderableType, *, heading: str = "") -> None:
    if heading:
        console.print()
        console.print(heading, style="bold", markup=False, highlight=False)
    console.print(Padding(block, (0, 0, 0, 2)), highlight=False)


def _grid(*columns: str) -> Table:
    """Return a table without lines; in a column's heading `>` aligns right and `*` takes the remaining width."""
    headed = any(column.strip(">*") for column in columns)
    table = Table(box=None, show_header=headed, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=False)
    for column in columns:
        rest = "*" in column
        table.add_column(
            column.strip(">*"),
            justify="right" if ">" in column else "left",
            no_wrap=not rest,
            overflow="fold",
        )
    return table


def _line(text: str, style: str = "") -> Text:
    """Return text without markup; control characters are replaced."""
    safe = "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return Text(safe, style=style, overflow="fold")


def _rows(pairs: Iterable[tuple[str, str]]) -> Table:
    table = _grid("", "*")
    for name, value in pairs:
        if value:
            table.add_row(_line(name, "dim"), _line(value))
    return table


def _facts(report: WheelReport) -> Table:
    checked = "hashes not verified"
    if report.verified:
        checked = "RECORD and device code checked" if report.targets else "RECORD checked"
    rows = [
        ("size", f"{human(report.size)} in {report.files} files, {checked}" if report.files else human(report.size)),
        ("sha256", report.sha256),
    ]
    if report.metadata:
        rows += _metadata(report.metadata)
    if report.rocm:
        rows.append(("ROCm", f"{', '.join(report.rocm)}, from the compiler's mark in the libraries"))
    if report.platform:
        allowed = report.platform.external
        but = f", given {len(allowed)} libraries of ROCm: {' '.join(allowed)}" if allowed else ""
        rows.append(("runs on", f"{report.platform.policy}{but}"))
    return _rows(rows)


def _metadata(meta: WheelMetadata) -> Iterator[tuple[str, str]]:
    yield "summary", meta.summary
    yield "Python", meta.requires_python or "any (no Requires-Python)"
    yield "licence", ", ".join(filter(None, (meta.license, *meta.license_files)))
    always = [line for line in meta.requires_dist if "extra ==" not in line]
    yield "requires", ", ".join(always) or "nothing"
    if meta.extras:
        lines = [line.replace("'", '"') for line in meta.requires_dist]
        counts = {extra: sum(f'extra == "{extra}"' in line for line in lines) for extra in meta.extras}
        yield "extras", ", ".join(f"{extra} ({count})" for extra, count in counts.items())
    for group, entries in meta.entry_points.items():
        yield "entry points", f"[{group}] " + ", ".join(f"{name} = {ref}" for name, ref in entries.items())


def _parts(report: WheelReport) -> Table:
    whole = sum(part.stored for part in report.parts) or 1
    table = _grid("part", ">in the wheel", ">share", ">unpacked")
    for part in report.parts:
        table.add_row(part.name, human(part.stored), f"{100 * part.stored / whole:.1f} %", human(part.unpacked))
    table.add_row("sum", human(whole), "", human(sum(part.unpacked for part in report.parts)), style="dim")
    return table


def _device_heading(report: WheelReport) -> str:
    devices = [elf.device for elf in report.elfs if elf.device.bundles]
    formats = sorted({name for device in devices for name in device.formats})
    stored, unpacked = sum(d.stored for d in devices), sum(d.unpacked for d in devices)
    if not formats:  # plain code objects, without a bundle around them
        objects = sum(1 for elf in report.elfs if elf.machine == "amdgpu")
        return f"Device code: {len(report.targets)} targets in {objects} code objects"
    return (
        f"Device code: {len(report.targets)} targets in {sum(d.bundles for d in devices)} fat binaries"
        f" ({', '.join(formats)}), {human(stored)} -> {human(unpacked)}"
    )


def _device(report: WheelReport, width: int) -> Table:
    cells = [f"{code.target} {human(code.code_bytes)}" for code in report.targets]
    across = max(1, (width - 2) // (max(map(len, cells)) + 2))
    table = _grid(*[""] * across)
    height = -(-len(cells) // across)
    for row in range(height):
        table.add_row(*(_line(cells[i]) if i < len(cells) else "" for i in range(row, height * across, height)))
    return table


def _libraries(report: WheelReport) -> Table:
    table = _grid("*file", ">size", ">symbols", ">targets", ">RUNPATH", "*highest versions")
    for elf in sorted(report.elfs, key=lambda item: -item.size)[:_SHOWN_LIBRARIES]:
        versions = " ".join(f"{prefix}_{number}" for prefix, number in elf.symbol_versions.items() if "GLIBC" in prefix)
        table.add_row(
            _line(PurePosixPath(elf.path).name),
            human(elf.size),
            human(elf.symbol_table_bytes) if elf.symbol_table_bytes else "-",
            f"{len(elf.device.targets)} x {elf.device.bundles}" if elf.device.bundles else "-",
            Text(f"{len(elf.runpath) or '-'}" + (" (RPATH)" if elf.rpath else "")),
            _line(versions),
        )
    if len(report.elfs) > _SHOWN_LIBRARIES:
        table.add_row(f"and {len(report.elfs) - _SHOWN_LIBRARIES} more", *[""] * 5, style="dim")
    return table


def _findings(findings: Sequence[Finding]) -> Table:
    table = _grid("", "*")
    for (severity, code), group in itertools.groupby(findings, key=lambda item: (item.severity, item.code)):
        items = list(group)
        head = Text.assemble((finding_kinds()[code].title, "bold"), (f"  {code}", "dim"))
        table.add_row(Text(severity.value, style=_STYLE[severity]), head)
        for item in items[:_SHOWN_MEMBERS]:
            place = PurePosixPath(item.member).name
            message = item.message.replace("It ", "it ", 1) if item.message.startswith("It ") else item.message
            table.add_row("", _line(f"{place}: {message}" if place else item.message))
        if len(items) > _SHOWN_MEMBERS:
            hidden = items[_SHOWN_MEMBERS:]
            names = list(dict.fromkeys(PurePosixPath(item.member).name for item in hidden))
            named = f" in {', '.join(names)}" if all(names) and len(names) <= _SHOWN_LIBRARIES else ""
            table.add_row("", _line(f"and {len(hidden)} more{named}"))
        table.add_row("", _line(f"-> {items[0].remedy}", "green"))
    return table
