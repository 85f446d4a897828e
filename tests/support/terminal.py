"""A program on a real pseudo-terminal, whose output a terminal emulator shows."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parents[2]
_CI = (
    "CI",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
    "TTY_COMPATIBLE",
)
_SECONDS = 300.0
"""Time after which a program is killed."""

_REDRAW = re.compile(rb"(?=\r\x1b\[2K)")
"""Place where rich erases what it drew; on a busy machine, one read has several drawings."""


@dataclass
class Shown:
    """What a terminal showed.

    Attributes:
        frames: contents of the screen during the run.
        lines: all lines after the run, with those that left the screen at the top.
        raw: bytes that the program wrote.
    """

    frames: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    raw: bytes = b""
    code: int = 0
    cursor: bool = True

    def seen(self, *texts: str) -> bool:
        """Return whether one frame shows all texts, each on another line."""
        for frame in self.frames:
            lines = set()
            shown = set()
            for text, (number, line) in product(texts, enumerate(frame)):
                if text in line:
                    lines.add(number)
                    shown.add(text)
            if len(lines) >= len(texts) and shown == set(texts):
                return True
        return False


def show(
    argv: Sequence[str],
    *,
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    during: Callable[
        [subprocess.Popen[bytes], list[str]], None
    ] = lambda _process, _frame: None,
) -> Shown:
    """Run a program on a pseudo-terminal with 24 lines.

    Args:
        during: called with the process and the content of the screen after each output.
    """
    screen = pyte.HistoryScreen(columns, 24, history=10_000, ratio=0.5)
    stream = pyte.ByteStream(screen)
    shown = Shown()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in _CI}
    environment = {
        **inherited,
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
        **(env or {}),
    }
    process = subprocess.Popen(
        argv,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )
    os.close(theirs)
    limit = threading.Timer(_SECONDS, process.kill)
    limit.start()
    try:
        while data := _read(ours):
            shown.raw += data
            for part in filter(None, _REDRAW.split(data)):
                stream.feed(part)
                shown.frames.append([line.rstrip() for line in screen.display])
                during(process, shown.frames[-1])
        shown.code = process.wait(30)
    finally:
        limit.cancel()
        process.kill()
        process.wait()
        os.close(ours)
    above = []
    for row in screen.history.top:
        above.append("".join(row[column].data for column in range(columns)))
    shown.lines = [line.rstrip() for line in [*above, *screen.display]]
    shown.cursor = not screen.cursor.hidden
    return shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError as error:  # Linux reports the end of the last program like this
        if error.errno != errno.EIO:
            raise
        return b""
