"""Runs a suite to its end whatever its tests do, and says of each test what became of it.

A session that is lost, or stopped, is followed by another one with what is left; so is a controller that was killed:
`Harness` on the same folder goes on where the last one ended.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from core.errors import BusyError, RequestError
from core.process import HostRunner
from promotion.gates.device.results import Attempt, Round, TestResult, file_of, judge, retry_candidates
from promotion.gates.device.sessions import passes
from promotion.gates.device.sessions.passes import Pass, Skip, Suite, session_argv, session_env, session_plan
from promotion.gates.device.sessions.processes import kill_marked
from promotion.gates.device.sessions.session import Session, SessionLimits, SessionOutcome, write_plan
from promotion.gates.device.sessions.state import Choose, PassState

_PATIENCE = 3
"""So many sessions in a row may end without having got on with anything."""
MOST_KILLED = 1
"""So often may this program be killed while a test runs alone: a machine may fail at any time, but not always then."""
MOST_RETRIES = 40
"""Of failures. With more than that, the next fresh process would tell nothing new."""
DONE = "done"
"""Lies in the folder of a run of which everything was told: there is nothing to go on with."""
_RUN, _LOCK, _OUTCOME = "run.json", "run.lock", "outcome.json"
LATE = "jax was imported before a worker had its lease: the suite, or a plugin of pytest, is too early."


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What there is to run.

    Attributes:
        python: interpreter with its options.
        env: changes to the environment for all processes.
        choose: which of the tests of each pass; None takes all.
        retries: most tests that are tried again in fresh processes; 0 tries none.
        identity: what a run is of; one that is of something else is not gone on with.
    """

    python: tuple[str, ...]
    suite: Suite
    env: Mapping[str, str]
    passes: tuple[Pass, ...]
    skips: tuple[Skip, ...] = ()
    choose: Choose | None = None
    limits: SessionLimits = field(default_factory=SessionLimits)
    retries: int = MOST_RETRIES
    identity: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """What came of a run.

    Attributes:
        results: of every test that was chosen, and of files that could not be collected, in order of their ids.
        collected: all tests that there are, chosen or not.
        problems: why the passes did not come to their end; empty when they did.
        notes: what a person should know all the same.
        sessions: how many there were.
        attempts: of each test, in order.
    """

    results: tuple[TestResult, ...]
    collected: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    sessions: int
    attempts: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)


class Harness:
    """One run of a suite.

    Args:
        runner: starts its sessions.
        folder: keeps everything that has to outlive this process; not shared with another run.
        on_progress: told how many tests have ended, and how many there are.
    """

    def __init__(
        self,
        runner: HostRunner,
        work: RunPlan,
        folder: Path,
        on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.runner, self.work, self.folder, self.on_progress = runner, work, folder, on_progress
        self._states = {pass_.name: PassState(choose=work.choose) for pass_ in work.passes}
        self._notes: dict[str, None] = {}
        self._problems: list[str] = []
        self._number = 0
        self._id = ""

    def run(self) -> RunReport:
        """Run what is left to run.

        Raises:
            BusyError: another process is at this run.
            RequestError: the folder holds a run of something else, or something else than a run.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise BusyError(f"Another process is at the run in {self.folder}.", hint="Wait for it.") from error
        try:
            self._take_up()
            for pass_ in self.work.passes:
                self._finish(pass_)
            if not self._problems:
                for pass_ in self.work.passes:
                    self._retry(pass_)
        finally:
            lock.release()
        return self._report()

    def _take_up(self) -> None:
        """Read what an earlier process left, and end what of it still runs."""
        file = self.folder / _RUN
        if file.exists():
            told = json.loads(file.read_bytes())
            ended = (self.folder / DONE).exists()
            if not ended and told["identity"] != self.work.identity:
                hint = "Give another folder, or remove this one."
                raise RequestError(f"{self.folder} holds a run of something else.", hint=hint)
            self._id = told["run"]
            kill_marked(self._id)
            if ended:
                self._forget(file)
        elif others := sorted({path.name for path in self.folder.iterdir()} - {_LOCK, file.with_suffix(".part").name}):
            hint = "Give an empty folder, or a new one."
            raise RequestError(f"{self.folder} holds {others[0]}, and no run.", hint=hint)
        if not file.exists():
            self._id = secrets.token_hex(16)
            part = file.with_suffix(".part")
            part.write_text(json.dumps({"identity": self.work.identity, "run": self._id}))
            part.replace(file)
        for folder in self._sessions():
            self._number = int(folder.name) + 1
            self._take_old(folder)

    def _sessions(self) -> list[Path]:
        """Their folders, oldest first; somebody else's files may lie beside them."""
        return sorted(path for path in self.folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir())

    def _forget(self, file: Path) -> None:
        """Remove what is this run's, and nothing else; `file` goes last, as without it there is no run."""
        for folder in self._sessions():
            shutil.rmtree(folder)
        (self.folder / DONE).unlink()
        file.unlink()

    def _take_old(self, folder: Path) -> None:
        """What a session of before told; of one that was cut off, only what came to its end counts."""
        try:
            plan = json.loads((folder / "plan.json").read_bytes())
            state, round_ = self._states[plan["pass"]], Round(plan["round"])
        except (OSError, ValueError, KeyError):
            return
        session = Session(self.runner, folder, self._id, self.work.limits)
        try:
            told = json.loads((folder / _OUTCOME).read_bytes())
            session.hung, session.lost = dict.fromkeys(told["hung"], 0.0), set(told["lost"])
            session.beheaded = bool(told["beheaded"])
            outcome = session.outcome(told["problem"])
        except (OSError, ValueError, KeyError):
            outcome = self._cut_off(session.outcome(), state, round_, folder.name, alone=plan["solo"])
        self._take(state, outcome, round_, folder.name)

    def _cut_off(
        self, outcome: SessionOutcome, state: PassState, round_: Round, session: str, *, alone: bool
    ) -> SessionOutcome:
        """Of a session in which this program was killed: what ran then may have done it, and has to run alone.

        Whoever ran alone each time this program was killed, is to blame.
        """
        ran = (*outcome.died, *outcome.suspects)
        if alone:
            for death in ran:
                state.cut_off[death.id] += 1
                if state.cut_off[death.id] > MOST_KILLED:
                    text = f"The gate was killed {state.cut_off[death.id]} times while this test ran alone."
                    state.blame(replace(death, message=text), round_, session)
        return replace(outcome, died=(), suspects=() if alone else ran, broken=())

    def _finish(self, pass_: Pass) -> None:
        """Sessions until every chosen test of a pass has ended, or until there is no getting on."""
        state, idle, limits = self._states[pass_.name], 0, self.work.limits
        while state.chosen is None or state.left():
            before = state.progress()
            # What there is has to be known before something can be chosen of it.
            first: list[str] | None = None if self.work.choose is None else []
            only = first if state.chosen is None else state.left()
            # Workers that cannot agree on what there is may get on one at a time.
            outcome = self._session(pass_, only=only, workers=1 if idle or only == [] else len(pass_.leases))
            idle = idle + 1 if state.progress() == before else 0
            if state.died > limits.crashes:
                text = f"more than {limits.crashes} tests took their process with them"
                self._problems.append(f"pass {pass_.name}: {text}")
                return
            if idle >= _PATIENCE:
                why = outcome.problem or "what was collected is not run"
                self._problems.append(f"pass {pass_.name}: {why}")
                return
        for test in state.alone():
            self._alone(pass_, test, Round.FIRST)

    def _retry(self, pass_: Pass) -> None:
        """What fell is run in a fresh process each, which decides; unless so much fell that it is no accident."""
        state = self._states[pass_.name]
        retried = {test for test, tries in state.all() if any(item.round is Round.RETRY for item in tries)}
        tests = retry_candidates(judge(test, tries) for test, tries in state.all())
        if self.work.retries and len(tests) > self.work.retries:
            self._notes[f"{len(tests)} tests fell, more than {self.work.retries}: none was tried again."] = None
            return
        for test in tests if self.work.retries else ():
            if test in retried:
                continue
            if test in state.files:
                self._file_alone(pass_, test)
            else:
                self._alone(pass_, test, Round.RETRY)

    def _alone(self, pass_: Pass, test: str, round_: Round) -> None:
        """One test in a session of its own."""
        outcome = self._session(pass_, only=[test], workers=0, round_=round_, files=[file_of(test)])
        for death in outcome.suspects:  # there is nobody else to blame
            self._states[pass_.name].blame(death, round_, f"{self._number - 1:04}")

    def _file_alone(self, pass_: Pass, file: str) -> None:
        """A file that could not be collected, with all its tests, in a session of its own."""
        state = self._states[pass_.name]
        outcome = self._session(pass_, only=None, workers=0, round_=Round.RETRY, files=[file], mend=file)
        if outcome.items is not None and not outcome.broken and file not in outcome.unusable:
            state.mended(file, f"{self._number - 1:04}")
            for test in [test for test in outcome.items if test in (state.chosen or ()) and not state.tests.get(test)]:
                self._alone(pass_, test, Round.RETRY)

    def _session(
        self,
        pass_: Pass,
        *,
        only: Sequence[str] | None,
        workers: int,
        round_: Round = Round.FIRST,
        files: Sequence[str] | None = None,
        mend: str = "",
    ) -> SessionOutcome:
        """One session; its folder is there before it, its outcome after it."""
        state, folder, suite = self._states[pass_.name], self.folder / f"{self._number:04}", self.work.suite
        self._number += 1
        folder.mkdir()
        shutil.copytree(passes.PLUGIN_FOLDER, folder / passes.PLUGIN, ignore=shutil.ignore_patterns("__pycache__"))
        broken = [str(suite.root / file) for file in state.broken if file != mend]
        plan = session_plan(
            pass_,
            only=only,
            broken=broken,
            skips=self.work.skips,
            solo=not workers,
            most_left=self.work.limits.left,
            gate=os.getpid(),
        )
        write_plan(folder, {**plan, "round": round_.value})
        count = min(workers, len(pass_.leases), len(only) if only else workers)
        argv = session_argv(self.work.python, suite, pass_, workers=count, files=files or suite.files)
        before, session = state.done(), Session(self.runner, folder, self._id, self.work.limits)
        session.on_poll = lambda journal: self.on_progress(
            before + len(journal.ended), before + len(only if only is not None else journal.items() or ())
        )
        outcome = session.go(argv, session_env(self.work.env, folder), suite.root)
        part = folder / f"{_OUTCOME}.part"
        part.write_text(
            json.dumps(
                {
                    "problem": outcome.problem,
                    "hung": sorted(session.hung),
                    "lost": sorted(session.lost),
                    "beheaded": session.beheaded,
                }
            )
        )
        part.replace(folder / _OUTCOME)
        self._take(state, outcome, round_, folder.name)
        return outcome

    def _take(self, state: PassState, outcome: SessionOutcome, round_: Round, session: str) -> None:
        state.take(outcome, round_, session)
        self._notes |= dict.fromkeys(outcome.left)
        if outcome.late:
            self._notes[LATE] = None

    def _report(self) -> RunReport:
        attempts = {test: tuple(tries) for state in self._states.values() for test, tries in state.all()}
        collected = {test for state in self._states.values() for test in state.collected}
        return RunReport(
            results=tuple(judge(test, attempts[test]) for test in sorted(attempts)),
            collected=tuple(sorted(collected)),
            problems=tuple(self._problems),
            notes=tuple(self._notes),
            sessions=self._number,
            attempts=attempts,
        )
