"""Archives that this program wrote, and archives that were changed later in ways that readers accept."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.made_wheel import clean_pjrt
from wheelkit.archive.canonical import check_canonical
from wheelkit.archive.member_writer import EPOCH
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.rewrite import WheelRewrite

Change = Callable[[zipfile.ZipInfo], None]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    made = clean_pjrt()
    with WheelArchive(made.write(tmp_path)) as source:
        return WheelRewrite(source, date_time=EPOCH).write(out / made.filename).path


def packed_again(path: Path, change: Change, *, comment: bytes = b"", reverse: bool = False) -> Path:
    """Pack a wheel again with changed headers."""
    out = path.parent / "again" / path.name
    out.parent.mkdir()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for item in sorted(old.infolist(), reverse=True, key=str) if reverse else old.infolist():
            fresh = zipfile.ZipInfo(item.filename, item.date_time)
            fresh.external_attr, fresh.compress_type = item.external_attr, zipfile.ZIP_DEFLATED
            change(fresh)
            new.writestr(fresh, old.read(item))
        new.comment = comment
    return out


def clauses(path: Path) -> dict[str, list[str]]:
    with WheelArchive(path) as archive:
        return check_canonical(archive)


def test_written_archive_is_canonical(written: Path) -> None:
    assert clauses(written) == {}
    assert clauses(packed_again(written, lambda _: None)) == {}  # the same form


def test_archive_comment_and_order_are_named(written: Path, tmp_path: Path) -> None:
    (commented,) = clauses(packed_again(written, lambda _: None, comment=b"x"))
    assert commented.startswith("the central directory has comments")
    (tmp_path / "out" / "again" / written.name).unlink()
    (tmp_path / "out" / "again").rmdir()
    found = clauses(packed_again(written, lambda _: None, reverse=True))
    assert {"RECORD is not the last file"} < found.keys()
    assert any(clause.startswith("the rows of RECORD") for clause in found)
