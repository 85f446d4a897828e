"""Shared parts of the benchmarks.

The cost of a process and its children, figures, load, options, reports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

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
    """A measured value of this project; without a goal it is informative.

    Attributes:
        ours: value of this project.
        stock: value of the stock tools in the same run; None without a counterpart.
        unit: unit of `ours` and `stock`; load of the machine spoils seconds.
        times: how many times better than `stock` the value must be.
        most: largest allowed value.
    """

    what: str
    ours: float
    stock: float | None = None
    unit: str = "s"
    times: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        """Return whether the figure reaches its goals."""
        if self.most is not None and self.ours > self.most:
            return False
        if self.times is None or self.stock is None:
            return True
        return self.stock >= self.times * self.ours

    @property
    def judged(self) -> bool:
        """Return whether the figure has a goal."""
        return self.times is not None or self.most is not None

    @property
    def timed(self) -> bool:
        """Return whether other processes change the figure."""
        return self.unit == "s"

    def cells(self, *, busy: bool) -> tuple[str, ...]:
        """Return the cells of the table; on a busy machine, times have no verdict."""
        stock = ratio = goal = verdict = ""
        if self.stock is not None:
            stock = self._value(self.stock)
            ratio = f"{self.stock / self.ours:.3g}x"
        if self.times is not None:
            goal = f">= {self.times:.4g}x"
        elif self.most is not None:
            goal = f"<= {self._value(self.most)}"
        if self.judged:
            verdict = "met" if self.met else "MISSED"
            if busy and self.timed:
                verdict = "no verdict"
        return self.what, self._value(self.ours), stock, ratio, goal, verdict

    def _value(self, number: float) -> str:
        return f"{number:.4g} {self.unit}"


HEAD = ("", "ours", "stock", "ratio", "goal", "verdict")
"""Columns of the table of figures."""
_WIDTH = 200


def compared(
    what: str,
    ours: Cost,
    stock: Cost,
    times: float | None = None,
    cpu_times: float | None = None,
) -> list[Figure]:
    """Return the figures of wall time and CPU time of a case.

    Args:
        times, cpu_times: how many times faster than the stock tools it must be.
    """
    return [
        Figure(what=what, ours=ours.wall, stock=stock.wall, times=times),
        Figure(
            what=f"{what}, CPU time", ours=ours.cpu, stock=stock.cpu, times=cpu_times
        ),
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
    environment: Mapping[str, str],
) -> Cost:
    """Run one command in `folder`, with its output in `log`, and return its cost.

    The kernel counts this process's memory at the start as memory of the child, so this
    process must stay small.

    Raises:
        FailedError: the exit status is not 0.
    """
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise FailedError(f"{argv[0]} is not installed")
    with log.open("wb") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [program, *argv[1:]],
            cwd=folder,
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(errors="replace").strip()[-2000:]
        raise FailedError(f"{' '.join(argv)} failed: {tail}")
    return Cost(
        wall=wall, cpu=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024
    )


def settle(path: Path) -> None:
    """Read an input into the page cache and flush dirty pages before a case."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    os.sync()


def note(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def show(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table of a text column and columns of numbers."""
    table = Table(box=box.MARKDOWN)
    table.add_column(head[0])
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=_WIDTH).print(table)


def report(figures: Sequence[Figure], load: Load, about: str) -> int:
    """Print the judged figures.

    Returns:
        1 if a goal was missed, 3 if other processes made a verdict impossible,
        otherwise 0.
    """
    others = load.others
    busy = others > MOST_OTHERS
    print(
        f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}, {about},"
        f" other processes used {others:.0f} % of the CPUs (at most {MOST_OTHERS:g} % for a"
        " verdict on times)"
    )
    show(HEAD, [figure.cells(busy=busy) for figure in figures])
    undecided = False
    for figure in figures:
        if busy and figure.timed:
            undecided |= figure.judged
        elif not figure.met:
            return 1
    return 3 if undecided else 0
