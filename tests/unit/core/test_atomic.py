"""Results that a command writes into a file: complete or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from core.atomic import write_whole


def test_write_keeps_old_file_for_open_readers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reader = tmp_path / "reader"
    out.write_text("old")
    os.link(out, reader)
    write_whole(out, b"new")
    assert out.read_text() == "new"
    assert reader.read_text() == "old"


def test_write_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "out", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_write_during_other_write_of_same_file_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_bytes = Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        written = write_bytes(path, data)
        if data == b"first":
            write_whole(out, b"second")
        return written

    monkeypatch.setattr(Path, "write_bytes", write)
    write_whole(out, b"first")
    assert out.read_bytes() == b"first"
    (tmp_path / "plain").write_bytes(b"")
    assert out.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "plain"]


def test_write_through_link_keeps_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "out").write_bytes(b"old and longer")
    write_whole(tmp_path / "link", b"data")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out").read_bytes() == b"data"


def test_failed_write_through_link_keeps_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "first").symlink_to(tmp_path / "second")
    (tmp_path / "second").symlink_to("folder/out")
    (tmp_path / "folder/out").write_bytes(b"old")
    write_bytes = Path.write_bytes

    def fail(path: Path, data: bytes) -> int:
        write_bytes(path, data[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "first", b"data")
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()
    } == {"out": b"old"}


@pytest.mark.parametrize("target", ["none/out", "link"])
def test_write_through_unusable_link_names_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match=f"{tmp_path}/link"):
        write_whole(tmp_path / "link", b"data")
