"""Journal of a process that runs tests; it survives crashes."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

LOST = 71
"""Exit code of a worker without a journal or without a gate, and of a test's forked child that returned."""

# Copies of functions that tests may replace or mock.
_dumps, _open, _write, _close, _now = json.dumps, os.open, os.write, os.close, time.time
getpid, leave = os.getpid, os._exit


class EventWriter:
    """Writer of events to a file of the session."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.pid = name, getpid()
        self._path = str(folder / f"{name}.jsonl")
        self._reserve = _open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, event: str, **more: object) -> None:
        """Append an event; a process that cannot do so exits, since its results would be unknown."""
        line = (_dumps({"event": event, "at": round(_now(), 3), **more}) + "\n").encode()
        try:
            file = self._file()
            done = _write(file, line)
            _close(file)
        except OSError:
            leave(LOST)
        if done != len(line):
            leave(LOST)

    def _file(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            return _open(self._path, flags, 0o644)
        except OSError:
            # If a test leaked all descriptors, use the reserved one.
            with contextlib.suppress(OSError):
                _close(self._reserve)
            return _open(self._path, flags, 0o644)
