"""Progress without output, and a runner that starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from core.process import ProcessResult
from core.report import NoProgress

Silent = NoProgress


class Steps(NoProgress):
    """Progress that records its steps and tasks."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    @contextmanager
    def task(self, label: str, *, transient: bool = False) -> Iterator[Self]:
        if not transient:
            self.steps.append(label)
        yield self


class NoProcesses:
    """A runner for gates that start nothing."""

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        raise AssertionError(f"no gate tested here starts a process, but: {argv}")
