"""Shared parts of the benchmarks: the cost of a process and its children, goals, options, reports."""

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
        return Cost(wall=self.wall + other.wall, cpu=self.cpu + other.cpu, peak_mib=max(self.peak_mib, other.peak_mib))


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """A measured value with its limit; a value without a limit is informative."""

    what: str
    value: float
    unit: str = ""
    limit: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Return whether the value is within the limit."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        limit = ""
        if self.limit is not None:
            sign, verdict = ">=" if self.at_least else "<=", "met" if self.met else "MISSED"
            limit = f" (goal {sign} {self.limit:.4g}{self.unit})  {verdict}"
        return f"{self.what:58} {self.value:8.2f}{self.unit:4}{limit}".rstrip()


class FailedError(Exception):
    """A measured command failed; its output is the message."""


def measure(
    argv: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str] = os.environ
) -> tuple[Cost, str]:
    """Run one command in `folder`, with its errors in `log`; return its cost and standard output.

    The kernel counts this process's memory at the start as memory of the child, so this process must stay small.

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
            [program, *argv[1:]], cwd=folder, env=dict(environment), stdout=output, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    text = answer.read_text(errors="replace")
    if process.returncode:
        tail = text.strip()[-2000:] + log.read_text(errors="replace").strip()[-2000:]
        raise FailedError(f"{' '.join(argv)} failed: {tail}")
    return Cost(wall=wall, cpu=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024), text


def settle(*paths: Path) -> None:
    """Read the inputs into the page cache and flush dirty pages, so that every case starts alike."""
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
        The largest sum and the largest number of sizes, complete at the end of the block.
    """
    most, done = [0, 0], threading.Event()

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


def note(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def option_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser


def table(head: Sequence[str], rows: Iterable[Sequence[object]], digits: int = 2) -> str:
    """Return a table of a text column and columns of numbers."""
    cells = [head, *([f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
        for first, *rest in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def report(options: argparse.Namespace, goals: Sequence[Goal], figures: str, about: str = "", /, **body: object) -> int:
    """Print figures and goals, and write them to the --json file; return 1 if --check was given and a goal missed."""
    machine = f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}"
    print("\n".join((", ".join(filter(None, (machine, about))), "", figures, "", *map(str, goals))))
    if options.json:
        judged = [{**asdict(goal), "met": goal.met} for goal in goals]
        options.json.write_text(json.dumps({**body, "goals": judged}, indent=2) + "\n")
    return int(options.check and not all(goal.met for goal in goals))
