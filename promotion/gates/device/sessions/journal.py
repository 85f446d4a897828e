"""Journals of a session's processes; they may be cut off anywhere."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CRASH_CHARACTERS = 8_000
_MANY_TEXTS, _SHORT_CHARACTERS = 500, 1_000
"""Number of failures after which messages are shortened, since they probably repeat themselves, and their length."""
_CRASH_BYTES = 1 << 20
_DIED_HERE = "Current thread"
"""Start of the crashed thread's part in faulthandler's output (CPython, Python/traceback.c)."""
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
CONTROLLER, SOLO = "controller", "solo"


@dataclass(kw_only=True, slots=True)
class Worker:
    """A process that runs tests.

    Attributes:
        name: such as gw0.
        pid: 0 until the process reported it.
        running: node id of the current test; empty if there is none.
        collecting: the file being imported; empty if there is none.
        since: monotonic time at which its last event was read.
        finished: it exited normally.
        late: jax was imported before the lease was taken.
        internal: internal error of pytest that ended it; empty if there was none.
        retired: it exited after a test exhausted its device.
    """

    name: str
    pid: int = 0
    device: str = ""
    running: str = ""
    collecting: str = ""
    since: float = field(default_factory=time.monotonic)
    started_at: float = 0.0
    last_at: float = 0.0
    finished: bool = False
    late: bool = False
    internal: str = ""
    retired: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedTest:
    """A finished test; the fields are those of the journal.

    Attributes:
        left: processes that it left behind.
    """

    id: str
    ending: str
    seconds: float
    text: str
    entry: str
    worker: str
    device: str
    left: tuple[int, ...]


class SessionJournal:
    """Incremental reader of one session's journals.

    Args:
        folder: of the session; see the plugin.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: dict[str, Worker] = {}
        self.ended: list[FinishedTest] = []
        self.files: dict[str, str] = {}
        """Files that were imported -> collection error; empty if there was none."""
        self.skipped_files: dict[str, str] = {}
        self.status: int | None = None
        """Exit status of a session that exited normally."""
        self.garbage = ""
        self.changed = time.monotonic()
        self._offsets: dict[Path, int] = {}
        self._texts = 0

    def read(self) -> None:
        """Read the lines that were completed since the last call."""
        for path in sorted(self.folder.glob("*.jsonl")):
            with suppress(OSError), path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                lines, newline, _ = file.read().rpartition(b"\n")
                self._offsets[path] = self._offsets.get(path, 0) + len(lines) + len(newline)
                for line in lines.splitlines() if newline else ():
                    self.changed = time.monotonic()
                    try:
                        self._take(path.stem, json.loads(line))
                    except (ValueError, KeyError, TypeError, AttributeError):
                        self.garbage = self.garbage or line[:200].decode(errors="backslashreplace")

    def items(self) -> tuple[str, ...] | None:
        """Return all collected tests, before deselection; None if no process finished collection."""
        try:
            items = json.loads((self.folder / "items.json").read_bytes())
        except (OSError, ValueError):
            return None
        return tuple(dict.fromkeys(map(str, items)))

    def unfinished(self) -> Iterator[Worker]:
        """Return the workers that have not exited normally."""
        return (worker for worker in self.workers.values() if not worker.finished)

    def crash(self, worker: str) -> tuple[str, str]:
        """Return the reason of a worker's death, such as Segmentation fault, and its traceback."""
        if worker in self.workers and self.workers[worker].internal:
            return "INTERNALERROR of pytest", self.workers[worker].internal[-CRASH_CHARACTERS:]
        try:
            with (self.folder / f"{worker}.crash").open("rb") as file:
                text = file.read(_CRASH_BYTES).decode(errors="backslashreplace")
        except OSError:
            return "", ""
        reasons = _FATAL.findall(text)
        # The crashed thread's part shows the cause, newest frames first.
        return (reasons[-1] if reasons else ""), text[max(0, text.rfind(_DIED_HERE)) :][:CRASH_CHARACTERS]

    def _take(self, name: str, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if name == CONTROLLER:
            if kind == "finish":
                self.status = int(event["status"])
            return
        worker = self.workers.setdefault(name, Worker(name=name))
        worker.since, worker.last_at = time.monotonic(), float(event["at"])
        match kind:
            case "worker":
                worker.pid, worker.device, worker.late = int(event["pid"]), str(event["device"]), bool(event["late"])
            case "collect":
                worker.collecting = str(event["file"])
            case "collected":
                worker.collecting = ""
                self.files[str(event["file"])] = str(event["error"])
                if event["skipped"]:
                    self.skipped_files[str(event["file"])] = str(event["skipped"])
            case "start":
                worker.running, worker.started_at = str(event["id"]), float(event["at"])
            case "end":
                worker.running = ""
                ended = _ended(event, worker)
                self._texts += bool(ended.text)
                if self._texts > _MANY_TEXTS:
                    ended = replace(ended, text=ended.text[-_SHORT_CHARACTERS:])
                self.ended.append(ended)
            case "leaked":
                self._leaked(str(event["id"]), str(event["text"]))
            case "retired":
                worker.retired = True
            case "internal":
                worker.internal = str(event["text"])
            case "finish":
                worker.finished = True
                if name == SOLO:
                    self.status = int(event["status"])
            case _:
                pass

    def _leaked(self, test: str, text: str) -> None:
        """Fail a finished test whose process still holds a device."""
        self.ended = [
            replace(ended, ending="failed", text=f"{text}\n{ended.text}".rstrip()) if ended.id == test else ended
            for ended in self.ended
        ]


def _ended(event: Mapping[str, Any], worker: Worker) -> FinishedTest:
    return FinishedTest(
        id=str(event["id"]),
        ending=str(event["ending"]),
        seconds=float(event["seconds"]),
        text=str(event.get("text", "")),
        entry=str(event.get("entry", "")),
        worker=worker.name,
        device=worker.device,
        left=tuple(map(int, event.get("left", ()))),
    )
