"""Reading, writing and verifying RECORD."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import ArchiveError
from tests.support.tiny_wheel import INFO, contents, make_wheel, record_line
from wheelkit.archive.record import RecordEntry
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.wheel_archive import WheelArchive

RECORD = f"{INFO}/RECORD"


def findings(folder: Path, members: dict[str, bytes]) -> dict[str, str]:
    with WheelArchive(make_wheel(folder, members=members)) as archive:
        return {finding.code: finding.message for finding in verify_record(archive)}


def with_record(change: str, to: str) -> dict[str, bytes]:
    members = contents({"tiny/a.py": b"a\n", "tiny/b.py": b"b\n"})
    text = members[RECORD].decode()
    assert change in text
    return members | {RECORD: text.replace(change, to, 1).encode()}


def test_verify_record_extracts_intact_wheel_without_findings(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10000
    with WheelArchive(make_wheel(tmp_path, {"tiny/a.so": data})) as archive:
        assert verify_record(archive, extract={"tiny/a.so": tmp_path / "a.so"}) == ()
        entry = archive.record()["tiny/a.so"]
        assert entry.size == len(data)
        assert entry.algorithm == "sha256"
        assert archive.record()[RECORD] == RecordEntry(None, None)
    assert (tmp_path / "a.so").read_bytes() == data


def test_record_refuses_ambiguous_rows(tmp_path: Path) -> None:
    members = with_record(RECORD, record_line("tiny/a.py", b"a\n") + "x\n" + RECORD)
    with (
        WheelArchive(make_wheel(tmp_path, members=members)) as archive,
        pytest.raises(
            ArchiveError,
            match=r"line 6 is not path,hash,size; tiny/a\.py is listed twice",
        ),
    ):
        archive.record()


def test_verify_record_accepts_signatures_without_row(tmp_path: Path) -> None:
    members = contents() | {f"{INFO}/RECORD.jws": b"{}"}
    assert findings(tmp_path, members) == {}
