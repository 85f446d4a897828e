"""Received bytes of an unfinished download."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import MachineError
from core.http.client import Client
from core.http.download import FileVersion, RemoteFile
from core.http.part import PartFile

VERSION = FileVersion(size=100, etag='"a"')


def store(folder: Path, chunks: list[bytes]) -> PartFile:
    """Return a part as another process finds it after these chunks."""
    remote = RemoteFile(Client(), "https://host/file")
    remote.version = VERSION
    stored = PartFile(folder).store(remote, map(memoryview, chunks))
    assert [bytes(chunk) for chunk in stored] == chunks
    return PartFile(folder)


def test_part_resumes_and_moves_complete_file(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    first = store(folder, [b"0123", b"45"])
    assert first.size == 6
    assert first.version == VERSION
    second = store(folder, [b"678"])
    assert b"".join(second.first_bytes()) == b"012345678"
    second.finish(tmp_path / "tarballs/sha/name")
    assert (tmp_path / "tarballs/sha/name").read_bytes() == b"012345678"
    assert list(folder.iterdir()) == []


def test_part_without_version_starts_again(tmp_path: Path) -> None:
    store(tmp_path, [b"0123"])
    (tmp_path / "version.json").write_text("{")
    assert PartFile(tmp_path).size == 0
    assert b"".join(store(tmp_path, [b"xyz"]).first_bytes()) == b"xyz"


def test_part_names_its_file_if_disk_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(MachineError, match=f"Cannot write {tmp_path}/file/part/data"):
        store(tmp_path / "file/part", [b"x"])
