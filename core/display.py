"""The live part of a terminal.

One line for each running step and parallel task, below the printed lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from core.terminal import printable
from core.units import human

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

_PER_SECOND = 5
_SPINNER = "|/-\\"
_LEAST_LABEL = 12
"""Columns that numbers leave to the label of a line."""


@dataclass(eq=False, kw_only=True, slots=True)
class Line:
    """A running step or task.

    Attributes:
        step: current step of a task.
        amount: finished and total work as text; empty if unknown.
        is_bytes: whether the work is counted in bytes.
        first: finished work and time in seconds of the first report, from which the
            rate is computed.
        children: tasks that run as part of this one.
    """

    label: str = ""
    step: str = ""
    started: float = field(default_factory=time.monotonic)
    amount: str = ""
    done: int = 0
    total: int = 0
    is_bytes: bool = False
    first: tuple[int, float] | None = None
    children: list[Line] = field(default_factory=list)

    def begin(self, step: str) -> None:
        """Start another step, whose work is not known yet."""
        self.step = step
        self.amount = ""
        self.done = 0
        self.total = 0
        self.first = None
        if not self.label:
            self.started = time.monotonic()

    def set_amount(self, done: int, total: int, unit: str = "") -> str:
        """Set the finished work, in bytes without a unit, and return it as text."""
        numbers = (
            f"{done:,} of {total:,} {unit}"
            if unit
            else f"{human(done)} of {human(total)}"
        )
        if (
            self.first is None or done < self.done or (not unit and total != self.total)
        ):  # the next file of a step
            self.first = done, time.monotonic()
        self.done = done
        self.total = total
        self.is_bytes = not unit
        self.amount = numbers if total else ""
        return numbers

    def numbers(self, now: float) -> Iterator[str]:
        """Yield finished work, time left, rate and elapsed time, the most important first."""
        if (
            self.amount and self.first and self.done < self.total
        ):  # what follows has no amount
            yield self.amount
            rate = (
                (self.done - self.first[0]) / seconds
                if (seconds := now - self.first[1]) >= 1
                else 0.0
            )
            if rate > 0:
                yield f"{clock((self.total - self.done) / rate)} left"
            if rate > 0 and self.is_bytes:
                yield f"{human(rate)}/s"
        yield clock(now - self.started)

    def text(self, width: int, now: float, depth: int = 0) -> str:
        """Return the line within a number of columns.

        What runs on the left, as many numbers as fit on the right.
        """
        what = ": ".join(filter(None, (self.label, self.step)))
        left = (
            f"{'  ' * depth}{_SPINNER[int(now * _PER_SECOND) % len(_SPINNER)]} {what}"
        )
        room = width - min(len(left), max(_LEAST_LABEL, width // 2)) - 1
        right = ""
        for number in self.numbers(now):
            longer = f"{right}, {number}" if right else number
            right = longer if len(longer) <= room else right
        return f"{fit(left, width - len(right) - 1)} {right}"


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds, 1:05, or as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def fit(text: str, width: int) -> str:
    """Return a text in exactly this number of columns.

    A long one ends with two dots, control characters vanish.
    """
    # Start-up time: importing rich costs 0.1 s.
    from rich.cells import cell_len, set_cell_size

    text = printable(text)
    return (
        set_cell_size(text, width)
        if cell_len(text) <= width
        else set_cell_size(text, max(0, width - 2)) + ".."
    )


def rows(
    tree: Line, coming: Sequence[str], width: int, height: int, now: float
) -> list[str]:
    """Return the lines of the display: the title, running steps and tasks, and the steps to come.

    Args:
        tree: title of the work; its children run.
        width, height: columns and lines of the terminal. No row is longer, and three
            lines stay free.
    """
    lines = [tree.text(width, now)]
    lines += [
        line.text(width, now, depth) for line, depth in _running(tree.children, 1)
    ]
    most = max(1, height - 3 - bool(coming))
    if len(lines) > most:
        lines[most - 1 :] = [fit(f"  and {len(lines) - most + 1} more", width)]
    return [*lines, fit(f"  to come: {', '.join(coming)}", width)] if coming else lines


def _running(lines: Sequence[Line], depth: int) -> Iterator[tuple[Line, int]]:
    for line in lines:
        shown = bool(line.label or line.step)
        if shown:
            yield line, depth
        yield from _running(line.children, depth + shown)


class Display:
    """The display while it is on the screen; every output of the process goes through it.

    Args:
        lock: lock of all writers. A thread that redraws takes it too, so that no two
            outputs mix.
        content: function that returns the title with its running work, and the names of
            the steps to come.
    """

    def __init__(
        self, lock: threading.RLock, content: Callable[[], tuple[Line, Sequence[str]]]
    ) -> None:
        from rich.console import Console  # Start-up time: importing rich costs 0.1 s.

        self._lock = lock
        self._content = content
        self._saved = (sys.stdout, sys.stderr)
        self.console: Console = Console(file=sys.stderr, highlight=False)
        self._live = self._new_live()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._redraw, name="display", daemon=True
        )

    def _new_live(self) -> Live:
        """Return a display of rich, which has no own thread and leaves the streams alone.

        It can start once.
        """
        from rich.live import Live  # Start-up time: importing rich costs 0.1 s.

        return Live(
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
            get_renderable=self._frame,
        )

    def _frame(self) -> Text:
        from rich.text import Text  # Start-up time: importing rich costs 0.1 s.

        tree, coming = self._content()
        width, height = self.console.size
        title, *others = rows(tree, coming, width, height, time.monotonic())
        text = Text(title, style="bold cyan", no_wrap=True, overflow="crop")
        return text.append(
            "".join(f"\n{row}" for row in others), style="not bold default"
        )

    def start(self) -> None:
        """Draw the display; other output appears above it."""
        with self._lock:
            self._live.start(refresh=True)
            sys.stderr = _Above(self._saved[1], self.print)
            if self._saved[0].isatty():
                sys.stdout = _Above(self._saved[0], self._print_result)
        self._thread.start()

    def stop(self) -> None:
        """Remove the display and show the cursor."""
        self._ended.set()
        with self._lock:
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, _Above):
                    stream.close_line()
            sys.stdout, sys.stderr = self._saved
            self._live.stop()

    def _redraw(self) -> None:
        while not self._ended.wait(1 / _PER_SECOND):
            with self._lock:
                if not self._ended.is_set():
                    self._live.refresh()

    def print(self, text: object) -> None:
        """Print lines or a table above the display."""
        with self._lock:
            self.console.print(
                text, markup=False, highlight=False, soft_wrap=isinstance(text, str)
            )

    def _print_result(self, text: str) -> None:
        """Write lines to the standard output, which is the same terminal."""
        with self._lock:
            self._live.stop()
            try:
                self._saved[0].write(f"{text}\n")
                self._saved[0].flush()
            finally:
                self._live = self._new_live()
                self._live.start(refresh=True)


class _Above:
    """A text stream whose whole lines are printed above the display."""

    def __init__(self, stream: TextIO, show: Callable[[str], None]) -> None:
        self._stream = stream
        self._show = show
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            self._show("\n".join(lines))
        return len(text)

    def flush(self) -> None:
        """Do nothing: an unfinished line waits for its end."""

    def close_line(self) -> None:
        """Print an unfinished line."""
        rest = self._rest
        self._rest = ""
        if rest:
            self._show(rest)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - every other attribute of the stream
        return getattr(self._stream, name)
