"""Progress without output, and a runner that starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from core.process import ProcessResult


class Silent:
    """Progress without output."""

    def step(self, text: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...


class Steps(Silent):
    """Progress that records its steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)


class NoProcesses:
    """A runner for gates that start nothing."""

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        raise AssertionError(f"no gate tested here starts a process, but: {argv}")
