"""Store of compiled files by key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from core.digests import sha256_of
from core.errors import FormatError
from core.frozen import frozen
from core.records import read_json
from core.store import ContentStore

_RECORD = "record.json"


@frozen
class StoredFile:
    """A stored file."""

    path: Path
    sha256: str


@frozen
class _Record:
    """Content of record.json."""

    name: str
    sha256: str


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
                return StoredFile(path=path, sha256=record.sha256)
        except (OSError, FormatError):
            pass
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def keep(
        self,
        key: str,
        folder: Path,
        name: str,
    ) -> None:
        """Store a finished folder under its key, unless another run has done so."""
        digest = sha256_of(folder / name)
        record = _Record(name=name, sha256=digest)
        text = json.dumps(asdict(record), indent=1)
        (folder / _RECORD).write_text(text, encoding="utf-8")
        if not self.publish(folder, key) and self.find(key) is None:
            shutil.rmtree(
                self.folder(key), ignore_errors=True
            )  # it has lost its record
            self.publish(folder, key)


def key_of(parts: Mapping[str, object]) -> str:
    """Return the SHA-256 of everything that a result depends on."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return sha256_of(text.encode())
