"""Progress of a pass, accumulated from its sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from promotion.gates.device.results import OUTSIDE, Attempt, Ending, Round
from promotion.gates.device.sessions.session import SessionOutcome

RERUNS = 1
"""Number of reruns together with other tests after a crash.

A test that merely failed is never rerun.
"""

_ENDED = (Ending.CRASHED, *OUTSIDE)
"""Endings after which a test runs again together with others."""


@dataclass
class PassState:
    """Progress of one pass.

    Attributes:
        chosen: tests to run; None until tests were collected.
        collected: all collected tests.
        tests: attempts at each test, in order.
        files: attempts at each file that could not be collected or skips itself.
        broken: files whose import ended their process.
        suspects: tests that were running when a whole session was lost; each must run
            alone.
        died: number of lost tests, files and workers.
    """

    chosen: dict[str, None] | None = None
    collected: dict[str, None] = field(default_factory=dict)
    tests: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    files: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    broken: dict[str, None] = field(default_factory=dict)
    suspects: dict[str, None] = field(default_factory=dict)
    died: int = 0

    def progress(self) -> tuple[int, ...]:
        """Return a value that changes whenever the pass advances."""
        attempts = sum(len(attempts) for attempts in self.tests.values())
        return (
            attempts,
            len(self.broken),
            len(self.suspects),
            len(self.chosen or ()),
            int(self.chosen is None),
        )

    def remaining(self) -> list[str]:
        """Return the chosen tests that still have to run in a session with other tests."""
        remaining = []
        for test in self.chosen or ():
            tried = self.tests.get(test, ())
            tries = [attempt for attempt in tried if attempt.round is not Round.RETRY]
            was_lost = all(attempt.ending in _ENDED for attempt in tries)
            if was_lost and len(tries) <= RERUNS and test not in self.suspects:
                remaining.append(test)
        return remaining

    def untried_suspects(self) -> list[str]:
        """Return the suspects that have not run alone yet."""
        return [test for test in self.suspects if not self.tests.get(test)]

    def is_starved(self, test: str) -> bool:
        """Return whether the last attempt at a test failed for want of memory."""
        tries = self.tests.get(test, [])[-1:]
        return any(attempt.ending is Ending.STARVED for attempt in tries)

    def attempts(self) -> Iterator[tuple[str, list[Attempt]]]:
        """Yield (id, attempts) for each file with attempts and for each chosen test."""
        yield from self.files.items()
        for test in self.chosen or ():
            yield test, self.tests.get(test, [])

    def add(self, outcome: SessionOutcome, round_: Round) -> None:
        """Add the outcome of a session; a second attempt in the first round is a rerun."""
        if outcome.items is not None:
            self.collected |= dict.fromkeys(outcome.items)
            # Some files can be collected only in a retry.
            if self.chosen is None or round_ is Round.RETRY:
                self.chosen = {**(self.chosen or {}), **dict.fromkeys(outcome.chosen)}
        for attempt in (*outcome.files, *outcome.broken):
            # Sessions of the same round report the same files again, so only the first
            # report counts.
            if not self.files[attempt.id] or round_ is Round.RETRY:
                self.files[attempt.id].append(replace(attempt, round=round_))
        self.broken |= {attempt.id: None for attempt in outcome.broken}
        self.died += len(outcome.broken) + outcome.retired
        for attempt in outcome.ended:
            self._add_test(attempt, round_)
        for attempt in outcome.died:
            self.blame(attempt, round_)
        for attempt in outcome.suspects:
            if not self.tests.get(attempt.id):
                self.suspects[attempt.id] = None

    def blame(self, attempt: Attempt, round_: Round) -> None:
        """Record that a test ended its process."""
        self.died += 1
        self._add_test(attempt, round_)

    def recovered(self, file: str) -> None:
        """Record that a file could be collected in a fresh process."""
        self.files[file].append(
            Attempt(id=file, round=Round.RETRY, ending=Ending.PASSED)
        )

    def _add_test(self, attempt: Attempt, round_: Round) -> None:
        attempts = self.tests[attempt.id]
        rerun = round_ is Round.FIRST and attempts
        attempts.append(replace(attempt, round=Round.RERUN if rerun else round_))
