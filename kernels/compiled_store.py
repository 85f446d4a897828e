"""Store of compiled files by key, with the measured cost of each unit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from core.atomic import write_whole
from core.digests import sha256_of
from core.errors import FormatError
from core.frozen import frozen
from core.records import read_json
from core.store import ContentStore

_RECORD = "record.json"


@frozen
class Cost:
    """Cost of a unit.

    Attributes:
        seconds: CPU time of the unit's compiler with all child processes.
        memory_mb: peak memory of the largest of these processes.
    """

    seconds: float
    memory_mb: int


@frozen
class StoredFile:
    """A stored file, with the label and the cost of its unit."""

    path: Path
    sha256: str
    label: str
    cost: Cost


@frozen
class _Record:
    """Content of record.json; see `StoredFile`."""

    name: str
    sha256: str
    label: str
    cost: Cost


class KernelStore(ContentStore):
    """Files below one folder, at `<first two digits>/<key>/`; each entry is created atomically.

    Several processes and machines may use the store at the same time.
    """

    def folder(self, key: str) -> Path:
        """Return the folder of a key."""
        return self.root / key[:2] / key

    def record(self, key: str) -> Path:
        """Return the file that exists once the result of a key is complete."""
        return self.folder(key) / _RECORD

    def find(self, key: str) -> StoredFile | None:
        """Return the result of a key; remove it and return None if it is damaged."""
        folder = self.folder(key)
        if not (
            folder / _RECORD
        ).exists():  # another run may publish the result now, so nothing is removed
            return None
        try:
            record = read_json((folder / _RECORD).read_bytes(), _Record, _RECORD)
            path = folder / record.name
            if sha256_of(path) == record.sha256:
                return StoredFile(
                    path=path,
                    sha256=record.sha256,
                    label=record.label,
                    cost=record.cost,
                )
        except (OSError, FormatError):
            pass
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def keep(
        self, key: str, folder: Path, name: str, *, label: str, cost: Cost
    ) -> None:
        """Store a finished folder under its key, unless another run has done so."""
        digest = sha256_of(folder / name)
        record = _Record(name=name, sha256=digest, label=label, cost=cost)
        text = json.dumps(asdict(record), indent=1)
        (folder / _RECORD).write_text(text, encoding="utf-8")
        if not self.publish(folder, key) and self.find(key) is None:
            shutil.rmtree(
                self.folder(key), ignore_errors=True
            )  # it has lost its record
            self.publish(folder, key)
        note = self._note(label)
        note.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            write_whole(note, json.dumps(asdict(cost)).encode())

    def measured(self, label: str) -> Cost | None:
        """Return the last measured cost of a unit."""
        try:
            return read_json(self._note(label).read_bytes(), Cost, label)
        except (OSError, FormatError):
            return None

    def _note(self, label: str) -> Path:
        name = sha256_of(label.encode())[:32]
        return self.root / "measured" / f"{name}.json"


def key_of(parts: Mapping[str, object]) -> str:
    """Return the SHA-256 of everything that a result depends on."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return sha256_of(text.encode())
