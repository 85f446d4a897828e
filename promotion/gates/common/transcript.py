"""What the processes of a gate printed, for whoever asks later why it said what it said."""

from __future__ import annotations

import threading
from collections import deque

from core.process import without_credentials

MOST = 1 << 20
"""So many characters are kept, the last ones."""


class Transcript:
    """Takes lines from several threads.

    Args:
        most: so many characters are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._size = most, 0
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """One more line."""
        with self._lock:
            self._lines.append(line)
            self._size += len(line) + 1
            while self._size > self._most:
                self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        """All lines, without credentials; empty when there was none."""
        with self._lock:
            return without_credentials("".join(f"{line}\n" for line in self._lines))
