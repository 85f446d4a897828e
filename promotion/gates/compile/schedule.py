"""Which processes of the compile gate run when, and how the work goes on after one of them dies."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from promotion.gates.compile.child_run import ChildRun, Fate, Result

PROCESS_MEMORY = 1 << 30
"""Bytes that one process takes: 600 MB are usual, and some programs need more for a moment."""
_MOST_MEMORY = 8 << 30
_LEAST_PROGRAMS = 8
"""Starting a process takes as long as compiling a few programs, so that a smaller share does not pay."""
_PATIENCE = 4
"""How many processes in a row may end without having finished a single program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Programs for one target that one process after the other compiles."""

    target: str
    programs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchResult:
    """What came of a batch.

    Attributes:
        problems: of processes, where no program is to blame.
        peak: most resident bytes of one process.
    """

    batch: Batch
    results: tuple[Result, ...]
    problems: tuple[str, ...]
    processes: int
    seconds: float
    peak: int


RunBatch = Callable[[Batch], ChildRun]
"""Starts one process for the programs of a batch."""


def workers(cores: int, available: int) -> int:
    """How many processes may run at once with so many cores and bytes of memory available."""
    return max(1, min(cores, available // PROCESS_MEMORY))


def memory_limit(count: int, available: int) -> int:
    """Bytes that each of so many processes may take: its share, but no more than any program should ever need."""
    return max(PROCESS_MEMORY, min(_MOST_MEMORY, available // count))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be had without swapping, on this machine and in this control group.

    Sources: proc(5), MemAvailable; Linux, "Control Group v2": memory.max and memory.current.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    available = int(found["MemAvailable"].split()[0]) << 10
    group = root / "sys/fs/cgroup"
    try:
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return available if most == "max" else min(available, max(0, int(most) - int(used)))


def batches(targets: Sequence[str], programs: Sequence[str], count: int) -> tuple[Batch, ...]:
    """Deal out the work: a process for each target, or more if there are more workers than targets.

    Targets that come later in the natural order take longer to compile for (RDNA after CDNA), so they go first.
    """
    parts = math.ceil(count / len(targets)) if targets else 1
    parts = max(1, min(parts, len(programs) // _LEAST_PROGRAMS))
    return tuple(
        Batch(target=target, programs=tuple(programs[part::parts]))
        for target in reversed(targets)
        for part in range(parts)
    )


def finish(batch: Batch, run_child: RunBatch) -> BatchResult:
    """Compile a batch: when a process dies, blame the program that ran, and go on with the rest in a new one.

    No program runs twice, but for one that was killed from outside, and the rest is given up when process after
    process ends without having finished anything.
    """
    left, killed = list(batch.programs), list[str]()
    sittings: list[ChildRun] = []
    results: dict[str, Result] = {}
    barren = 0
    while (left or killed) and barren < _PATIENCE:
        sitting = run_child(Batch(target=batch.target, programs=(*left, *killed)))
        sittings.append(sitting)
        for result in sitting.results:
            (left if result.program in left else killed).remove(result.program)
            if result.killed and result.program not in results:
                killed.append(result.program)
            results[result.program] = result
        barren = barren + 1 if sitting.barren else 0
        if sitting.barren:
            # What comes next may be more of the kind that this process died of.
            left = left[len(left) // 2 :] + left[: len(left) // 2]
    for program in (*left, *killed):
        text = f"{barren} processes in a row ended without having finished a program."
        results.setdefault(program, Result(program=program, fate=Fate.NOT_RUN, error=text))
    return BatchResult(
        batch=batch,
        results=tuple(results[program] for program in batch.programs),
        problems=tuple(dict.fromkeys(sitting.problem for sitting in sittings if sitting.problem)),
        processes=len(sittings),
        seconds=round(sum(sitting.seconds for sitting in sittings), 3),
        peak=max((sitting.peak for sitting in sittings), default=0),
    )


def finish_all(work: Sequence[Batch], run_child: RunBatch, count: int, stop: threading.Event) -> Iterator[BatchResult]:
    """Compile batches, so many at once; gives each when it is done.

    Args:
        stop: set when this is left early, so that the running processes end.
    """
    with ThreadPoolExecutor(count, thread_name_prefix="compile") as pool:
        pending: set[Future[BatchResult]] = {pool.submit(finish, batch, run_child) for batch in work}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
