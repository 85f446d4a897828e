"""Complete runs of a suite with a verdict on each test, even if tests crash or hang.

When a session is lost or stopped, another session runs the remaining tests.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from core.atomic import write_whole
from core.model import Finding
from core.process import HostRunner
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import warning
from promotion.gates.device.results import (
    Attempt,
    Ending,
    Round,
    by_cause,
    file_of,
    judge,
    killed_workers,
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
_UNDECIDED = (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.ENVIRONMENT)


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
        self._states = {
            pass_.name: PassState(choose=plan.suite.choose) for pass_ in plan.passes
        }
        self._notes: dict[str, None] = {}
        self._warnings: list[Finding] = []
        self._problems: list[str] = []
        self._number = 0

    def run(self) -> RunReport:
        """Run all passes, then retry failed tests."""
        self.folder.mkdir(parents=True, exist_ok=True)
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
            only: list[str] | None = state.remaining()
            if state.chosen is None and self.plan.suite.choose is None:
                only = None
            # A choice needs the names of all tests, so its first session only collects.
            # If workers collect different tests, a single one may still make progress.
            workers = 1 if idle or only == [] else len(pass_.leases)
            outcome = self._session(pass_, only=only, workers=workers)
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
        for test in state.untried_suspects():
            self._run_alone(pass_, test, Round.FIRST)

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
        for first, *others in groups:
            self._retry_one(pass_, first.id)
            still = {result.id for result in self._undecided(state)}
            if others and first.id not in still:
                self._retry_together(pass_, [result.id for result in others])

    @staticmethod
    def _undecided(state: PassState) -> list[TestResult]:
        results = (judge(test, tries) for test, tries in state.attempts())
        return [result for result in results if result.verdict in _UNDECIDED]

    def _retry_one(self, pass_: Pass, test: str) -> None:
        state = self._states[pass_.name]
        tries = (*state.tests.get(test, ()), *state.files.get(test, ()))
        if any(item.round is Round.RETRY for item in tries):
            return
        if test in state.files:
            self._retry_file(pass_, test)
        else:
            self._run_alone(pass_, test, Round.RETRY)

    def _retry_together(self, pass_: Pass, tests: Sequence[str]) -> None:
        """Retry tests in new processes, which they share.

        The first test of their cause passed alone.
        """
        state = self._states[pass_.name]
        for file in [test for test in tests if test in state.files]:
            self._retry_one(pass_, file)
        if only := [test for test in tests if test not in state.files]:
            files = list(dict.fromkeys(map(file_of, only)))
            self._session(
                pass_,
                only=only,
                workers=len(pass_.leases),
                round_=Round.RETRY,
                files=files,
            )

    def _run_alone(self, pass_: Pass, test: str, round_: Round) -> None:
        """Run one test alone in a session."""
        outcome = self._session(
            pass_, only=[test], workers=0, round_=round_, files=[file_of(test)]
        )
        for death in outcome.suspects:  # no other test can be the cause
            self._states[pass_.name].blame(death, round_)

    def _retry_file(self, pass_: Pass, file: str) -> None:
        """Run a file that could not be collected, with all its tests, alone in a session."""
        state = self._states[pass_.name]
        outcome = self._session(
            pass_,
            only=None,
            workers=0,
            round_=Round.RETRY,
            files=[file],
            include_broken=file,
        )
        unusable = {
            attempt.id for attempt in outcome.files if attempt.ending is Ending.FAILED
        }
        if outcome.items is not None and not outcome.broken and file not in unusable:
            state.recovered(file)
            for test in outcome.items:
                if test in (state.chosen or ()) and not state.tests.get(test):
                    self._run_alone(pass_, test, Round.RETRY)

    def _session(
        self,
        pass_: Pass,
        *,
        only: Sequence[str] | None,
        workers: int,
        round_: Round = Round.FIRST,
        files: Sequence[str] | None = None,
        include_broken: str = "",
    ) -> SessionOutcome:
        """Run one session.

        Create its folder before the start.
        """
        state = self._states[pass_.name]
        folder = self.folder / f"{self._number:04}"
        suite = self.plan.suite
        self._number += 1
        folder.mkdir()
        shutil.copytree(
            passes.PLUGIN_FOLDER,
            folder / passes.PLUGIN,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        plan = session_plan(
            pass_,
            only=only,
            broken=[
                str(suite.root / file)
                for file in state.broken
                if file != include_broken
            ],
            skips=self.plan.skips,
            solo=not workers,
        )
        write_whole(folder / PLAN, json.dumps(plan).encode())
        count = min(workers, len(pass_.leases), len(only) if only else workers)
        argv = session_argv(
            self.plan.python, suite, pass_, workers=count, files=files or suite.files
        )
        session = PytestSession(self.runner, folder, self.plan.limits)
        if round_ is not Round.RETRY:
            session.on_poll = lambda journal: self._report_progress(state, journal)
        outcome = session.run(argv, session_env(self.plan.env, folder), suite.root)
        state.add(outcome, round_)
        self._notes |= dict.fromkeys(outcome.notes)
        return outcome

    def _report_progress(self, current: PassState, journal: SessionJournal) -> None:
        """Report the numbers of finished and of all tests.

        Tests of later passes are unknown before their pass.
        """
        ended = {attempt.id for attempt in journal.ended}
        items = journal.items() or ()
        finished = 0
        total = 0
        for state in self._states.values():
            running = (ended, items) if state is current else ()
            done, number = state.counts(*running)
            finished += done
            total += number
        if total:
            self.on_progress(finished, total)

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
            sessions=self._number,
            attempts=attempts,
            warnings=(*self._warnings, *killed_workers(results, attempts)),
        )
