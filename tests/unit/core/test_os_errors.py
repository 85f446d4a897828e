"""Errors of the operating system as sentences, and folders that accept no files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from core.os_errors import describe, why_unwritable, writes_to


def full(*names: object) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", *names)


def test_full_disk_is_named_by_the_file_that_was_written(tmp_path: Path) -> None:
    copied = full("/proc/version", None, str(tmp_path / "gone/set/x.whl"))
    mount = next(place for place in (tmp_path, *tmp_path.parents) if place.is_mount())
    assert describe(copied) == (
        f"No space left on device: the disk at {mount} is full (written to: {tmp_path}). "
        "Free space there, or use another disk."
    )
    assert "/proc" not in describe(copied)


@pytest.mark.parametrize("name", [None, "relative/name", 3])
def test_writes_to_names_the_path_that_write_does_not(
    name: object, tmp_path: Path
) -> None:
    with (
        pytest.raises(OSError, match="No space") as caught,
        writes_to(tmp_path / "out"),
    ):
        raise full(*([] if name is None else [name]))
    assert caught.value.filename == str(tmp_path / "out")


def test_writes_to_keeps_the_path_of_inner_blocks_and_other_errors(
    tmp_path: Path,
) -> None:
    with (
        pytest.raises(OSError, match="No space") as caught,
        writes_to(tmp_path / "a"),
        writes_to(tmp_path / "b"),
    ):
        raise full()
    assert caught.value.filename == str(tmp_path / "b")
    with pytest.raises(FileNotFoundError) as missing, writes_to(tmp_path):
        os.close(os.open("no-such-file", os.O_RDONLY))
    assert missing.value.filename == "no-such-file"


def test_why_unwritable_gives_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert why_unwritable(tmp_path / "file/x") == f"{tmp_path}/file is not a folder"
    assert (
        why_unwritable(Path("/proc/x")) == "the file system of /proc accepts no files"
    )
