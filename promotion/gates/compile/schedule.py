"""Distribution of programs over the compile gate's processes, and restarts after a crash."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from promotion.gates.compile.child_run import ChildRun, Fate, Result

PROCESS_MEMORY = 1 << 30
"""Minimum bytes of memory for one process, which usually needs 600 MB and briefly more for some programs."""
_MOST_MEMORY = 8 << 30
_LEAST_PROGRAMS = 8
"""Minimum number of programs in a batch, since starting a process takes as long as compiling a few programs."""
_MOST_FAILURES = 4
"""Number of consecutive processes without a finished program after which a batch ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Programs for one target that are compiled by one process at a time."""

    target: str
    programs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchResult:
    """Results of a batch: one for each program, and one for each process."""

    batch: Batch
    results: tuple[Result, ...]
    runs: tuple[ChildRun, ...]


RunBatch = Callable[[Batch], ChildRun]
"""Function that runs one process for the programs of a batch."""


def share_machine(cores: int, available: int, jobs: int | None = None) -> tuple[int, int]:
    """Return the number of concurrent processes and the memory limit of each.

    Args:
        available: available memory in bytes.
        jobs: number of processes; None derives the number.
    """
    count = jobs or max(1, min(cores, available // PROCESS_MEMORY))
    return count, max(PROCESS_MEMORY, min(_MOST_MEMORY, available // count))


def available_memory(root: Path = Path("/")) -> int:
    """Return the memory available without swapping, on this machine and in this control group.

    Sources: proc(5), MemAvailable; Linux, "Control Group v2": memory.max and memory.current.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    available = int(fields["MemAvailable"].split()[0]) << 10
    group = root / "sys/fs/cgroup"
    try:
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return available if most == "max" else min(available, max(0, int(most) - int(used)))


def batches(programs: Mapping[str, Sequence[str]], count: int) -> tuple[Batch, ...]:
    """Return one batch of programs for each target, or several batches if there are more workers than targets.

    Later targets in the natural order take longer to compile (RDNA after CDNA), so they start first.
    """
    work = []
    for target, names in reversed([*programs.items()]):
        parts = max(1, min(math.ceil(count / len(programs)), len(names) // _LEAST_PROGRAMS))
        work += [Batch(target=target, programs=tuple(names[part::parts])) for part in range(parts)]
    return tuple(work)


def compile_batch(batch: Batch, run_batch: RunBatch) -> BatchResult:
    """Compile a batch; after a crash the running program fails, and a new process compiles the remaining programs.

    No program runs twice, except a program that was killed from outside. The batch ends early after several consecutive
    processes that finish no program.
    """
    pending, killed = list(batch.programs), list[str]()
    runs: list[ChildRun] = []
    results: dict[str, Result] = {}
    failures = 0
    while (pending or killed) and failures < _MOST_FAILURES:
        child_run = run_batch(Batch(target=batch.target, programs=(*pending, *killed)))
        runs.append(child_run)
        for result in child_run.results:
            (pending if result.program in pending else killed).remove(result.program)
            if result.killed and result.program not in results:
                killed.append(result.program)
            results[result.program] = result
        failures = failures + 1 if child_run.made_no_progress else 0
        if child_run.made_no_progress:
            # The next programs may be similar to the one that crashed this process.
            pending = pending[len(pending) // 2 :] + pending[: len(pending) // 2]
    for program in (*pending, *killed):
        text = f"{failures} consecutive processes ended without finishing a program."
        results.setdefault(program, Result(program=program, fate=Fate.NOT_RUN, error=text))
    return BatchResult(batch=batch, results=tuple(results[program] for program in batch.programs), runs=tuple(runs))


def compile_batches(
    work: Sequence[Batch], run_batch: RunBatch, count: int, stop: threading.Event
) -> Iterator[BatchResult]:
    """Compile batches concurrently and yield each result when it is complete.

    Args:
        stop: event that ends the running processes, set when the generator is closed early.
    """
    with ThreadPoolExecutor(count, thread_name_prefix="compile") as pool:
        pending = [pool.submit(compile_batch, batch, run_batch) for batch in work]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
