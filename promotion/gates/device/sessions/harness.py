"""Complete runs of a suite with a verdict on each test, even if tests crash or hang.

When a session is lost or stopped, another session runs the remaining tests.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from core.atomic import write_whole
from core.frozen import frozen
from core.model import Finding
from core.process import HostRunner
from core.units import human
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import warning
from promotion.gates.device.lease import Lease
from promotion.gates.device.results import (
    Attempt,
    Ending,
    Round,
    by_cause,
    file_of,
    judge,
    killed_workers,
    lacks_memory,
)
from promotion.gates.device.sessions import passes
from promotion.gates.device.sessions.journal import SessionJournal
from promotion.gates.device.sessions.passes import (
    Pass,
    RunPlan,
    RunReport,
    session_argv,
    session_env,
    session_plan,
)
from promotion.gates.device.sessions.session import PLAN, PytestSession, SessionOutcome
from promotion.gates.device.sessions.state import PassState

_IDLE_SESSIONS = 3
"""Number of consecutive sessions without progress after which a pass ends."""
_GIVEN_BACK_SECONDS = 10.0
"""Seconds for a driver to release the memory of processes that ended."""
_UNDECIDED = (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.ENVIRONMENT)


@frozen
class _Job:
    """Content of one session.

    Attributes:
        only: tests to run; None runs all tests of the file, or of the suite.
        file: file to collect; empty collects those of the tests.
        round: reason of the attempts.
    """

    only: Sequence[str] | None = None
    file: str = ""
    round: Round = Round.FIRST


class Harness:
    """One run of a suite.

    Args:
        folder: folder for the files of the sessions, for this run alone.
        on_progress: called with the numbers of finished and of all tests.
    """

    def __init__(
        self,
        runner: HostRunner,
        plan: RunPlan,
        folder: Path,
        on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.runner = runner
        self.plan = plan
        self.folder = folder
        self.on_progress = on_progress
        self._states = {pass_.name: PassState() for pass_ in plan.passes}
        self._notes: dict[str, None] = {}
        self._warnings: list[Finding] = []
        self._problems: list[str] = []
        self._numbers = itertools.count()
        self._idle: Mapping[str, int] = {}
        self._has_warned = False

    def run(self) -> RunReport:
        """Run all passes, then retry failed tests."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._idle = self.plan.free_memory()
        for pass_ in self.plan.passes:
            self._finish(pass_)
        if not self._problems:
            for pass_ in self.plan.passes:
                self._retry(pass_)
        return self._report()

    def _finish(self, pass_: Pass) -> None:
        """Run sessions until all chosen tests have finished or progress stops."""
        state = self._states[pass_.name]
        idle = 0
        limits = self.plan.limits
        while state.chosen is None or state.remaining():
            before = state.progress()
            only = None if state.chosen is None else state.remaining()
            # If workers collect different tests, a single one may still make progress.
            leases = pass_.leases[:1] if idle else pass_.leases
            if any(map(state.is_starved, only or ())):
                self._memory_is_free(limits.pause)
                leases = leases[: max(1, len(leases) // 2)]
                text = f"Tests lacked memory, and ran again with {len(leases)} workers."
                self._notes[text] = None
            outcome = self._together(pass_, _Job(only=only), leases)
            idle = idle + 1 if state.progress() == before else 0
            if state.died > limits.crashes:
                self._problems.append(
                    f"pass {pass_.name}: more than {limits.crashes} tests crashed their"
                    " process"
                )
                return
            if idle >= _IDLE_SESSIONS:
                why = outcome.problem or "collected tests do not run"
                self._problems.append(f"pass {pass_.name}: {why}")
                return
        self._alone(pass_, [_Job(only=[test]) for test in state.untried_suspects()])

    def _retry(self, pass_: Pass) -> None:
        """Retry failed tests in fresh processes, whose results decide.

        If too many tests failed, one test of each cause is retried, and the others of a
        cause only after it passed. If there are too many causes, no test is retried.
        """
        state = self._states[pass_.name]
        most = self.plan.retries
        failed = self._undecided(state)
        if not most:
            return
        groups = [[result] for result in failed]
        if len(failed) > most:
            groups = list(by_cause(failed).values())
        if len(groups) > most:
            text = (
                f"{len(failed)} tests failed for {len(groups)} causes, more than"
                f" {most}; none was retried."
            )
            self._warnings.append(warning("not-retried", text, "Fix the causes."))
            return
        self._retry_each(pass_, [first.id for first, *_ in groups])
        still = {result.id for result in self._undecided(state)}
        others: list[str] = []
        for first, *more in groups:
            if first.id not in still:
                others += [result.id for result in more]
        self._retry_each(pass_, [test for test in others if test in state.files])
        if only := [test for test in others if test not in state.files]:
            job = _Job(only=only, round=Round.RETRY)
            few = any(map(state.is_starved, only))
            self._together(pass_, job, pass_.leases[:1] if few else pass_.leases)

    @staticmethod
    def _undecided(state: PassState) -> list[TestResult]:
        results = (judge(test, tries) for test, tries in state.attempts())
        return [result for result in results if result.verdict in _UNDECIDED]

    def _retry_each(self, pass_: Pass, names: Sequence[str]) -> None:
        """Retry tests, and files that could not be collected, each in a process of its own.

        Tests of a file that can be collected now run too. Tests that lacked memory run
        one after the other.
        """
        state = self._states[pass_.name]
        jobs = []
        for name in names:
            if state.is_starved(name):
                continue
            of_file = _Job(file=name, round=Round.RETRY)
            jobs.append(of_file if name in state.files else _retry_of(name))
        new: list[str] = []
        for job, outcome in zip(jobs, self._alone(pass_, jobs), strict=True):
            unusable = [item for item in outcome.files if item.ending is Ending.FAILED]
            if job.only is None and outcome.items is not None:
                if outcome.broken or unusable:
                    continue
                state.recovered(job.file)
                new += outcome.chosen
        untried = [test for test in new if not state.tests.get(test)]
        self._alone(pass_, [_retry_of(test) for test in untried])
        for test in filter(state.is_starved, names):
            if not self._memory_is_free(self.plan.limits.pause):
                return
            self._alone(pass_, [_retry_of(test)])

    def _together(
        self, pass_: Pass, job: _Job, leases: Sequence[Lease]
    ) -> SessionOutcome:
        """Run tests in one session, with a worker for each lease."""
        outcome = self._session(pass_, job, leases, workers=len(leases))
        self._add(pass_, job, outcome)
        self._check_devices([outcome])
        return outcome

    def _alone(self, pass_: Pass, jobs: Sequence[_Job]) -> list[SessionOutcome]:
        """Run each job in a process of its own, as many at once as there are leases."""
        leases = SimpleQueue[Lease]()
        for lease in pass_.leases:
            leases.put(lease)

        def run(job: _Job) -> SessionOutcome:
            lease = leases.get()
            try:
                return self._session(pass_, job, (lease,), workers=0)
            finally:
                leases.put(lease)

        with ThreadPoolExecutor(max(1, len(pass_.leases))) as pool:
            outcomes = list(pool.map(run, jobs))
        had_memory = len(jobs) == 1 and not self._taken()
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._add(pass_, job, outcome, had_memory=had_memory)
            for death in outcome.suspects:  # no other test can be the cause
                self._states[pass_.name].blame(death, job.round)
        self._check_devices(outcomes)
        return outcomes

    def _add(
        self,
        pass_: Pass,
        job: _Job,
        outcome: SessionOutcome,
        *,
        had_memory: bool = False,
    ) -> None:
        """Add the outcome of a session.

        Args:
            had_memory: whether no other process used the memory of the devices.
        """
        sizes = {lease.device: lease.memory for lease in pass_.leases}
        ended = []
        for attempt in outcome.ended:
            failed = attempt.ending is Ending.FAILED and not had_memory
            size = sizes.get(attempt.device, 0)
            starved = failed and lacks_memory(attempt.exception, size)
            ended.append(
                replace(attempt, ending=Ending.STARVED) if starved else attempt
            )
        outcome = replace(outcome, ended=tuple(ended))
        self._states[pass_.name].add(outcome, job.round)
        self._notes |= dict.fromkeys(outcome.notes)

    def _taken(self) -> dict[str, int]:
        """Return device -> bytes that were free before the run, and are used now."""
        now = self.plan.free_memory()
        taken = {}
        for device, free in self._idle.items():
            missing = free - now.get(device, free)
            if missing > passes.MOST_LEFT:
                taken[device] = missing
        return taken

    def _memory_is_free(self, patience: float) -> bool:
        """Wait for memory that other processes use; return whether it is free now."""
        until = time.monotonic() + patience
        while taken := self._taken():
            if time.monotonic() > until:
                break
            time.sleep(min(1.0, patience))
        return not taken

    def _check_devices(self, outcomes: Sequence[SessionOutcome]) -> None:
        """Warn once if idle devices have less free memory than before these sessions."""
        on_cpu = "" in self._idle  # other programs use RAM too
        if self._has_warned or on_cpu or self._memory_is_free(_GIVEN_BACK_SECONDS):
            return
        self._has_warned = True
        for device, missing in self._taken().items():
            tests = []
            for outcome in outcomes:
                own = (one for one in outcome.ended if device in one.device.split(","))
                tests += [attempt.id for attempt in own]
            text = f"The idle device {device} has {human(missing)} less free memory"
            if tests:
                text += (
                    f" than before {len(tests)} tests, from {tests[0]} to {tests[-1]}"
                )
            remedy = "Find the process that uses it."
            self._warnings.append(warning("device-memory-taken", f"{text}.", remedy))

    def _session(
        self, pass_: Pass, job: _Job, leases: Sequence[Lease], *, workers: int
    ) -> SessionOutcome:
        """Run one session.

        Args:
            workers: number of pytest-xdist workers; 0 runs the tests in one process.
        """
        state = self._states[pass_.name]
        suite = self.plan.suite
        # A file whose import ended a process is collected only alone.
        broken = [] if job.file else [*state.broken]
        files: Sequence[str] = [job.file] if job.file else suite.files
        if job.only is not None:
            files = [*dict.fromkeys(map(file_of, job.only))]
        files = [file for file in files if file not in broken]
        if not files:
            return SessionOutcome(items=())
        folder = self.folder / f"{next(self._numbers):04}"
        folder.mkdir()
        shutil.copytree(
            passes.PLUGIN_FOLDER,
            folder / passes.PLUGIN,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        plan = session_plan(
            self.plan,
            leases,
            only=job.only,
            broken=[str(suite.root / file) for file in broken],
            solo=not workers,
        )
        write_whole(folder / PLAN, json.dumps(plan).encode())
        count = min(workers, len(job.only) if job.only else workers)
        argv = session_argv(self.plan.python, suite, pass_, workers=count, files=files)
        session = PytestSession(self.runner, folder, self.plan.limits)
        if job.round is not Round.RETRY:
            session.on_poll = lambda journal: self._report_progress(state, journal)
        return session.run(argv, session_env(self.plan.env, folder), suite.root)

    def _report_progress(self, state: PassState, journal: SessionJournal) -> None:
        """Report the numbers of finished and of all tests of a pass."""
        chosen = state.chosen or journal.items("chosen") or ()
        finished = {*state.tests, *(attempt.id for attempt in journal.ended)}
        if chosen:
            self.on_progress(len(finished.intersection(chosen)), len(chosen))

    def _report(self) -> RunReport:
        attempts: dict[str, tuple[Attempt, ...]] = {}
        collected: set[str] = set()
        for state in self._states.values():
            attempts |= {test: tuple(tries) for test, tries in state.attempts()}
            collected |= set(state.collected)
        results = tuple(judge(test, attempts[test]) for test in sorted(attempts))
        return RunReport(
            results=results,
            collected=tuple(sorted(collected)),
            problems=tuple(self._problems),
            notes=tuple(self._notes),
            sessions=next(self._numbers),
            attempts=attempts,
            warnings=(*self._warnings, *killed_workers(results, attempts)),
        )


def _retry_of(test: str) -> _Job:
    return _Job(only=[test], round=Round.RETRY)
