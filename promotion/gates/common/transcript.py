"""Output of the processes of a gate, which is stored beside its evidence."""

from __future__ import annotations

import threading
from collections import deque

from core.process import without_credentials

_MOST = 1 << 20
"""Number of characters kept from the end of a gate's output."""


class Transcript:
    """Output of a gate's processes, collected from several threads."""

    def __init__(self) -> None:
        self._size = 0
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """Append a line."""
        with self._lock:
            self._lines.append(line)
            self._size += len(line) + 1
            while self._size > _MOST:
                self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        """Return all lines, without credentials."""
        with self._lock:
            return without_credentials("".join(f"{line}\n" for line in self._lines))
