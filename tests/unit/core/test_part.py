"""Received bytes of an unfinished download.

Only written bytes are counted, and damaged counts never add bytes.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path

import pytest

from core.errors import MachineError
from core.http import download
from core.http.download import FileVersion
from core.http.part import PartFile

VERSION = FileVersion(size=100, etag='"a"')


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PIECE", 10)


def written(folder: Path, *rows: tuple[int, bytes]) -> PartFile:
    """Return a part as another process finds it after these writes."""
    with PartFile(folder) as part:
        part.begin(VERSION)
        for start, data in rows:
            part.write(start, data)
    return PartFile(folder)


def first(part: PartFile) -> bytes:
    return b"".join(part.first_bytes())


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, b"0123"), (4, b"456789"), (10, b"x")], b"0123456789x"),
        ([(0, b"0123"), (10, b"abcdefghij")], b"0123"),
        ([(10, b"abcdefghij")], b""),
        (
            [(0, b"0123456789"), (20, b"x"), (10, b"abcdefghij")],
            b"0123456789abcdefghijx",
        ),
    ],
)
def test_part_prefix_ends_at_first_hole(
    tmp_path: Path, rows: Iterable[tuple[int, bytes]], expected: bytes
) -> None:
    part = written(tmp_path, *rows)
    assert (part.begun, part.prefix, first(part), part.version) == (
        True,
        len(expected),
        expected,
        VERSION,
    )


def test_part_returns_bytes_behind_hole(tmp_path: Path) -> None:
    part = written(tmp_path, (10, b"abcde"))
    buffer = memoryview(bytearray(10))
    with part:
        part.begin(VERSION)
        assert (part.read(10, buffer), bytes(buffer[:5])) == (5, b"abcde")
        assert (part.read(13, buffer[:7]), bytes(buffer[:2])) == (2, b"de")
        assert (
            part.read(15, buffer[:5]),
            part.read(0, buffer),
            part.read(90, buffer),
        ) == (0, 0, 0)


@pytest.mark.parametrize(
    "numbers",
    [b"", b"1234567", array("Q", [0, 10]).tobytes(), array("Q", [2**63]).tobytes()],
)
def test_part_with_damaged_counts_starts_again(tmp_path: Path, numbers: bytes) -> None:
    written(tmp_path, (0, b"0123456789abc"))
    (tmp_path / "received").write_bytes(numbers)
    assert PartFile(tmp_path).prefix == 0
    assert first(written(tmp_path, (0, b"xyz"))) == b"xyz"


def test_part_never_counts_lost_bytes(tmp_path: Path) -> None:
    written(tmp_path, (0, b"0123456789abc"))
    os.truncate(tmp_path / "data", 11)
    assert first(PartFile(tmp_path)) == b"0123456789a"


def test_part_moves_complete_file(tmp_path: Path) -> None:
    written(tmp_path / "part", (0, b"0123")).finish(tmp_path / "tarballs/sha/name")
    assert (tmp_path / "tarballs/sha/name").read_bytes() == b"0123"
    assert list((tmp_path / "part").iterdir()) == []


def test_part_names_its_file_if_disk_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        MachineError, match=rf"Cannot write {tmp_path}/file/part/data: Not a directory"
    ):
        PartFile(tmp_path / "file/part").begin(VERSION)
