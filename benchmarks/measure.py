"""Shared parts of the benchmarks.

The cost of a process and its children, figures, load, options, reports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost of a command.

    Attributes:
        wall: seconds from start to exit.
        cpu: seconds, user and system, children included.
        peak_mib: peak resident memory of its largest process.
    """

    wall: float
    cpu: float
    peak_mib: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            wall=self.wall + other.wall,
            cpu=self.cpu + other.cpu,
            peak_mib=max(self.peak_mib, other.peak_mib),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A measured value of this project with its goal and limit; without a goal it is informative.

    Attributes:
        ours: value of this project.
        stock: value of the stock tools in the same run; None without a counterpart.
        unit: unit of `ours`, `stock` and `limit`, such as `s`; a unit of time makes the
            figure one that load spoils.
        times: how many times better than `stock` the value must be.
        most, least: largest and smallest allowed value.
        limit: best possible value, measured or computed in the same run; None if it is
            unknown.
    """

    what: str
    ours: float
    stock: float | None = None
    unit: str = ""
    times: float | None = None
    most: float | None = None
    least: float | None = None
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return how many times better than the stock tools the value is.

        None without a counterpart.
        """
        return (
            None
            if self.stock is None
            else self.stock / self.ours
            if self.ours
            else float("inf")
        )

    @property
    def met(self) -> bool:
        """Return whether the figure reaches its goals."""
        enough = self.times is None or (
            self.ratio is not None and self.ratio >= self.times
        )
        few = self.most is None or self.ours <= self.most
        return enough and few and (self.least is None or self.ours >= self.least)

    @property
    def judged(self) -> bool:
        """Return whether the figure has a goal."""
        return any(goal is not None for goal in (self.times, self.most, self.least))

    @property
    def timed(self) -> bool:
        """Return whether the figure depends on time, so that other processes change it."""
        return self.unit in _UNITS_OF_TIME

    def cells(self, *, busy: bool) -> tuple[str, ...]:
        """Return the cells of the table; on a busy machine, times have no verdict."""

        def value(number: float | None) -> str:
            return "" if number is None else f"{number:.4g} {self.unit}".rstrip()

        times = "" if self.times is None else f">= {self.times:.4g}x"
        most = "" if self.most is None else f"<= {value(self.most)}"
        least = "" if self.least is None else f">= {value(self.least)}"
        verdict = (
            ""
            if not self.judged
            else (
                "no verdict" if busy and self.timed else "met" if self.met else "MISSED"
            )
        )
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}x"
        goal = " and ".join(filter(None, (times, most, least)))
        return (
            self.what,
            value(self.ours),
            value(self.stock),
            ratio,
            goal,
            value(self.limit),
            verdict,
        )


HEAD = ("", "ours", "stock", "ratio", "goal", "limit", "verdict")
"""Columns of the table of figures."""
_UNITS_OF_TIME = ("s", "ms", "%")


def compared(
    what: str,
    ours: Cost,
    stock: Cost | None = None,
    *,
    wall: float | None = None,
    cpu: float | None = None,
    times: float | None = None,
    cpu_times: float | None = None,
    limit: Cost | None = None,
) -> list[Figure]:
    """Return the figures of wall time and CPU time of a case.

    Args:
        wall, cpu: the most seconds that the case may take.
        times, cpu_times: how many times faster than the stock tools it must be.
    """

    def figure(
        title: str, name: str, ratio: float | None, most: float | None
    ) -> Figure:
        other, least = (
            getattr(cost, name) if cost else None for cost in (stock, limit)
        )
        return Figure(
            what=title,
            ours=getattr(ours, name),
            stock=other,
            unit="s",
            times=ratio,
            most=most,
            limit=least,
        )

    return [
        figure(what, "wall", times, wall),
        figure(f"{what}, CPU time", "cpu", cpu_times, cpu),
    ]


class Load:
    """CPU time used by other processes and machines of the host since the object was made.

    Only the CPUs count on which this process may run (proc(5), /proc/stat: user, nice,
    system, idle, iowait, irq, softirq, steal, in ticks of the clock).
    """

    def __init__(self) -> None:
        self._total, self._busy = self._ticks()
        self._own = self._seconds()

    @property
    def others(self) -> float:
        """Return the percentage of CPU time that other processes used."""
        total, busy = self._ticks()
        own = (self._seconds() - self._own) * os.sysconf("SC_CLK_TCK")
        elapsed = total - self._total
        return max(0.0, 100 * (busy - self._busy - own) / elapsed) if elapsed else 0.0

    @staticmethod
    def _ticks() -> tuple[int, int]:
        """Return the ticks of all kinds, and those in which a CPU was busy."""
        total = busy = 0
        cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        for line in STAT.read_text().splitlines():
            name, *words = line.split()
            if name in cpus:
                ticks = [int(word) for word in words[:8]]
                total += sum(ticks)
                busy += sum(ticks) - sum(ticks[3:5])
        return total, busy

    @staticmethod
    def _seconds() -> float:
        """Return the CPU seconds of this process and of its children that ended."""
        return sum(os.times()[:4])


MOST_OTHERS = 10.0
"""Percentage of CPU time from which on the load of other processes spoils times."""
STAT = Path("/proc/stat")


class FailedError(Exception):
    """A measured command failed; its output is the message."""


def measure(
    argv: Sequence[str],
    *,
    folder: Path,
    log: Path,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Cost, str]:
    """Run one command in `folder`, with its errors in `log`; return its cost and standard output.

    The kernel counts this process's memory at the start as memory of the child, so this
    process must stay small.

    Raises:
        FailedError: the exit status is not 0.
    """
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise FailedError(f"{argv[0]} is not installed")
    answer = log.with_name(f"{log.name}.out")
    with answer.open("wb") as output, log.open("wb") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [program, *argv[1:]],
            cwd=folder,
            env=dict(environment),
            stdout=output,
            stderr=errors,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    text = answer.read_text(errors="replace")
    if process.returncode:
        tail = text.strip()[-2000:] + log.read_text(errors="replace").strip()[-2000:]
        raise FailedError(f"{' '.join(argv)} failed: {tail}")
    return (
        Cost(
            wall=wall,
            cpu=usage.ru_utime + usage.ru_stime,
            peak_mib=usage.ru_maxrss / 1024,
        ),
        text,
    )


def settle(*paths: Path) -> None:
    """Read the inputs into the page cache and flush dirty pages before a case."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    os.sync()


@contextmanager
def peaks(sizes: Callable[[], Sequence[int]], seconds: float) -> Iterator[list[int]]:
    """Sample sizes periodically from another thread.

    Args:
        seconds: time between two samples.

    Returns:
        The largest sum and the largest number of sizes, complete at the end of the
        block.
    """
    most = [0, 0]
    done = threading.Event()

    def look() -> None:
        while not done.wait(seconds):
            with suppress(OSError):  # a file or process has vanished in the meantime
                current = sizes()
                most[:] = max(most[0], sum(current)), max(most[1], len(current))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


@contextmanager
def programs_limit() -> Iterator[Callable[[Cost], Cost]]:
    """Watch the commands that are measured in the block, to find their limit.

    Yields:
        A function that returns, of the cost of one command, the CPU time of the
        programs that it started. Divided by the number of CPUs, this is the least wall
        time.
    """
    cpus = len(os.sched_getaffinity(0))
    tick = os.sysconf("SC_CLK_TCK")
    with peaks(lambda: [*_children_ticks()], 0.2) as most:

        def limit(cost: Cost) -> Cost:
            others = cost.cpu - most[0] / tick
            return Cost(wall=others / cpus, cpu=others, peak_mib=0)

        yield limit


def _children_ticks() -> Iterator[int]:
    """Yield the clock ticks that each child of this process has used itself (proc(5))."""
    for file in Path("/proc/self/task").glob("*/children"):
        for child in file.read_text().split():
            user, system = (
                Path(f"/proc/{child}/stat")
                .read_text()
                .rpartition(")")[2]
                .split()[11:13]
            )
            yield int(user) + int(system)


def note(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def option_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to FILE"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if a goal is missed, 3 without a verdict",
    )
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print only the judged figures, as Markdown",
    )
    parser.set_defaults(load=Load())
    return parser


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], digits: int = 2
) -> str:
    """Return a table of a text column and columns of numbers."""
    cells = [
        head,
        *(
            [
                f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)
                for cell in row
            ]
            for row in rows
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [
                first.ljust(widths[0]),
                *(
                    cell.rjust(width)
                    for cell, width in zip(rest, widths[1:], strict=True)
                ),
            ]
        )
        for first, *rest in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with one row a line."""
    lines = [
        head,
        ["---"] * len(head),
        *([cell.strip().replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(
    options: argparse.Namespace,
    figures: Sequence[Figure],
    details: str,
    about: str = "",
    /,
    **body: object,
) -> int:
    """Print details and judged figures, and write them to the --json file.

    Returns:
        With --check, 1 if a goal was missed, and 3 if other processes made a verdict
        impossible; otherwise 0.
    """
    others = options.load.others
    busy = others > MOST_OTHERS
    machine = f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}"
    head = ", ".join(
        filter(
            None, (machine, about, f"other processes used {others:.0f} % of the CPUs")
        )
    )
    rows = [figure.cells(busy=busy) for figure in figures]
    refusal = (
        f"No verdict on times: other processes used {others:.0f} % of the CPUs (at most"
        f" {MOST_OTHERS:g} %)."
    )
    notes = (
        [refusal]
        if busy and any(figure.timed and figure.judged for figure in figures)
        else []
    )
    if options.markdown:
        print("\n\n".join((f"{head}:", markdown(HEAD, rows), *notes)))
    else:
        print("\n\n".join((head, *filter(None, (details,)), table(HEAD, rows), *notes)))
    judged = [figure for figure in figures if not (busy and figure.timed)]
    if options.json:
        goals = [
            {
                **asdict(figure),
                "ratio": figure.ratio,
                "met": figure.met if figure in judged else None,
            }
            for figure in figures
        ]
        options.json.write_text(
            json.dumps({**body, "others_percent": others, "goals": goals}, indent=2)
            + "\n"
        )
    if not options.check:
        return 0
    return 1 if not all(figure.met for figure in judged) else 3 if notes else 0
