"""A journal that outlives crashes, of a process that runs tests."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

LOST = 71
"""Exit code of a worker that can write no journal, or has to go, and of a test's forked child that came back."""

# What tests may replace, or mock, is taken before they can.
_dumps, _open, _write, _close, _now = json.dumps, os.open, os.write, os.close, time.time
getpid, leave = os.getpid, os._exit


class Journal:
    """Appends events to a file of the session."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.pid = name, getpid()
        self._path = str(folder / f"{name}.jsonl")
        self._reserve = _open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def note(self, event: str, **more: object) -> None:
        """One more line; a process that cannot write it ends, since nobody would know what it did."""
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
            # A test that leaked all its descriptors leaves us the one that was set aside.
            with contextlib.suppress(OSError):
                _close(self._reserve)
            return _open(self._path, flags, 0o644)
