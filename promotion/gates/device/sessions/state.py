"""How far a pass is: what its sessions told, put together. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from promotion.gates.device.results import Attempt, Ending, Round
from promotion.gates.device.sessions.session import SessionOutcome, WorkerDeath

RERUNS = 1
"""How often a test whose process died is run again with the others' conditions; what merely failed never is."""

Choose = Callable[[Sequence[str]], Sequence[str]]
"""Which of the tests that there are shall be run."""


@dataclass
class PassState:
    """One pass of a run.

    Attributes:
        choose: asked when it is known what there is, and of what a file that was mended adds; None takes all.
        chosen: tests to run; None until something was collected.
        offered: tests that were chosen from.
        tests: attempts at each test, in order.
        files: attempts at each file that could not be collected, or skips itself.
        broken: files that took their process with them.
        suspects: tests that ran when a whole session was lost; each has to run alone.
        died: how many tests, files and workers were lost.
        cut_off: tests that ran alone when this program was killed -> how often.
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
    cut_off: Counter[str] = field(default_factory=Counter)

    def progress(self) -> tuple[int, ...]:
        """Another value than before whenever the pass has come nearer to its end."""
        tries = sum(len(attempts) for attempts in self.tests.values())
        return tries, len(self.broken), len(self.suspects), len(self.chosen or ()), int(self.chosen is None)

    def done(self) -> int:
        """How many tests have been tried."""
        return sum(bool(attempts) for attempts in self.tests.values())

    def left(self) -> list[str]:
        """Chosen tests that still have to be run with the others."""
        return [test for test in self.chosen or () if test not in self.suspects and is_due(self.tests.get(test, ()))]

    def alone(self) -> list[str]:
        """Suspects that have not been tried since."""
        return [test for test in self.suspects if not self.tests.get(test)]

    def all(self) -> Iterator[tuple[str, list[Attempt]]]:
        """Each chosen test, and each file that is told of, with its attempts."""
        yield from self.files.items()
        yield from ((test, self.tests.get(test, [])) for test in self.chosen or ())

    def take(self, outcome: SessionOutcome, round_: Round, session: str) -> None:
        """Note what a session told.

        Args:
            round_: of the session; a second try in the first round is a rerun.
            session: its name.
        """
        if outcome.items is not None:
            self._collected(outcome.items, again=round_ is Round.RETRY)
        for file, why in (*outcome.unusable.items(), *outcome.skipped_files.items()):
            ending = Ending.FAILED if file in outcome.unusable else Ending.SKIPPED
            self._file(file, _attempt(round_, ending, why, session))
        for death in outcome.broken:
            self.broken.setdefault(death.id)
            self.died += 1
            self._file(death.id, _death(death, round_, session))
        for test in outcome.ended:
            attempts = self.tests[test.id]
            attempts.append(
                Attempt(
                    round=_round(round_, attempts),
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
        """A test took its process with it."""
        self.died += 1
        attempts = self.tests[death.id]
        attempts.append(_death(death, _round(round_, attempts), session))

    def mended(self, file: str, session: str) -> None:
        """A file that could not be collected was, in a fresh process."""
        self.files[file].append(_attempt(Round.RETRY, Ending.PASSED, "", session))

    def _collected(self, items: Sequence[str], *, again: bool) -> None:
        self.collected |= dict.fromkeys(items)
        new = [test for test in items if test not in self.offered]
        if self.chosen is None or (again and new):  # a file that could be collected only then
            self.offered |= dict.fromkeys(new)
            chosen = new if self.choose is None else self.choose(new)
            self.chosen = {**(self.chosen or {}), **dict.fromkeys(chosen)}

    def _file(self, file: str, attempt: Attempt) -> None:
        """Each session says the same of a file; only a fresh process says something new."""
        if not self.files[file] or attempt.round is Round.RETRY:
            self.files[file].append(attempt)


def is_due(attempts: Sequence[Attempt]) -> bool:
    """Whether a test has to be run with the others, or again."""
    tries = [item for item in attempts if item.round is not Round.RETRY]
    return all(item.ending is Ending.CRASHED for item in tries) and len(tries) <= RERUNS


def _round(round_: Round, attempts: Sequence[Attempt]) -> Round:
    return Round.RERUN if round_ is Round.FIRST and attempts else round_


def _attempt(round_: Round, ending: Ending, message: str, session: str) -> Attempt:
    entry = "suite" if ending is Ending.SKIPPED else ""
    return Attempt(round=round_, ending=ending, seconds=0.0, message=message, worker=session, entry=entry)


def _death(death: WorkerDeath, round_: Round, session: str) -> Attempt:
    return Attempt(
        round=round_,
        ending=Ending(death.how.value),
        seconds=death.seconds,
        message=death.message,
        worker=f"{session}/{death.worker}",
        device=death.device,
    )
