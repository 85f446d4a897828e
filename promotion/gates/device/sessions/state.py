"""Progress of a pass, accumulated from its sessions. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from promotion.gates.device.results import Attempt, Ending, Round
from promotion.gates.device.sessions.session import SessionOutcome, WorkerDeath

RERUNS = 1
"""Number of reruns with the other tests after a crash; a test that merely failed is never rerun."""

Choose = Callable[[Sequence[str]], Sequence[str]]
"""Selects the tests to run from those that were collected."""


@dataclass
class PassState:
    """Progress of one pass.

    Attributes:
        choose: selects from collected tests, including those of a file that could be collected later; None selects all.
        chosen: tests to run; None until tests were collected.
        collected: all tests.
        offered: tests that were passed to `choose`.
        tests: attempts at each test, in order.
        files: attempts at each file that could not be collected or skips itself.
        broken: files whose import ended their process.
        suspects: tests that ran when a whole session was lost; each must run alone.
        died: number of lost tests, files and workers.
        interrupted: test -> how often the gate was killed while the test ran alone.
    """

    choose: Choose | None = None
    chosen: dict[str, None] | None = None
    collected: dict[str, None] = field(default_factory=dict)
    offered: dict[str, None] = field(default_factory=dict)
    tests: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    files: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    broken: dict[str, None] = field(default_factory=dict)
    suspects: dict[str, None] = field(default_factory=dict)
    died: int = 0
    interrupted: Counter[str] = field(default_factory=Counter)

    def progress(self) -> tuple[int, ...]:
        """Return a value that changes whenever the pass advances."""
        attempts = sum(len(attempts) for attempts in self.tests.values())
        return attempts, len(self.broken), len(self.suspects), len(self.chosen or ()), int(self.chosen is None)

    def attempted(self) -> int:
        """Return the number of tests with an attempt."""
        return sum(bool(attempts) for attempts in self.tests.values())

    def remaining(self) -> list[str]:
        """Return the chosen tests that still have to run with the others."""
        return [test for test in self.chosen or () if test not in self.suspects and is_due(self.tests.get(test, ()))]

    def untried_suspects(self) -> list[str]:
        """Return the suspects that have not run alone yet."""
        return [test for test in self.suspects if not self.tests.get(test)]

    def attempts(self) -> Iterator[tuple[str, list[Attempt]]]:
        """Yield each file with attempts, and each chosen test, with its attempts."""
        yield from self.files.items()
        yield from ((test, self.tests.get(test, [])) for test in self.chosen or ())

    def add(self, outcome: SessionOutcome, round_: Round, session: str) -> None:
        """Add the outcome of a session.

        Args:
            outcome: of the session.
            round_: of the session; a second attempt in the first round is a rerun.
            session: name of the session.
        """
        if outcome.items is not None:
            self._add_collected(outcome.items, retried=round_ is Round.RETRY)
        for file, why in (*outcome.unusable.items(), *outcome.skipped_files.items()):
            ending = Ending.FAILED if file in outcome.unusable else Ending.SKIPPED
            self._add_file(file, _file_attempt(round_, ending, why, session))
        for death in outcome.broken:
            self.broken.setdefault(death.id)
            self.died += 1
            self._add_file(death.id, _crash_attempt(death, round_, session))
        for test in outcome.ended:
            attempts = self.tests[test.id]
            attempts.append(
                Attempt(
                    round=_test_round(round_, attempts),
                    ending=Ending(test.ending),
                    seconds=test.seconds,
                    message=test.text,
                    worker=f"{session}/{test.worker}",
                    device=test.device,
                    entry=test.entry,
                )
            )
        self.died += outcome.retired
        for death in outcome.died:
            self.blame(death, round_, session)
        self.suspects |= {death.id: None for death in outcome.suspects if not self.tests.get(death.id)}

    def blame(self, death: WorkerDeath, round_: Round, session: str) -> None:
        """Record that a test ended its process."""
        self.died += 1
        attempts = self.tests[death.id]
        attempts.append(_crash_attempt(death, _test_round(round_, attempts), session))

    def recovered(self, file: str, session: str) -> None:
        """Record that a file could be collected in a fresh process."""
        self.files[file].append(_file_attempt(Round.RETRY, Ending.PASSED, "", session))

    def _add_collected(self, items: Sequence[str], *, retried: bool) -> None:
        self.collected |= dict.fromkeys(items)
        new = [test for test in items if test not in self.offered]
        if self.chosen is None or (retried and new):  # a file that could be collected only in a retry
            self.offered |= dict.fromkeys(new)
            chosen = new if self.choose is None else self.choose(new)
            self.chosen = {**(self.chosen or {}), **dict.fromkeys(chosen)}

    def _add_file(self, file: str, attempt: Attempt) -> None:
        """Add an attempt at a file; sessions of the same round repeat themselves, so only the first one counts."""
        if not self.files[file] or attempt.round is Round.RETRY:
            self.files[file].append(attempt)


def is_due(attempts: Sequence[Attempt]) -> bool:
    """Return whether a test has to run, or run again, with the others."""
    earlier = [item for item in attempts if item.round is not Round.RETRY]
    return all(item.ending is Ending.CRASHED for item in earlier) and len(earlier) <= RERUNS


def _test_round(round_: Round, attempts: Sequence[Attempt]) -> Round:
    return Round.RERUN if round_ is Round.FIRST and attempts else round_


def _file_attempt(round_: Round, ending: Ending, message: str, session: str) -> Attempt:
    entry = "suite" if ending is Ending.SKIPPED else ""
    return Attempt(round=round_, ending=ending, seconds=0.0, message=message, worker=session, entry=entry)


def _crash_attempt(death: WorkerDeath, round_: Round, session: str) -> Attempt:
    return Attempt(
        round=round_,
        ending=Ending(death.cause.value),
        seconds=death.seconds,
        message=death.message,
        worker=f"{session}/{death.worker}",
        device=death.device,
    )
