"""One process of the compile gate: what it tells, how long and how big it may get, and what its death means."""

from __future__ import annotations

import enum
import json
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ProcessError
from core.process import HostRunner
from core.units import human

_TAIL_CHARACTERS = 3000
_KEPT_CHARACTERS = 1 << 16
"""What is read of a dying process: the reason stands above its stack trace."""
_REASON = re.compile(
    r"^F\d{4} \S+ +\d+ \S+\] (?P<xla>.+)$"
    r"|^E\d{4} \S+ +\d+ \S+\] (?P<triton>LLVM Fatal Error .+)$"
    r"|^(?P<llvm>LLVM ERROR: .+)$"
    r"|^  what\(\):  (?P<exception>.+)$"
    r"|^.+: (?P<libc>Assertion `.+' failed\.)$",
    re.MULTILINE,
)
"""How those who end a process on purpose say why."""
_REASON_CHARACTERS = 400
_MEMORY = re.compile(r"bad_alloc|MemoryError|out of memory|cannot allocate memory", re.IGNORECASE)
"""How C++, Python, LLVM and the C library say that an allocation failed."""
_REFUSED = re.compile(r"MemoryError\b|.*std::bad_alloc")
"""The same as a Python exception; XLA's RESOURCE_EXHAUSTED is about a GPU's memory and not meant."""


class Fate(enum.StrEnum):
    """What became of a program."""

    COMPILED = "compiled"
    FAILED = "failed"
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "out of memory"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What became of one program.

    Attributes:
        error: what went wrong; a sentence and, after it, what the process printed last.
        files: the code objects that it left.
        stats: whatever else the child tells.
        killed: the process was killed from outside, which may be no fault of the program.
    """

    program: str
    fate: Fate
    error: str = ""
    seconds: float = 0.0
    files: tuple[Path, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    killed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLimits:
    """What a process may take.

    Attributes:
        start_seconds: until it says that it is ready, and after it says that it is done.
        program_seconds: for each program.
        memory: resident bytes.
    """

    start_seconds: float = 180.0
    program_seconds: float = 180.0
    memory: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildRun:
    """What came of one process.

    Attributes:
        results: of the programs that it finished and of the one that it died of, in order.
        problem: what is wrong with the process beyond that; empty when it ended as it should.
        error: like `Result.error` for a death that no program is to blame for.
        peak: most resident bytes.
    """

    results: tuple[Result, ...]
    problem: str
    seconds: float
    peak: int

    @property
    def barren(self) -> bool:
        """Whether it finished no program at all."""
        return not any(result.fate in (Fate.COMPILED, Fate.FAILED) for result in self.results)


class ChildJournal:
    """What a child has written so far to results.jsonl; it may have written anything.

    Args:
        folder: where the file and the code objects are.
        programs: those that it was asked for.
        on_event: told the program and what became of it, or None when it was begun.
    """

    def __init__(self, folder: Path, programs: Sequence[str], on_event: Callable[[str, Fate | None], None]) -> None:
        self._folder, self._programs, self._on_event = folder, frozenset(programs), on_event
        self._file, self._offset = folder / "results.jsonl", 0
        self.ready = self.done = False
        self.running = ""
        self.unusable = ""
        self.garbage = ""
        self.changed = time.monotonic()
        self.results: dict[str, Result] = {}

    def read(self) -> None:
        """Take in the lines that were completed since the last time."""
        with suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._offset)
            lines, newline, _ = file.read().rpartition(b"\n")
            self._offset += len(lines) + len(newline)
            for line in lines.splitlines() if newline else ():
                self.changed = time.monotonic()
                try:
                    self._take(json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError):
                    self.garbage = self.garbage or line[:200].decode(errors="backslashreplace")

    def _take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "ready":
                self.ready = True
            case "unusable":
                self.unusable = str(event["error"])
            case "start" if not self.running and event["program"] in self._programs - self.results.keys():
                self.running = event["program"]
                self._on_event(self.running, None)
            case "end" if self.running and event["program"] == self.running:
                fate, text = {"compiled": Fate.COMPILED, "failed": Fate.FAILED}[event["outcome"]], str(event["error"])
                result = Result(
                    program=self.running,
                    fate=Fate.OUT_OF_MEMORY if fate is Fate.FAILED and _REFUSED.match(text) else fate,
                    error=text,
                    seconds=float(event["seconds"]),
                    files=tuple(map(self._own_file, event["code_objects"])),
                    stats=dict(event.get("stats", {})),
                )
                self.blame(result)
            case "done":
                self.done = True
            case _:
                raise ValueError("out of place")

    def _own_file(self, name: str) -> Path:
        path = self._folder / name
        if path.parent != self._folder or not path.is_file() or path.is_symlink():
            raise ValueError("not a file of the child's")
        return path

    def blame(self, result: Result) -> None:
        """Note what became of the running program."""
        self.results[result.program] = result
        self.running = ""
        self._on_event(result.program, result.fate)


class ChildWatch:
    """Keeps an eye on a running child: the runner asks it several times a second whether to stop.

    Args:
        stop: set when the whole gate is to end.
    """

    def __init__(self, journal: ChildJournal, limits: ProcessLimits, stop: threading.Event) -> None:
        self._journal, self._limits, self._stop = journal, limits, stop
        self.fate: Fate | None = None
        self.reason = ""
        self.peak = 0

    def __call__(self, pid: int) -> str:
        """Why the child has to be stopped; see `core.process`."""
        if not self.peak:
            self._restrain(pid)
        self._journal.read()
        now, self.peak = _memory(pid, self.peak)
        waited = time.monotonic() - self._journal.changed
        patience = self._limits.program_seconds if self._journal.running else self._limits.start_seconds
        if self._stop.is_set():
            self.reason = "was no longer wanted"
        elif now > self._limits.memory:
            self.fate, self.reason = Fate.OUT_OF_MEMORY, f"took more than {human(self._limits.memory)} of memory"
        elif waited > patience:
            self.fate, self.reason = Fate.HUNG, f"did not get any further for {patience:g} s"
        return self.reason

    def _restrain(self, pid: int) -> None:
        """Let the kernel refuse what would come too fast for a look now and then; and no core files of a gigabyte."""
        with suppress(ProcessLookupError, PermissionError, ValueError):
            most = self._limits.memory + _RESERVED + (os.cpu_count() or 1) * _RESERVED_PER_CORE
            resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


_RESERVED, _RESERVED_PER_CORE = 2 << 30, 64 << 20
"""Bytes of private memory that a process may ask for and never touch, which RLIMIT_DATA counts: stacks of its thread
pools and arenas of its allocators."""


def _memory(pid: int, peak: int) -> tuple[int, int]:
    """Resident bytes of a process now, and the most it ever had."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, max(peak, 1)
    found = {key: int(value) << 10 for key, value in re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB", text, re.MULTILINE)}
    return found.get("VmRSS", 0), max(found.get("VmHWM", 0), peak, 1)


def run_child(
    runner: HostRunner,
    argv: Sequence[str],
    env: Mapping[str, str],
    request: Mapping[str, Any],
    *,
    limits: ProcessLimits,
    stop: threading.Event,
    on_event: Callable[[str, Fate | None], None],
) -> ChildRun:
    """Start a child for some programs and see it through to its end, whatever that is.

    Args:
        argv: the interpreter and the child's program.
        env: see Runner.run.
        request: see promotion/corpus/child.py; its `out` is an existing, empty folder.
        on_event: see Journal.
    """
    folder = Path(request["out"])
    file = folder / "request.json"
    file.write_text(json.dumps(request))
    journal = ChildJournal(folder, request["programs"], on_event)
    watch = ChildWatch(journal, limits, stop)
    begun = time.monotonic()
    returncode, said = 0, ""
    try:
        command = (*argv, str(file))
        ended = runner.run(command, env=env, cwd=str(folder), check=False, watch=watch, keep=_KEPT_CHARACTERS)
        returncode, said = ended.returncode, ended.stderr or ended.stdout
    except ProcessError as problem:
        if not watch.reason:
            raise
        said = "" if watch.fate else problem.message
    since = journal.changed
    journal.read()
    fate, clause = (watch.fate, watch.reason) if watch.reason else death(returncode, said, done=journal.done)
    tail = _tail(said)
    if journal.running and clause:
        journal.blame(
            Result(
                program=journal.running,
                fate=fate or Fate.NOT_RUN,
                error=f"The process {clause}.\n{tail}".strip(),
                seconds=round(time.monotonic() - since, 3),
                killed=returncode == -signal.SIGKILL and not watch.reason,
            )
        )
        clause = ""
    return ChildRun(
        results=tuple(journal.results.values()),
        problem=_problem(journal, clause, tail),
        seconds=time.monotonic() - begun,
        peak=watch.peak,
    )


def _problem(journal: ChildJournal, clause: str, tail: str) -> str:
    if journal.garbage:
        return f"It wrote what nobody understands: {journal.garbage}"
    if journal.unusable:
        return f"It could not use jax with the plugin: {journal.unusable}"
    if clause:
        when = "after its last program" if journal.done else "between two programs" if journal.ready else "at its start"
        return f"The process {clause}, {when}.\n{tail}".strip()
    return ""


def death(returncode: int, said: str, *, done: bool) -> tuple[Fate | None, str]:
    """What an exit status means.

    Args:
        said: what the process printed last; when it says why it ends, the clause does too.
        done: it said that it had done everything.

    Returns:
        The fate of the program that ran, and a clause about the process; nothing when all is as it should be.
    """
    if returncode == 0:
        return (None, "") if done else (Fate.CRASHED, "ended with exit code 0 in the middle of its work")
    how = f"died of {signal_name(-returncode)}" if returncode < 0 else f"ended with exit code {returncode}"
    if _MEMORY.search(_tail(said)):
        return Fate.OUT_OF_MEMORY, f"ran out of memory and {how}"
    if returncode == -signal.SIGKILL:
        return Fate.OUT_OF_MEMORY, f"{how}, as when the machine runs out of memory"
    reasons = [match[match.lastgroup or 0].strip()[:_REASON_CHARACTERS] for match in _REASON.finditer(said)]
    return Fate.CRASHED, ": ".join((how, *(reason.removesuffix(".") for reason in reasons[-1:])))


def signal_name(number: int) -> str:
    """The name of a signal; some real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(text: str) -> str:
    return text.strip()[-_TAIL_CHARACTERS:]
