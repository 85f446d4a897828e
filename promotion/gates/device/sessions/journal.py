"""Journals of a session's processes, which may be truncated anywhere."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from promotion.gates.device.results import Attempt, Ending
from wheelkit.findings import some

CRASH_CHARACTERS = 8_000
_MANY_TEXTS, _SHORT_CHARACTERS = 500, 1_000
"""Number of messages kept in full, and of characters kept of further ones."""
_CRASH_BYTES = 1 << 20
_DIED_HERE = "Current thread"
"""Start of the crashed thread's section in faulthandler's output (CPython, Python/traceback.c)."""
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
CONTROLLER = "controller"
SOLO = "solo"


@dataclass(kw_only=True, slots=True)
class Worker:
    """A process that runs tests.

    Attributes:
        name: name of the process, such as gw0.
        pid: process id; 0 until the process reports it.
        running: node id of the current test; empty if there is none.
        collecting: the file being imported; empty if there is none.
        since: monotonic time at which the last event of the process was read.
        finished: whether the process exited normally.
        internal: internal error of pytest that ended the process; empty without an
            error.
        retired: whether the process exited because a test exhausted its device.
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
    internal: str = ""
    retired: bool = False


class SessionJournal:
    """Incremental reader of one session's journals.

    Args:
        folder: folder of the session, in which the plugin writes the journals.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: dict[str, Worker] = {}
        self.ended: list[Attempt] = []
        self.files: dict[str, Attempt] = {}
        """Files that could not be collected, or skip themselves."""
        self.notes: list[str] = []
        """Descriptions of processes and changes that tests left behind."""
        self.exits: dict[str, int] = {}
        """Worker that ended -> its exit status, or the negative number of a signal."""
        self.status: int | None = None
        """Exit status of a session that exited normally."""
        self.changed = time.monotonic()
        self._offsets: dict[Path, int] = {}
        self._texts = 0

    def read(self) -> None:
        """Read the lines that were completed since the last call."""
        for path in sorted(self.folder.glob("*.jsonl")):
            start = self._offsets.get(path, 0)
            with suppress(OSError), path.open("rb") as file:
                file.seek(start)
                lines, newline, _ = file.read().rpartition(b"\n")
                self._offsets[path] = start + len(lines) + len(newline)
                for line in lines.splitlines():
                    self.changed = time.monotonic()
                    with suppress(
                        ValueError, KeyError, TypeError, AttributeError
                    ):  # a line written by a test
                        self._take(path.stem, json.loads(line))

    def items(self, kind: str) -> tuple[str, ...] | None:
        """Return the tests that were collected, or were chosen of them.

        None if no process finished collection.
        """
        try:
            items = json.loads((self.folder / "items.json").read_bytes())[kind]
        except (OSError, ValueError):
            return None
        return tuple(dict.fromkeys(map(str, items)))

    def unfinished(self) -> Iterator[Worker]:
        """Return the workers that reported their process but did not exit normally."""
        return (
            worker
            for worker in self.workers.values()
            if worker.pid and not worker.finished
        )

    def crash(self, worker: str) -> tuple[str, str]:
        """Return the reason of a worker's death, such as Segmentation fault, and its traceback."""
        if worker in self.workers and self.workers[worker].internal:
            return (
                "INTERNALERROR of pytest",
                self.workers[worker].internal[-CRASH_CHARACTERS:],
            )
        try:
            with (self.folder / f"{worker}.crash").open("rb") as file:
                text = file.read(_CRASH_BYTES).decode(errors="backslashreplace")
        except OSError:
            return "", ""
        reasons = _FATAL.findall(text)
        # The section of the crashed thread shows the cause, newest frames first.
        return (reasons[-1] if reasons else ""), text[max(0, text.rfind(_DIED_HERE)) :][
            :CRASH_CHARACTERS
        ]

    def _take(self, name: str, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if name == CONTROLLER:
            if kind == "finish":
                self.status = int(event["status"])
            elif kind == "down":
                self.exits[str(event["worker"])] = int(event["status"])
            return
        worker = self.workers.setdefault(name, Worker(name=name))
        worker.since = time.monotonic()
        worker.last_at = float(event["at"])
        match kind:
            case "worker":
                worker.pid = int(event["pid"])
                worker.device = str(event["device"])
            case "collect":
                worker.collecting = str(event["file"])
            case "collected":
                worker.collecting = ""
                self._add_file(event)
            case "start":
                worker.running = str(event["id"])
                worker.started_at = float(event["at"])
            case "end":
                worker.running = ""
                self._add_test(event, worker)
            case (
                "leaked"
            ):  # a finished test left a process behind that has a device open
                for place, ended in enumerate(self.ended):
                    if ended.id == event["id"]:
                        text = f"{event['text']}\n{ended.message}".rstrip()
                        self.ended[place] = replace(
                            ended, ending=Ending.FAILED, message=text
                        )
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

    def _add_file(self, event: Mapping[str, Any]) -> None:
        """Record an imported file; if several workers import a file, the last event counts."""
        file, error, skipped = (str(event[key]) for key in ("file", "error", "skipped"))
        self.files.pop(file, None)
        if error or skipped:
            ending = Ending.FAILED if error else Ending.SKIPPED
            self.files[file] = Attempt(
                id=file,
                ending=ending,
                message=error or skipped,
                exception=str(event.get("exception", "")),
                worker=self.folder.name,
            )

    def _add_test(self, event: Mapping[str, Any], worker: Worker) -> None:
        text = str(event.get("text", ""))
        left = len(event.get("left", ()))
        self._texts += bool(text)
        self.ended.append(
            Attempt(
                id=str(event["id"]),
                ending=Ending(event["ending"]),
                seconds=float(event["seconds"]),
                message=(
                    text[-_SHORT_CHARACTERS:] if self._texts > _MANY_TEXTS else text
                ),
                exception=str(event.get("exception", "")),
                worker=f"{self.folder.name}/{worker.name}",
                device=worker.device,
            )
        )
        if left:
            self.notes.append(
                f"{event['id']} left {left} process{'es' if left > 1 else ''} behind"
            )
        if lost := event.get("lost"):
            self.notes.append(f"{event['id']} left {lost} of its device's memory used")
        if changed := [str(name) for name in event.get("changed", ())]:
            text = some(changed, 8)
            self.notes.append(f"{event['id']} left its process changed: {text}")
