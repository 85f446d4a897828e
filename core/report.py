"""Reports for users: steps, parallel tasks, warnings and tables.

Live on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from core.model import Finding
from core.screen import Screen
from core.terminal import fold, table, width_of
from core.units import human

if TYPE_CHECKING:
    from rich.progress import TaskID

_PLAIN_INTERVAL = 10.0
"""Seconds between two lines about the same long step without a terminal."""


class TaskProgress:
    """Progress of one of several tasks that run in parallel, see `core.model.Progress`.

    Threads may share a screen.

    Args:
        label: name of the task on each of its lines; empty for the command itself.
        name: its name on the display, where the tasks around it are seen too.
        transient: whether the task is visible only on a terminal, while it runs.
    """

    def __init__(
        self,
        screen: Screen,
        label: str = "",
        name: str = "",
        *,
        transient: bool = False,
    ) -> None:
        self._screen = screen
        self._label = label
        self._name = name
        self._transient = transient
        self._shown: TaskID | None = screen.show(name) if name else None
        self._step = ""
        self._started = 0.0
        self._last = 0.0

    def _text(self, text: str) -> str:
        return f"{self._label}: {text}" if self._label else text

    def step(self, text: str) -> None:
        """Start a new step."""
        with self._screen.lock:
            self._end_step()
            self._step = text
            self._started = time.monotonic()
            self._last = self._started
            if self._label:
                self._screen.rename(self._shown, f"{self._name}: {text}")
            else:
                self._screen.begin(text)
                self._shown = self._screen.show(text)
            if not self._transient and not self._screen.is_live:
                self._screen.line(f"  {self._text(text)}")

    def _end_step(self) -> None:
        """Replace the current step on the display with a permanent line."""
        with self._screen.lock:
            if self._step and self._screen.is_live and not self._transient:
                seconds = time.monotonic() - self._started
                self._screen.line(f"  {self._text(self._step)} ({seconds:.1f} s)")
            self._step = ""
            if not self._label:
                self._screen.hide(self._shown)

    def advance(self, done: int, total: int) -> None:
        """Report the finished bytes of the current step, and their total."""
        self._amount(done, total, f"{human(done)} of {human(total)}")

    def count(
        self, done: int, total: int, what: str = "", *, unit: str = "actions"
    ) -> None:
        """Report the number of finished actions, the total, and a running action."""
        self._amount(done, total, f"{done:,} of {total:,} {unit}", what)

    def _amount(self, done: int, total: int, numbers: str, what: str = "") -> None:
        """Show the progress of the current step.

        Live on a display, otherwise as an occasional line.
        """
        with self._screen.lock:
            step = what or self._step if self._label else self._step
            shown = ": ".join(filter(None, (self._name, step)))
            self._screen.advance(self._shown, done, total, numbers, shown)
            due = time.monotonic() - self._last > _PLAIN_INTERVAL
            if due and not self._transient and not self._screen.is_live:
                self._last = time.monotonic()
                parts = [self._label, self._step, f"{numbers}; {what}".rstrip("; ")]
                self._screen.line(f"  {': '.join(filter(None, parts))}")

    @contextmanager
    def task(self, label: str, *, transient: bool = False) -> Iterator[TaskProgress]:
        """Show a task that runs in parallel to others until the end of the block."""
        screen = self._screen
        started = time.monotonic()
        hidden = transient or self._transient
        text = self._text(label)
        with screen.lock:
            if not self._label:
                screen.begin(label, parallel=True)
            if not hidden and not screen.is_live:
                screen.line(f"  {text}")
            child = TaskProgress(screen, text, label, transient=hidden)
        try:
            yield child
            with screen.lock:
                child._end_step()
                if not hidden:
                    seconds = time.monotonic() - started
                    screen.line(f"  {text}: finished in {seconds:.1f} s")
        finally:
            screen.hide(child._shown)

    def plan(self, names: Sequence[str]) -> None:
        """Announce the steps of the current group or the whole command, in order."""
        self._end_step()  # an earlier step of a group does not run beside these
        self._screen.plan(names)

    def warning(self, text: str) -> None:
        """Report a problem that does not stop the work; each text is printed once."""
        self._screen.warning(text)


class NoProgress:
    """Progress without output."""

    def step(self, text: str) -> None:
        """Ignore a step."""

    def advance(self, done: int, total: int) -> None:
        """Ignore progress."""

    def count(
        self, done: int, total: int, what: str = "", *, unit: str = "actions"
    ) -> None:
        """Ignore progress."""

    def plan(self, names: Sequence[str]) -> None:
        """Ignore a plan."""

    @contextmanager
    def task(self, label: str, *, transient: bool = False) -> Iterator[Self]:  # noqa: ARG002 - of the protocol
        """Return this progress."""
        yield self


class Reporter(TaskProgress):
    """Implementation of `core.model.Progress` on standard error.

    Args:
        terminal: whether to draw live progress instead of plain lines.
        github: whether to fold the lines of each group in the log of GitHub Actions.
        verbose: whether to print each command and its output.
        quiet: whether to print only warnings and findings.
    """

    def __init__(
        self,
        *,
        terminal: bool,
        github: bool = False,
        verbose: bool = False,
        quiet: bool = False,
    ) -> None:
        super().__init__(Screen(terminal=terminal, github=github, quiet=quiet))
        self.verbose = verbose

    def collect_warnings(self) -> None:
        """Print warnings and findings that are no errors, grouped, by `close`."""
        self._screen.collects = True

    def close(self) -> None:
        """Print the collected warnings."""
        self._screen.close()

    def line(self, text: str) -> None:
        """Print one line immediately, unless the reporter is quiet."""
        self._screen.line(text)

    def command(self, text: str) -> None:
        """Print a command or a line of a file in one line, unless the reporter is quiet."""
        self._screen.line(text, whole=True)

    def detail(self, text: str) -> None:
        """Print one line only with `-v`."""
        if self.verbose:
            self.line(f"    {text}")

    def notice(self, text: str) -> None:
        """Print a warning immediately, for example why the work waits.

        Each text is printed once.
        """
        self._screen.notice(text)

    def finding(self, finding: Finding, where: str = "") -> None:
        """Print one finding with its remedy."""
        self._screen.finding(finding, where)

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Group the output of one part of the work under a title.

        Timed, collapsible in CI, live on a terminal.
        """
        with self._screen.group(title):
            try:
                yield
                self._end_step()
            finally:
                self._step = ""

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[int] = (),
    ) -> None:
        """Print a table, unless the reporter is quiet.

        `numeric` lists the indices of right-aligned columns.
        """
        self.command(table(columns, rows, numeric, width_of(sys.stderr)))


def print_line(text: str, *, whole: bool = False) -> None:
    """Print lines of the result of a command to standard output.

    On a terminal, long lines are broken between words.

    Args:
        whole: whether lines stay whole, such as commands that users copy.
    """
    sys.stdout.write(f"{text if whole else fold(text, width_of(sys.stdout))}\n")
    sys.stdout.flush()


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Sequence[int] = (),
) -> None:
    """Print the resulting table of a command to standard output."""
    print_line(table(columns, rows, numeric, width_of(sys.stdout)), whole=True)
