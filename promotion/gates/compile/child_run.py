"""One process of the compile gate: its journals, its limits and the meaning of its exit status."""

from __future__ import annotations

import enum
import json
import os
import re
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.errors import GateError, ProcessError
from core.frozen import frozen
from core.process import HostRunner
from core.units import human
from promotion.gates.common.gate_context import signal_name
from promotion.gates.common.gate_site import RocmLibraries, Site

_TAIL_CHARACTERS = 3000
_KEPT_CHARACTERS = 1 << 16
"""Number of characters kept from a process's output.

The reason of a crash precedes a long stack trace.
"""
_REASON = re.compile(
    r"^F\d{4} \S+ +\d+ \S+\] (?P<xla>.+)$"
    r"|^E\d{4} \S+ +\d+ \S+\] (?P<triton>LLVM Fatal Error .+)$"
    r"|^(?P<llvm>LLVM ERROR: .+)$"
    r"|^  what\(\):  (?P<exception>.+)$"
    r"|^.+: (?P<libc>Assertion `.+' failed\.)$",
    re.MULTILINE,
)
"""Messages of libraries that end the process on purpose, such as failed assertions."""
_REASON_CHARACTERS = 400
_MEMORY = re.compile(
    r"bad_alloc|MemoryError|out of memory|cannot allocate memory", re.IGNORECASE
)
"""Messages of C++, Python, LLVM and the C library about a failed allocation."""
_MEMORY_ERROR = re.compile(r"MemoryError\b|.*std::bad_alloc")
"""A failed allocation as a Python exception.

XLA's RESOURCE_EXHAUSTED is not included, since it concerns GPU memory.
"""
_RESIDENT = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB", re.MULTILINE)
"""Peak and current resident memory in /proc/PID/status."""
_RESERVED, _RESERVED_PER_CORE = 2 << 30, 64 << 20
"""Bytes of private memory that a process may reserve but not use.
allocators; RLIMIT_DATA counts reserved memory."""


class CompileStatus(enum.StrEnum):
    """Result of compiling a program."""

    COMPILED = "compiled"
    FAILED = "failed"
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "out of memory"
    NOT_RUN = "not run"


FINISHED = (CompileStatus.COMPILED, CompileStatus.FAILED)
"""Results after which the process goes on."""


@frozen
class Result:
    """Result of compiling one program, with its code.

    Attributes:
        error: error of the compiler, or a sentence about the process with its last
            output; empty after success.
        files: code objects of the program.
        killed: whether the process was killed from outside, which may not be the
            program's fault.
    """

    program: str
    fate: CompileStatus
    error: str = ""
    seconds: float = 0.0
    files: tuple[Path, ...] = ()
    killed: bool = False


@frozen
class Batch:
    """Programs for one target."""

    target: str
    programs: tuple[str, ...]


Share = tuple[Batch, ...]
"""Batches that are compiled by one process at a time, in turn."""
Compiler = tuple[Site, RocmLibraries]
"""Environment that compiles, and its ROCm."""


@frozen
class ProcessLimits:
    """Limits of a process.

    Attributes:
        start_seconds: maximum time without a running program, such as start-up and
            exit.
        program_seconds: maximum time for each program.
        memory: maximum resident memory in bytes.
    """

    start_seconds: float = 180.0
    program_seconds: float = 180.0
    memory: int


@frozen
class ChildRun:
    """Result of one request to a process.

    Attributes:
        results: results of the finished programs and of the program that crashed the
            process, in order.
        problem: a failure that no program caused; empty for a normal exit.
        peak: peak resident memory in bytes.
    """

    results: tuple[Result, ...]
    problem: str
    seconds: float
    peak: int


class ChildJournal:
    """Reader of results.jsonl while a child writes it; the content is not trusted.

    Args:
        folder: directory of results.jsonl and the code objects.
        programs: requested programs.
        on_event: called with the program and its fate; the fate is None when the
            program starts.
    """

    def __init__(
        self,
        folder: Path,
        programs: Sequence[str],
        on_event: Callable[[str, CompileStatus | None], None],
    ) -> None:
        self._folder = folder
        self._programs = frozenset(programs)
        self._on_event = on_event
        self._file = folder / "results.jsonl"
        self._offset = 0
        self.ready = self.done = False
        self.running = ""
        self.unusable = ""
        self.garbage = ""
        self.changed = time.monotonic()
        self.results: dict[str, Result] = {}

    def read(self) -> None:
        """Process the lines that were completed since the last call."""
        with suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._offset)
            lines, newline, _ = file.read().rpartition(b"\n")
            self._offset += len(lines) + len(newline)
            for line in lines.splitlines():
                self.changed = time.monotonic()
                try:
                    self._process(json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError):
                    self.garbage = self.garbage or line[:200].decode(
                        errors="backslashreplace"
                    )

    def _process(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "ready":
                self.ready = True
            case "unusable":
                self.unusable = str(event["error"])
            case "start" if (
                not self.running
                and event["program"] in self._programs - self.results.keys()
            ):
                self.running = event["program"]
                self._on_event(self.running, None)
            case "end" if self.running and event["program"] == self.running:
                self.record(self._result(event))
            case "done":
                self.done = True
            case _:
                raise ValueError("unexpected event")

    def _result(self, event: Mapping[str, Any]) -> Result:
        """Return the result in an event; ValueError if a file of it is not the child's."""
        text = str(event["error"])
        files = tuple(self._folder / name for name in event["code_objects"])
        for file in files:
            if file.parent != self._folder or file.is_symlink() or not file.is_file():
                raise ValueError("a code object is not a regular file in the folder")
        fate = CompileStatus(event["outcome"])
        if fate not in FINISHED:
            raise ValueError("unexpected outcome")
        if fate is CompileStatus.FAILED and _MEMORY_ERROR.match(text):
            fate = CompileStatus.OUT_OF_MEMORY
        return Result(
            program=self.running,
            fate=fate,
            error=text,
            seconds=float(event["seconds"]),
            files=files,
        )

    def record(self, result: Result) -> None:
        """Record the result of the running program."""
        self.results[result.program] = result
        self.running = ""
        self._on_event(result.program, result.fate)


class ChildWatch:
    """Watch on a running child process; the runner calls it several times a second.

    Args:
        journals: one for each request, in order; the child completes one before it
            starts the next.
        stop: event that ends the gate.

    Attributes:
        started: times at which the requests started, the last one being that of the
            current request.
    """

    def __init__(
        self,
        journals: Sequence[ChildJournal],
        limits: ProcessLimits,
        stop: threading.Event,
    ) -> None:
        self._journals = journals
        self._limits = limits
        self._stop = stop
        self.started = [time.monotonic()]
        self.fate: CompileStatus | None = None
        self.reason = ""
        self.peak = 0

    @property
    def current(self) -> ChildJournal:
        """Return the journal of the request that the child executes."""
        return self._journals[len(self.started) - 1]

    def read(self) -> None:
        """Read the current journal, and the next ones if the child has completed it."""
        self.current.read()
        while self.current.done and len(self.started) < len(self._journals):
            finished = self.current.changed
            self.started.append(finished)
            self.current.changed = finished
            self.current.read()

    def __call__(self, pid: int) -> str:
        """Return the reason to stop the child, or "" to continue; see `core.process`."""
        if not self.peak:
            # The kernel limits memory too, since allocations can outrun this watch.
            reserved = _RESERVED + (os.cpu_count() or 1) * _RESERVED_PER_CORE
            most = self._limits.memory + reserved
            with suppress(ProcessLookupError, PermissionError, ValueError):
                resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        self.read()
        status = ""
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
        used = {key: int(value) << 10 for key, value in _RESIDENT.findall(status)}
        self.peak = max(used.get("VmHWM", 0), self.peak, 1)
        waited = time.monotonic() - self.current.changed
        limits = self._limits
        time_limit = limits.start_seconds
        if self.current.running:
            time_limit = limits.program_seconds
        if self._stop.is_set():
            self.reason = "was cancelled"
        elif used.get("VmRSS", 0) > limits.memory:
            self.fate = CompileStatus.OUT_OF_MEMORY
            self.reason = f"used more than {human(limits.memory)} of memory"
        elif waited > time_limit:
            self.fate = CompileStatus.HUNG
            self.reason = f"made no progress for {time_limit:g} s"
        return self.reason


def run_child(
    runner: HostRunner,
    compiler: Compiler,
    child: Path,
    share: Share,
    *,
    specs: Mapping[str, str],
    work: Path,
    limits: ProcessLimits,
    stop: threading.Event,
    on_event: Callable[[str, CompileStatus | None], None] = lambda _program, _fate: (
        None
    ),
) -> tuple[ChildRun, ...]:
    """Run a child for some batches until it exits or is stopped.

    Args:
        child: program that compiles, see promotion/corpus/child.py.
        specs: target -> description of its GPU.
        work: directory for the code objects.
        on_event: callback, see `ChildJournal`.

    Returns:
        A result for each batch that the child completed, and for the one that it was
        executing.

    Raises:
        GateError: the gate was stopped before.
    """
    if stop.is_set():
        raise GateError("The gate was stopped.")
    site, rocm = compiler
    files = []
    journals = []
    for batch in share:
        prefix = f"{batch.target.replace(':', '~')}-"
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=work))
        request = {
            "target": batch.target,
            "spec": specs[batch.target],
            "programs": batch.programs,
            "out": str(folder),
        }
        files.append(folder / "request.json")
        files[-1].write_text(json.dumps(request))
        journals.append(ChildJournal(folder, batch.programs, on_event))
    # faulthandler prints the traceback of a crash, which is recorded in the evidence.
    argv = (*site.isolated, "-X", "faulthandler", str(child))
    watch = ChildWatch(journals, limits, stop)
    returncode = 0
    output = ""
    try:
        ended = runner.run(
            (*argv, *map(str, files)),
            env={**site.env, **rocm.env},
            cwd=str(files[0].parent),
            check=False,
            watch=watch,
            keep=_KEPT_CHARACTERS,
        )
        returncode = ended.returncode
        output = ended.stderr or ended.stdout
    except ProcessError as problem:
        if not watch.reason:
            raise
        output = "" if watch.fate else problem.message
    since = watch.current.changed
    watch.read()
    journal = watch.current
    ended_at = time.monotonic()
    fate = watch.fate
    clause = watch.reason
    if not clause:
        fate, clause = interpret_exit(returncode, output, done=journal.done)
    tail = output.strip()[-_TAIL_CHARACTERS:]
    if journal.running and clause:
        journal.record(
            Result(
                program=journal.running,
                fate=fate or CompileStatus.NOT_RUN,
                error=f"The process {clause}.\n{tail}".strip(),
                seconds=round(ended_at - since, 3),
                killed=returncode == -signal.SIGKILL and not watch.reason,
            )
        )
        clause = ""
    when = "at its start"
    if journal.done:
        when = "after its last program"
    elif journal.ready:
        when = "between two programs"
    trouble = f"The process {clause}, {when}.\n{tail}".strip() if clause else ""
    runs = []
    ends = (*watch.started[1:], ended_at)
    for one, started, end in zip(journals, watch.started, ends, strict=False):
        own_trouble = trouble if one is journal else ""
        run = ChildRun(
            results=tuple(one.results.values()),
            problem=_journal_problem(one) or own_trouble,
            seconds=end - started,
            peak=watch.peak,
        )
        runs.append(run)
    return tuple(runs)


def _journal_problem(journal: ChildJournal) -> str:
    if journal.garbage:
        return f"Cannot parse the journal of the process: {journal.garbage}"
    if journal.unusable:
        return f"Cannot use jax with the plugin: {journal.unusable}"
    return ""


def interpret_exit(
    returncode: int, output: str, *, done: bool
) -> tuple[CompileStatus | None, str]:
    """Interpret an exit status.

    Args:
        output: last output of the process; the clause includes the reason of a crash if
            the output contains one.
        done: whether the process had finished all programs.

    Returns:
        The fate of the running program, and a clause about the process; None and "" for
        a normal exit.
    """
    if returncode == 0:
        if done:
            return None, ""
        return CompileStatus.CRASHED, "ended early with exit code 0"
    how = f"ended with exit code {returncode}"
    if returncode < 0:
        how = f"died of {signal_name(-returncode)}"
    if _MEMORY.search(output.strip()[-_TAIL_CHARACTERS:]):
        return CompileStatus.OUT_OF_MEMORY, f"ran out of memory and {how}"
    if returncode == -signal.SIGKILL:
        why = "probably because the machine ran out of memory"
        return CompileStatus.OUT_OF_MEMORY, f"{how}, {why}"
    clause = how
    for match in _REASON.finditer(output):  # the last one counts
        reason = match[match.lastgroup or 0].strip()[:_REASON_CHARACTERS]
        clause = f"{how}: {reason.removesuffix('.')}"
    return CompileStatus.CRASHED, clause
