"""Distribution of programs over the compile gate's processes, and restarts after a crash."""

from __future__ import annotations

import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from core.frozen import frozen
from promotion.gates.compile.child_run import (
    FINISHED,
    Batch,
    ChildRun,
    CompileStatus,
    Result,
    Share,
)

PROCESS_MEMORY = 1 << 30
"""Minimum bytes of memory for one process, which usually needs 600 MB."""
_MOST_MEMORY = 8 << 30
_LEAST_PROGRAMS = 8
"""Minimum number of programs for a process, since its start is slow."""
_MOST_PROGRAMS = 120
"""Maximum number of programs for a process, whose memory grows by 1 to 3 MB with each."""
_MOST_FAILURES = 4
"""Number of consecutive processes without a finished program after which a batch ends."""


@frozen
class BatchResult:
    """Results of a batch: one for each program, and one for each process."""

    batch: Batch
    results: tuple[Result, ...]
    runs: tuple[ChildRun, ...]


RunShare = Callable[[Share], Sequence[ChildRun]]
"""Function that runs one process for some batches and returns the started runs."""


def share_machine(
    cores: int, available: int, jobs: int | None = None
) -> tuple[int, int]:
    """Return the number of concurrent processes and the memory limit of each.

    Args:
        available: available memory in bytes.
        jobs: number of processes; None derives the number.
    """
    count = jobs or max(1, min(cores, available // PROCESS_MEMORY))
    return count, max(PROCESS_MEMORY, min(_MOST_MEMORY, available // count))


def shares(programs: Mapping[str, Sequence[str]], count: int) -> tuple[Share, ...]:
    """Divide the programs of all targets between a number of processes.

    Later targets in the natural order take longer to compile (RDNA after CDNA), so they
    start first. A process gets programs of few targets, since a target is complete when
    all its programs are.
    """
    # Neighbours in the list of programs take similar times, so each half of a target
    # gets every second program.
    work: list[tuple[str, int]] = []
    for target, names in reversed([*programs.items()]):
        order = (*range(0, len(names), 2), *range(1, len(names), 2))
        work += [(target, at) for at in order]
    parts = max(
        min(count, len(work) // _LEAST_PROGRAMS),
        math.ceil(len(work) / _MOST_PROGRAMS),
        1,
    )
    cuts = [len(work) * part // parts for part in range(parts + 1)]
    made = []
    for first, last in itertools.pairwise(cuts):
        places: defaultdict[str, list[int]] = defaultdict(list)
        for target, at in work[first:last]:
            places[target].append(at)
        batches = []
        for target, numbers in places.items():
            names = tuple(programs[target][at] for at in sorted(numbers))
            batches.append(Batch(target=target, programs=names))
        if batches:
            made.append(tuple(batches))
    return tuple(made)


class _BatchState:
    """Progress of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._pending = list(batch.programs)
        self._killed = list[str]()
        self._runs: list[ChildRun] = []
        self._results: dict[str, Result] = {}
        self._failures = 0

    @property
    def rest(self) -> Batch:
        """Return the programs that have to run.

        None after several consecutive processes that finished no program.
        """
        programs: tuple[str, ...] = ()
        if self._failures < _MOST_FAILURES:
            programs = (*self._pending, *self._killed)
        return Batch(target=self.batch.target, programs=programs)

    def add(self, child_run: ChildRun) -> None:
        """Add the result of a process that ran `rest`."""
        self._runs.append(child_run)
        for result in child_run.results:
            program = result.program
            waiting = self._pending if program in self._pending else self._killed
            waiting.remove(program)
            if result.killed and program not in self._results:
                self._killed.append(program)
            self._results[program] = result
        self._failures += 1
        if any(result.fate in FINISHED for result in child_run.results):
            self._failures = 0
        else:
            # The next programs may be similar to the one that crashed this process.
            half = len(self._pending) // 2
            self._pending = self._pending[half:] + self._pending[:half]

    def result(self) -> BatchResult:
        """Return the result; programs that did not run have the fate NOT_RUN."""
        text = (
            f"{self._failures} consecutive processes ended without finishing a program."
        )
        results = []
        for program in self.batch.programs:
            unknown = Result(program=program, fate=CompileStatus.NOT_RUN, error=text)
            results.append(self._results.get(program, unknown))
        return BatchResult(
            batch=self.batch, results=tuple(results), runs=tuple(self._runs)
        )


def compile_share(share: Share, run_share: RunShare) -> tuple[BatchResult, ...]:
    """Compile batches.

    After a crash the running program fails, and a new process compiles the remaining
    programs.

    No program runs twice, except a program that was killed from outside. A batch ends
    early after several consecutive processes that finish none of its programs.
    """
    states = [_BatchState(batch) for batch in share]
    while unfinished := [state for state in states if state.rest.programs]:
        runs = run_share(tuple(state.rest for state in unfinished))
        for state, child_run in zip(unfinished, runs, strict=False):
            state.add(child_run)
    return tuple(state.result() for state in states)


def compile_shares(
    work: Sequence[Share], run_share: RunShare, count: int, stop: threading.Event
) -> Iterator[BatchResult]:
    """Compile shares concurrently and yield the results of each when it is complete.

    Args:
        stop: event that ends the running processes, set when the generator is closed
            early.
    """
    with ThreadPoolExecutor(count, thread_name_prefix="compile") as pool:
        pending = [pool.submit(compile_share, share, run_share) for share in work]
        try:
            for future in as_completed(pending):
                yield from future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
