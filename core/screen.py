"""The place of all messages of a command.

A live display on a terminal, the foldable log of GitHub Actions, or plain lines.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from core.model import Finding, Severity
from core.terminal import fold, printable, width_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.progress import Progress, TaskID

_MOST_PLACES = 3
"""Number of files that a warning names if several have the same problem."""
_WIDE = 60
"""Columns from which a line of the display has room for the remaining time."""
_REDRAW = 0.2
"""Seconds between two drawings of the display."""
_WORKFLOW_COMMAND = re.compile(r"^(\s*):(?=:)|##(?=\[)", re.MULTILINE)


class Screen:
    """Standard error, shared by all threads: each message is written whole.

    Args:
        terminal: whether to draw a live display instead of plain lines.
        github: whether to fold the lines of each group in the log of GitHub Actions.
        quiet: whether to print only warnings and errors.
    """

    def __init__(
        self, *, terminal: bool, github: bool = False, quiet: bool = False
    ) -> None:
        self.terminal = terminal and not quiet
        self.github = github
        self.quiet = quiet
        self.lock = threading.RLock()
        self.collects = False
        self._live: Live | None = None
        self._bars: Progress | None = None
        self._ended = threading.Event()
        self._streams: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)
        self._titles: list[str] = []
        self._unopened = ""
        self._commands_plan: list[str] = []
        self._groups_plan: list[str] = []
        self._total = 0
        self._notices: set[str] = set()
        self._warnings: dict[tuple[str, str], list[str]] = {}

    @property
    def is_live(self) -> bool:
        """True while the display is on the terminal."""
        return self._live is not None

    def line(self, text: str, *, whole: bool = False) -> None:
        """Print one line, unless the screen is quiet."""
        if not self.quiet:
            self.write(text, whole=whole)

    def write(self, text: str, *, whole: bool = False) -> None:
        """Print lines, above the display if there is one.

        On a terminal, long lines are broken between words.

        Args:
            whole: whether lines stay whole, such as commands that users copy.
        """
        with self.lock:
            self._open()
            if not whole:
                text = fold(text, width_of(sys.stderr))
            if self._live is not None:
                self._live.console.print(
                    text, markup=False, highlight=False, soft_wrap=True
                )
                return
            if self.github:
                # Output of a program must not end the group, or run other commands.
                text = _WORKFLOW_COMMAND.sub(_harmless, text)
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def notice(self, text: str) -> None:
        """Print a warning immediately; each text once."""
        with self.lock:
            if text not in self._notices:
                self._notices.add(text)
                self.write(f"warning: {text}")

    def warning(self, text: str) -> None:
        """Print a warning, each text once; at the end of the command if warnings are collected."""
        with self.lock:
            if self.collects:
                self._warnings.setdefault((text, ""), [])
            else:
                self.notice(text)

    def finding(self, finding: Finding, where: str) -> None:
        """Print a finding.

        If warnings are collected, a warning or note at the end, once for all its
        places.
        """
        place = " ".join(part for part in (where, finding.member) if part)
        start = f"{finding.severity}: {finding.code}: "
        end = f": {finding.message} {finding.remedy}".rstrip()
        with self.lock:
            if self.collects and finding.severity is not Severity.ERROR:
                places = self._warnings.setdefault((start, end), [])
                if place not in places:
                    places.append(place)
                return
        self.write(f"{start}{place}{end}")

    def close(self) -> None:
        """Print the collected warnings; later ones are printed immediately."""
        with self.lock:
            warnings = self._warnings
            self._warnings = {}
            self.collects = False
            for (start, end), places in warnings.items():
                if not places:
                    self.notice(start)
                    continue
                named = ", ".join(places[:_MOST_PLACES])
                if len(places) > _MOST_PLACES:
                    named = f"{named} and {len(places) - _MOST_PLACES} more"
                self.write(f"{start}{named}{end}")

    def plan(self, names: Sequence[str]) -> None:
        """Set the steps to come.

        Of the current group, or of the whole command outside of groups.
        """
        with self.lock:
            if self._titles:
                self._groups_plan = [*names]
            else:
                self._commands_plan = [*names]
                self._total = len(names)

    def begin(self, name: str, *, parallel: bool = False) -> None:
        """Remove a step of the current group that begins from the steps to come.

        Before a step that is not parallel, all others are over.
        """
        with self.lock:
            self._open()
            self._groups_plan = _after(self._groups_plan, name, parallel=parallel)

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Fold or display the output of one part of the work.

        A group inside another one belongs to the outer one.
        """
        started = time.monotonic()
        with self.lock:
            self._titles.append(title)
            if len(self._titles) > 1:
                self.line(title)
            else:
                self._unopened = title
        try:
            yield
            self._open()
        finally:
            with self.lock:
                self._titles.remove(title)
                if not self._titles:
                    self._close_display()
                if not self._unopened:
                    self.line(f"  {time.monotonic() - started:.1f} s")
                if not self._titles:
                    self._groups_plan = []
                    if not self._unopened:
                        self._marker("::endgroup::")
                    self._unopened = ""

    def _open(self) -> None:
        """Open the display of a group with its first output, so that bad input opens none."""
        title = self._unopened
        if not title:
            return
        self._unopened = ""
        self._commands_plan = _after(self._commands_plan, title)
        if self.github:
            self._marker(f"::group::{' '.join(title.split()).replace('%', '%25')}")
        else:
            self.line(title)
        if self.terminal:
            self._open_display()

    def _marker(self, text: str) -> None:
        if self.github and not self.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _open_display(self) -> None:
        # Start-up time: importing rich costs 0.1 s.
        from rich.console import Console
        from rich.live import Live
        from rich.progress import (
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        console = Console(file=sys.stderr, highlight=False)
        whole = Column(no_wrap=True)
        label = Column(no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
        columns = [
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False, table_column=label),
            TextColumn("{task.fields[amount]}", table_column=whole),
            TimeElapsedColumn(table_column=whole),
        ]
        if console.width >= _WIDE:
            columns.insert(3, TimeRemainingColumn(compact=True, table_column=whole))
        self._bars = Progress(*columns, console=console, expand=True)
        self._live = Live(
            console=console,
            # Each output holds the lock of the screen: with the thread of rich and the
            # streams that it replaces, concurrent outputs leave rests of the display.
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
            get_renderable=self._frame,
        )
        self._streams = (sys.stdout, sys.stderr)
        self._live.start(refresh=True)
        sys.stderr = _Above(sys.stderr, self.write)
        if sys.stdout.isatty():
            sys.stdout = _Above(sys.stdout, self.write)
        self._ended = threading.Event()
        threading.Thread(
            target=self._redraw, args=(self._live, self._ended), daemon=True
        ).start()

    def _redraw(self, live: Live, ended: threading.Event) -> None:
        while not ended.wait(_REDRAW):
            with self.lock:
                if not ended.is_set():
                    live.refresh()

    def _close_display(self) -> None:
        if self._live is None:
            return
        self._ended.set()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _Above):
                stream.close_line()
        sys.stdout, sys.stderr = self._streams
        self._live.stop()
        self._live = None
        self._bars = None

    def _frame(self) -> Group:
        """Return the title, the running tasks and the steps to come."""
        # Start-up time: importing rich costs 0.1 s.
        from rich.console import Group
        from rich.text import Text

        coming = self._commands_plan
        parts = []
        if total := self._total:
            parts.append(f"step {total - len(coming)} of {total}")
        if count := len(self._warnings):
            parts.append(f"{count} warning{'s' if count > 1 else ''}")
        title = ": ".join(filter(None, [", ".join(parts), *self._titles[-1:]]))

        def line(text: str, style: str = "") -> Text:
            return Text(printable(text), style, no_wrap=True, overflow="ellipsis")

        rows: list[Text | Progress] = [line(title, "bold cyan")]
        if self._bars is not None:
            rows.append(self._bars)
        if names := [*self._groups_plan, *coming]:
            rows.append(line(f"to come: {', '.join(names)}"))
        return Group(*rows)

    def show(self, text: str) -> TaskID | None:
        """Add a line to the display; None without one."""
        if self._bars is None:
            return None
        return self._bars.add_task(printable(text), total=None, amount="")

    def rename(self, shown: TaskID | None, text: str) -> None:
        """Start a line of the display again with another text and unknown work."""
        if self._bars is not None and shown in self._bars.task_ids:
            self._bars.reset(shown, description=printable(text), amount="")

    def advance(
        self, shown: TaskID | None, done: int, total: int, amount: str, text: str
    ) -> None:
        """Set the finished and total work of a line of the display, and its text."""
        if self._bars is None or shown not in self._bars.task_ids:
            return
        (task,) = (task for task in self._bars.tasks if task.id == shown)
        if task.total != total or done < task.completed:
            # The next file of a step: earlier bytes do not count for the rate.
            self._bars.reset(shown, total=total, completed=done)
        self._bars.update(
            shown, completed=done, description=printable(text), amount=amount
        )

    def hide(self, shown: TaskID | None) -> None:
        """Remove a line from the display."""
        if self._bars is not None and shown in self._bars.task_ids:
            self._bars.remove_task(shown)


class _Above:
    """A text stream whose whole lines are printed above the display."""

    def __init__(self, stream: TextIO, write: Callable[[str], None]) -> None:
        self._stream = stream
        self._write = write
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            self._write("\n".join(lines))
        return len(text)

    def flush(self) -> None:
        """Do nothing: an unfinished line waits for its end."""

    def close_line(self) -> None:
        """Print an unfinished line."""
        if self._rest:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - every other attribute of the stream
        return getattr(self._stream, name)


def _harmless(match: re.Match[str]) -> str:
    return "# #" if match[1] is None else f"{match[1]}: "


def _after(plan: list[str], name: str, *, parallel: bool = False) -> list[str]:
    """Return the steps that remain after one begins."""
    for number, planned in enumerate(plan):
        if name.startswith(planned):
            earlier = plan[:number] if parallel else []
            return [*earlier, *plan[number + 1 :]]
    return plan
