"""One supervised pytest session.

Hung workers are killed after they write a traceback, and no process stays behind.

Only the session's journals count, not its exit code, which says nothing about tests
that never ran.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from core.errors import ProcessError
from core.frozen import frozen
from core.process import HostRunner, without_credentials
from promotion.gates.common.gate_context import signal_name
from promotion.gates.device.results import OUT_OF_MEMORY, Attempt, Ending
from promotion.gates.device.sessions.journal import (
    CONTROLLER,
    SOLO,
    SessionJournal,
    Worker,
)
from promotion.gates.device.sessions.processes import (
    RUN,
    alive,
    kill_marked,
    out_of_memory_kills,
    send_signal,
)

_POLL_SECONDS = 0.1
_KEPT_CHARACTERS = 1 << 16
_COMPLETE = (0, 1, 5)
"""Exit statuses of a complete session.

All tests passed, some tests failed, or no tests were collected.
"""
LOG = "output.log"
PLAN = "plan.json"
_LOG_CHARACTERS = 32 << 20
"""Maximum length of a session's log.

A suite may print any amount; its results are in the journals.
"""


@frozen
class SessionLimits:
    """Limits of a session: durations in seconds, and crashes.

    Attributes:
        test: duration of each test, with its fixtures.
        collect: duration of the import of a file, and of the start.
        grace: time between SIGABRT and SIGKILL for a hung worker, and between the end
            of a session and of its output.
        pause: wait for memory that other processes use.
        crashes: maximum number of dead workers in one pass.
    """

    test: float = 900.0
    collect: float = 600.0
    grace: float = 10.0
    pause: float = 600.0
    crashes: int = 100


@frozen
class SessionOutcome:
    """Outcome of a session.

    Attributes:
        items: collected tests; None if no process finished collection.
        chosen: collected tests of this run.
        ended: tests that finished.
        died: tests that certainly ended their worker.
        suspects: tests that were running when the whole session was lost; any of them
            may be the cause.
        files: files that could not be collected, or skip themselves.
        broken: files whose import ended their worker.
        problem: reason why the session was stopped or lost; empty for a complete
            session.
        notes: remarks for the evidence.
        retired: number of workers that exited because a test exhausted their device.
    """

    items: tuple[str, ...] | None = None
    chosen: tuple[str, ...] = ()
    ended: tuple[Attempt, ...] = ()
    died: tuple[Attempt, ...] = ()
    suspects: tuple[Attempt, ...] = ()
    files: tuple[Attempt, ...] = ()
    broken: tuple[Attempt, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()
    retired: int = 0


class PytestSession:
    """A run of pytest with its workers.

    Args:
        folder: folder of the session, with the plan; its path is the value of
            JAX_GATE_RUN.

    Attributes:
        on_poll: called with the journal after each read.
    """

    def __init__(
        self,
        runner: HostRunner,
        folder: Path,
        limits: SessionLimits,
    ) -> None:
        self.runner = runner
        self.folder = folder
        self.limits = limits
        self.on_poll: Callable[[SessionJournal], None] = lambda _: None
        self.journal = SessionJournal(folder)
        self.hung: dict[str, float] = {}
        """Hung worker -> time of the first signal."""
        self.lost: set[str] = set()
        """Workers that were found dead."""
        self._leader_ended = False
        self.oom_kills = 0
        """Number of processes that the kernel killed for want of memory during the session."""
        self._started = self._polled = time.monotonic()
        self._finished: float | None = None

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> SessionOutcome:
        """Run the session until it ends or must be stopped."""
        problem = ""
        before = out_of_memory_kills()
        with (self.folder / LOG).open(
            "w", encoding="utf-8", errors="backslashreplace"
        ) as log:
            try:
                result = self.runner.with_listener(_bounded_writer(log)).run(
                    argv,
                    env={**env, RUN: str(self.folder)},
                    cwd=str(cwd),
                    check=False,
                    watch=self._watch,
                    keep=_KEPT_CHARACTERS,
                )
                code = result.returncode
                self._leader_ended |= code < 0
                if code not in _COMPLETE:
                    problem = (
                        "pytest ended with"
                        f" {f'exit status {code}' if code >= 0 else f'signal {-code}'}"
                    )
            except ProcessError as error:
                if self._finished is None:
                    problem = without_credentials(error.message[-400:])
            finally:  # also after an interrupt
                kill_marked(self.folder)
        self.oom_kills = out_of_memory_kills() - before
        return self.outcome(problem)

    @property
    def leader_ended(self) -> bool:
        """Return whether the process that started the workers ended before them."""
        return self._leader_ended or self.journal.exits.get(CONTROLLER, 0) < 0

    def _watch(self, pid: int) -> str:
        """Return the reason to stop the session; "" to continue."""
        now = time.monotonic()
        if now - self._polled < _POLL_SECONDS / 2:
            return ""
        self._polled = now
        self.journal.read()
        self.on_poll(self.journal)
        if self.journal.status is not None:
            self._finished = self._finished or now
            late = now - self._finished > self.limits.grace
            return "has finished, but a process keeps its output open" if late else ""
        if not alive(pid):
            self.journal.read()  # the launcher records the end of pytest, unless it is killed
            self._leader_ended = self.journal.exits.keys().isdisjoint(
                (CONTROLLER, SOLO)
            )
            return "died and left its workers without a controller"
        busy = [*self.journal.unfinished()]
        for worker in busy:
            if why := self.check_worker(worker, pid, now):
                return why
        if sum(not alive(worker.pid) for worker in busy) > self.limits.crashes:
            return f"lost more than {self.limits.crashes} workers"
        quiet = now - max(self._started, self.journal.changed)
        if quiet > max(self.limits.test, self.limits.collect) + 2 * self.limits.grace:
            return f"made no progress for {quiet:.0f} s"
        return ""

    def check_worker(self, worker: Worker, leader: int, now: float) -> str:
        """End a hung worker.

        Return a reason to stop the session if the worker died while it imported a file.
        """
        if not alive(worker.pid):
            self.journal.read()  # events since the last read: the worker may have finished
            if worker.finished:
                return ""
            self.lost.add(worker.name)
            return f"cannot import {worker.collecting}" if worker.collecting else ""
        limit = None
        if worker.running:
            limit = self.limits.test
        elif worker.collecting:
            limit = self.limits.collect
        if limit is None or now - worker.since <= limit:
            return ""
        aborted = self.hung.get(worker.name)
        if aborted is None:
            self.hung[worker.name] = now
            send_signal(
                worker.pid, leader, signal.SIGABRT
            )  # faulthandler writes the traceback
        elif now - aborted > self.limits.grace:
            send_signal(worker.pid, leader, signal.SIGKILL)
        return ""

    def outcome(self, problem: str = "") -> SessionOutcome:
        """Return the outcome so far.

        `problem` is the reason why the session was stopped or ended abnormally.
        """
        self.journal.read()
        journal = self.journal
        lost = self.journal.status not in _COMPLETE
        died = list[Attempt]()
        suspects = list[Attempt]()
        broken = list[Attempt]()
        for worker in journal.unfinished():
            crashed = bool(self._crash(worker.name)[0])
            if worker.running:
                certain = not lost or worker.name in self.hung or crashed
                (died if certain else suspects).append(
                    self._death(worker, worker.running)
                )
            if worker.collecting and (worker.name in self.lost or crashed):
                broken.append(self._death(worker, worker.collecting))
        return SessionOutcome(
            items=journal.items("collected"),
            chosen=journal.items("chosen") or (),
            ended=tuple(journal.ended),
            died=tuple(died),
            suspects=tuple(suspects),
            files=tuple(journal.files.values()),
            broken=tuple(broken),
            problem=(problem or "pytest did not finish") if lost else "",
            notes=tuple(journal.notes),
            retired=sum(worker.retired for worker in journal.workers.values()),
        )

    def _crash(self, worker: str) -> tuple[str, str]:
        """Return `SessionJournal.crash`, without errors that follow a leader's death."""
        if self.leader_ended and self.journal.workers[worker].internal:
            return "", ""
        return self.journal.crash(worker)

    def _death(self, worker: Worker, what: str) -> Attempt:
        reason, text = self._crash(worker.name)
        status = self.journal.exits.get(worker.name)
        seconds = max(0.0, worker.last_at - worker.started_at)
        ending = Ending.CRASHED
        if worker.name in self.hung:
            limit = self.limits.test if worker.running else self.limits.collect
            message = f"It was still running after {limit:g} s and was ended."
            ending = Ending.HUNG
            seconds = seconds or self.limits.test
        elif reason:
            message = f"Its process died: {reason}."
        elif self.leader_ended:
            message = "The process that started its worker ended while it ran."
        elif status is None:
            message = "Its process ended silently: os._exit, or killed from outside."
        elif status >= 0:
            message = f"Its process exited with status {status}: it called os._exit."
        elif status == -signal.SIGKILL:
            ending = Ending.KILLED
            by = "by the system, an operator or itself"
            message = f"Its process was killed with SIGKILL, {by}."
            if self.oom_kills:
                message = f"{OUT_OF_MEMORY}."
        else:
            message = f"Its process was killed with {signal_name(-status)}."
        return Attempt(
            id=what,
            ending=ending,
            message=f"{message}\n{text}".rstrip(),
            exception=message,
            seconds=seconds,
            worker=f"{self.folder.name}/{worker.name}",
            device=worker.device,
        )


def _bounded_writer(log: TextIO) -> Callable[[str], None]:
    """Return a function that writes lines until the log is full."""
    left = _LOG_CHARACTERS

    def write(line: str) -> None:
        nonlocal left
        if left > 0:
            left -= len(line) + 1
            log.write(f"{line}\n" if left > 0 else "[... and more]\n")
            log.flush()

    return write
