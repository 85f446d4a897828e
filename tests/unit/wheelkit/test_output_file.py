"""Copies between files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from core.errors import ArchiveError
from wheelkit.archive.output_file import OutFile

NOISE = os.urandom(3_000_000)


def test_out_file_copies_without_fallocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*args: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not this file system")

    (tmp_path / "a").write_bytes(NOISE)
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb") as out:
        monkeypatch.setattr(os, "posix_fallocate", cannot)
        OutFile(out.fileno()).copy(source.fileno(), 5, 2_500_000)
        with pytest.raises(ArchiveError, match="ended 1 bytes early"):
            OutFile(out.fileno()).copy(source.fileno(), 0, 3_000_001)
    assert (tmp_path / "b").read_bytes()[:2_500_000] == NOISE[:2_500_000]
