"""Reports for users: steps, progress, warnings and tables; live on a terminal, plain lines and groups in CI."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.units import human

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.table import Table

    from core.model import Finding

_PLAIN_INTERVAL = 10.0
"""Seconds between two lines about the same long step without a terminal."""

_PLAIN_WIDTH = 160
"""Width in characters of a table without a terminal."""


class Reporter:
    """Implementation of `core.model.Progress` on standard error, which keeps the output of `--json` clean.

    Args:
        terminal: whether to draw live progress instead of plain lines.
        groups: whether to fold each group with the `::group::` workflow command.
        verbose: whether to print each command and its output.
    """

    def __init__(self, *, terminal: bool, groups: bool = False, verbose: bool = False) -> None:
        self.terminal = terminal
        self.groups = groups
        self.verbose = verbose
        self._live: RichProgress | None = None
        self._task: TaskID | None = None
        self._step = ""
        self._last = 0.0

    def console(self) -> Console:
        """Return a rich console on standard error."""
        from rich.console import Console  # Imported late: importing rich costs 0.1 s.

        return Console(stderr=True, highlight=False, width=None if self.terminal else _PLAIN_WIDTH)

    def line(self, text: str) -> None:
        """Print one line immediately."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def detail(self, text: str) -> None:
        """Print one line only with `-v`."""
        if self.verbose:
            self.line(f"    {text}")

    def warning(self, text: str) -> None:
        """Print a warning about a problem that does not stop the work."""
        self.line(f"warning: {text}")

    def finding(self, finding: Finding, where: str = "") -> None:
        """Print one finding with its remedy."""
        place = " ".join(part for part in (where, finding.member) if part)
        self.line(f"{finding.severity}: {finding.code}: {place}: {finding.message} {finding.remedy}".rstrip())

    def step(self, text: str) -> None:
        """Start a new step."""
        if self._live is not None:
            self._end_step()
            self._task = self._live.add_task(text, total=None, amount="")
        else:
            self.line(f"  {text}")
        self._step, self._last = text, time.monotonic()

    def _end_step(self) -> None:
        """Replace the live line of the current step with a permanent line."""
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
            self.line(f"  {self._step} ({time.monotonic() - self._last:.1f} s)")

    def advance(self, done: int, total: int) -> None:
        """Report the finished bytes of the current step, and their total."""
        text = f"{human(done)} of {human(total)}"
        self._amount(done, total, text if total else "", text)

    def count(self, done: int, total: int, what: str) -> None:
        """Report the number of finished actions, the total, which may grow, and the name of a running action."""
        text = f"{done:,} of {total:,} actions"
        self._amount(done, total, text, f"{text}{'; ' + what if what else ''}")

    def count_tests(self, done: int, total: int) -> None:
        """Report the number of finished tests of the current step, and the total."""
        text = f"{done:,} of {total:,} tests"
        self._amount(done, total, text, text)

    def _amount(self, done: int, total: int, live: str, plain: str) -> None:
        """Show the progress of the current step: live on a terminal, otherwise as an occasional line."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=done, total=total or None, amount=live)
        elif time.monotonic() - self._last > _PLAIN_INTERVAL:
            self._last = time.monotonic()
            self.line(f"  {self._step}: {plain}")

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Group the output of one part of the work under a title: timed, collapsible in CI, live on a terminal."""
        started = time.monotonic()
        self.line(f"::group::{title}" if self.groups else title)
        try:
            with self._progress():
                yield
        finally:
            self.line(f"  {time.monotonic() - started:.1f} s")
            if self.groups:
                self.line("::endgroup::")

    @contextmanager
    def _progress(self) -> Iterator[None]:
        if not self.terminal or self._live is not None:
            yield
            return
        # Imported late: importing rich costs 0.1 s.
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console(), transient=True) as live:
            self._live = live
            try:
                yield
                self._end_step()
            finally:
                self._live, self._task = None, None

    @contextmanager
    def live_table(self, table: Callable[[], tuple[Sequence[str], Sequence[Sequence[str]]]]) -> Iterator[None]:
        """Show a table that is refreshed several times a second on a terminal; do nothing elsewhere."""
        if not self.terminal:
            yield
            return
        from rich.live import Live  # Imported late: importing rich costs 0.1 s.

        outer = self._live
        if outer is not None:
            # Only one live display can own the screen.
            self._end_step()
            outer.stop()
        try:
            with Live(
                console=outer.console if outer else self.console(),
                get_renderable=lambda: _table(*table(), ()),
                refresh_per_second=4,
                transient=True,
            ):
                yield
        finally:
            if outer is not None:
                outer.start()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = ()) -> None:
        """Print a table; `numeric` lists the indices of right-aligned columns."""
        self.console().print(_table(columns, rows, numeric))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = ()) -> None:
    """Print the resulting table of a command to standard output."""
    from rich.console import Console  # Imported late: importing rich costs 0.1 s.

    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    Console(highlight=False, width=width).print(_table(columns, rows, numeric))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int]) -> Table:
    # Imported late: importing rich costs 0.1 s.
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in numeric else "left", overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(Text, row))  # plain text: brackets are no markup
    return table
