"""One pytest session under watch: a hang is ended with a traceback, whatever dies is told apart, nothing stays behind.

The session's own words do not count, its journal does: what an exit code says of tests that never ran is nothing.
"""

from __future__ import annotations

import enum
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from core.errors import ProcessError
from core.process import HostRunner, without_credentials
from promotion.gates.device.sessions.journal import FinishedTest, SessionJournal, Worker
from promotion.gates.device.sessions.passes import MOST_LEFT
from promotion.gates.device.sessions.processes import RUN, alive, kill_marked, send_signal, was_killed

_LOOK_SECONDS = 0.1
_KEPT_CHARACTERS = 1 << 16
_FINE = (0, 1, 5)
"""Exit statuses of a session that came to its end: all passed, some failed, there was none."""
LOG, PLAN = "output.log", "plan.json"
_LOG_CHARACTERS = 32 << 20
"""Of what a session prints. A suite may print more than any disk holds; what counts is in the journals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionLimits:
    """How long things may take, in seconds, and how often workers may die.

    Attributes:
        test: each test, with its fixtures.
        collect: importing a file; starting up until the first one.
        grace: after the traceback of a hang was asked for; and from the end of a session to that of its processes.
        session: all of it.
        crashes: so many dead workers in one pass end it: nobody learns from the next thousand.
        left: bytes of arrays that a test may leave alive.
    """

    test: float = 900.0
    collect: float = 600.0
    grace: float = 10.0
    session: float = 6 * 3600.0
    crashes: int = 100
    left: int = MOST_LEFT


class DeathCause(enum.StrEnum):
    """How a test took its process with it."""

    CRASHED = "crashed"
    HUNG = "hung"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerDeath:
    """A test, or a file that was being imported, whose worker died."""

    id: str
    how: DeathCause
    message: str
    seconds: float
    worker: str
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOutcome:
    """What came of a session.

    Attributes:
        items: tests that were collected; None when no process came so far.
        ended: tests that came to their end.
        died: tests that surely took their worker with them.
        suspects: tests that ran when the whole session was lost, any of which may be to blame.
        broken: files that took their worker with them when they were imported.
        unusable: files that pytest could not collect -> why.
        skipped_files: files that skip themselves as a whole -> why.
        status: pytest's exit status; None when it did not end of its own will.
        problem: why the session was stopped or lost; empty when it came to its end.
        left: processes that tests left behind, as sentences.
        late: jax was there before the lease.
        retired: workers that ended themselves after a test that had used up their device.
    """

    items: tuple[str, ...] | None
    ended: tuple[FinishedTest, ...]
    died: tuple[WorkerDeath, ...]
    suspects: tuple[WorkerDeath, ...]
    broken: tuple[WorkerDeath, ...]
    unusable: Mapping[str, str]
    skipped_files: Mapping[str, str]
    status: int | None
    problem: str
    left: tuple[str, ...]
    late: bool = False
    retired: int = 0


class Session:
    """Runs pytest once, with its workers.

    Args:
        runner: starts it.
        folder: of the session, with its plan.
        run: value of RUN.
        limits: of time.
        on_poll: told the journal each time it was read.
    """

    def __init__(
        self,
        runner: HostRunner,
        folder: Path,
        run: str,
        limits: SessionLimits,
        on_poll: Callable[[SessionJournal], None] = lambda _: None,
    ) -> None:
        self.runner, self.folder, self.run, self.limits, self.on_poll = runner, folder, run, limits, on_poll
        self.journal = SessionJournal(folder)
        self.hung: dict[str, float] = {}
        """Workers that had to be ended -> when."""
        self.lost: set[str] = set()
        """Workers that were seen dead before anything was done to them."""
        self.beheaded = False
        """The process that had started the workers was killed."""
        self._began = self._looked = time.monotonic()
        self._finished: float | None = None

    def go(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> SessionOutcome:
        """Run it to its end, or to where it has to be ended."""
        problem = ""
        with (self.folder / LOG).open("w", encoding="utf-8", errors="backslashreplace") as log:
            try:
                done = self.runner.also(_bounded(log)).run(
                    argv,
                    env={**env, RUN: self.run},
                    cwd=str(cwd),
                    check=False,
                    watch=self._watch,
                    keep=_KEPT_CHARACTERS,
                )
                self.beheaded |= done.returncode < 0
                if done.returncode not in _FINE:
                    problem = f"pytest ended with {_how(done.returncode)}"
            except ProcessError as error:
                problem = "" if self._finished is not None else without_credentials(error.message[-400:])
            finally:  # also when a person stops it all
                kill_marked(self.run)
        return self.outcome(problem)

    def _watch(self, pid: int) -> str:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS / 2:
            return ""
        self._looked = now
        self.journal.read()
        self.on_poll(self.journal)
        if self.journal.status is not None:
            self._finished = self._finished or now
            return (
                "has finished, but something keeps its output open" if now - self._finished > self.limits.grace else ""
            )
        if not alive(pid):
            self.beheaded |= was_killed(pid)
            return "died, and left workers without anybody to tell them what to do"
        busy = [worker for worker in self.journal.unfinished() if worker.pid]
        for worker in busy:
            if why := self._look_at(worker, pid, now):
                return why
        if sum(not alive(worker.pid) for worker in busy) > self.limits.crashes:
            return f"lost more than {self.limits.crashes} workers"
        quiet = now - max(self._began, self.journal.changed)
        if quiet > max(self.limits.test, self.limits.collect) + 2 * self.limits.grace:
            return f"stood still for {quiet:.0f} s"
        if now - self._began > self.limits.session:
            return f"ran longer than {self.limits.session:.0f} s"
        return ""

    def _look_at(self, worker: Worker, leader: int, now: float) -> str:
        """End what hangs; say why the session has to be stopped when a file cannot be imported."""
        if not alive(worker.pid):
            self.journal.read()  # what it wrote since the last time: maybe it had done all that it had to
            if worker.finished:
                return ""
            self.lost.add(worker.name)
            return f"cannot import {worker.collecting}" if worker.collecting else ""
        limit = self.limits.test if worker.running else self.limits.collect if worker.collecting else None
        if limit is None or now - worker.since <= limit:
            return ""
        asked = self.hung.get(worker.name)
        if asked is None:
            self.hung[worker.name] = now
            send_signal(worker.pid, leader, signal.SIGABRT)  # faulthandler writes down where it hangs
        elif now - asked > self.limits.grace:
            send_signal(worker.pid, leader, signal.SIGKILL)
        return ""

    def outcome(self, problem: str = "") -> SessionOutcome:
        """What the session told until now.

        Args:
            problem: why it was stopped, or how it ended otherwise than it should.
        """
        self.journal.read()
        journal, lost = self.journal, self.journal.status not in _FINE
        lost_workers = [worker for worker in journal.unfinished() if worker.pid]
        running = [self._died(worker, worker.running) for worker in lost_workers if worker.running]
        sure = [death for death in running if not lost or death.how is DeathCause.HUNG or self._reason(death.worker)]
        return SessionOutcome(
            items=journal.items(),
            ended=tuple(journal.ended),
            died=tuple(sure),
            suspects=tuple(death for death in running if death not in sure),
            broken=tuple(
                self._died(worker, worker.collecting)
                for worker in lost_workers
                if worker.collecting and (worker.name in self.lost or self._reason(worker.name))
            ),
            unusable={file: error for file, error in journal.files.items() if error},
            skipped_files=dict(journal.skipped_files),
            status=journal.status,
            problem=(problem or "pytest did not come to its end") if lost else "",
            left=tuple(_left(journal.ended)),
            late=any(worker.late for worker in journal.workers.values()),
            retired=sum(worker.retired for worker in journal.workers.values()),
        )

    def _reason(self, worker: str) -> str:
        return self._crash(worker)[0]

    def _crash(self, worker: str) -> tuple[str, str]:
        """See `SessionJournal.crash`; an error inside pytest that only had nobody to report to is no test's fault."""
        return ("", "") if self.beheaded and self.journal.workers[worker].internal else self.journal.crash(worker)

    def _died(self, worker: Worker, what: str) -> WorkerDeath:
        reason, text = self._crash(worker.name)
        hung = worker.name in self.hung
        if hung:
            limit = self.limits.test if worker.running else self.limits.collect
            said = f"It was still running after {limit:g} s and was ended."
        elif reason:
            said = f"Its process died: {reason}."
        elif self.beheaded:
            said = "The process that had started its worker was killed while it ran."
        else:
            said = "Its process ended without a word: something called os._exit, or killed it from outside."
        return WorkerDeath(
            id=what,
            how=DeathCause.HUNG if hung else DeathCause.CRASHED,
            message=f"{said}\n{text}".rstrip(),
            seconds=max(0.0, worker.last_at - worker.started_at) or (self.limits.test if hung else 0.0),
            worker=worker.name,
            device=worker.device,
        )


def _bounded(log: TextIO) -> Callable[[str], None]:
    """Writes lines to a file until it is full."""
    left = _LOG_CHARACTERS

    def take(line: str) -> None:
        nonlocal left
        if left > 0:
            left -= len(line) + 1
            log.write(f"{line}\n" if left > 0 else "[... and more]\n")
            log.flush()

    return take


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Put a session's plan where its processes read it."""
    part = folder / f"{PLAN}.part"
    part.write_text(json.dumps(plan), encoding="utf-8")
    part.replace(folder / PLAN)


def _left(ended: Sequence[FinishedTest]) -> Iterator[str]:
    for test in ended:
        if test.left:
            yield f"{test.id} left {len(test.left)} process{'es' if len(test.left) > 1 else ''} behind"


def _how(returncode: int) -> str:
    return f"exit status {returncode}" if returncode >= 0 else f"signal {-returncode}"
