"""Wall time, CPU time and peak memory of a process and everything that it waits for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost of a command.

    Attributes:
        wall: seconds from start to exit.
        cpu: seconds, user and system, children included.
        peak_mib: peak resident memory of any one of its processes.
    """

    wall: float
    cpu: float
    peak_mib: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(wall=self.wall + other.wall, cpu=self.cpu + other.cpu, peak_mib=max(self.peak_mib, other.peak_mib))


class FailedError(Exception):
    """A measured command failed; its output is the message."""


def measure(argv: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str]) -> tuple[Cost, str]:
    """Run one command in `folder`, with its output in `log`; return its cost and output.

    The kernel counts this process's memory at the moment of the start as the child's, so this one stays small.

    Raises:
        FailedError: the exit status is not 0.
    """
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise FailedError(f"{argv[0]} is not installed")
    with log.open("wb") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [program, *argv[1:]], cwd=folder, env=dict(environment), stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    if process.returncode:
        raise FailedError(f"{' '.join(argv)}: {text.strip()[-2000:]}")
    return Cost(wall=wall, cpu=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024), text


def settle(*paths: Path) -> None:
    """Have the inputs in the page cache and no dirty pages waiting, so that every case starts alike."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    os.sync()


def note(text: str) -> None:
    """Print progress beside the results."""
    print(text, file=sys.stderr, flush=True)
