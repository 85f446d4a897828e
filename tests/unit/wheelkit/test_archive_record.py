"""Reading, writing and verifying RECORD."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from core.errors import ArchiveError
from tests.support.tiny_wheel import INFO, RawMember, contents, make_wheel, raw_wheel, record_line
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.record import RecordEntry, format_record, parse_record
from wheelkit.archive.verify import verify_record

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
        assert (entry.size, entry.algorithm) == (len(data), "sha256")
        assert archive.record()[RECORD] == RecordEntry(None, None)
    assert (tmp_path / "a.so").read_bytes() == data


@pytest.mark.parametrize(
    ("change", "to", "code", "named"),
    [
        (record_line("tiny/a.py", b"a\n"), record_line("tiny/a.py", b"c\n"), "record-wrong-hash", "tiny/a.py"),
        (",2\n", ",3\n", "record-wrong-size", "tiny/a.py has 2 bytes; RECORD lists 3."),
        (record_line("tiny/a.py", b"a\n"), "", "record-missing-entry", "tiny/a.py is not in RECORD."),
        (RECORD, record_line("tiny/c.py", b"") + RECORD, "record-no-such-file", "tiny/c.py"),
        (RECORD, record_line("tiny/a.py", b"a\n") + RECORD, "record-duplicate-entry", "lists tiny/a.py 2 times"),
        (
            record_line("tiny/a.py", b"a\n"),
            "tiny/a.py,,\n",
            "record-no-sha256",
            "no hash instead of a sha256",
        ),
        (record_line("tiny/a.py", b"a\n"), "tiny/a.py,md5=abc,2\n", "record-no-sha256", "the md5 hash"),
        (RECORD, "tiny/c.py\n" + RECORD, "record-malformed", "line 5 is not path,hash,size"),
        (RECORD, "tiny/c.py,sha256=!!,1\n" + RECORD, "record-malformed", "line 5"),
        (RECORD, "tiny/c.py,sha256=abcd,1\n" + RECORD, "record-malformed", "line 5"),
        (RECORD, "tiny/c.py,,-1\n" + RECORD, "record-malformed", "line 5"),
    ],
)
def test_verify_record_reports_wrong_record(tmp_path: Path, change: str, to: str, code: str, named: str) -> None:
    found = findings(tmp_path, with_record(change, to))
    assert list(found) == [code]
    assert named in found[code]


def test_record_of_many_files_is_read_in_linear_time(tmp_path: Path) -> None:
    members = contents({})
    members[RECORD] = b"".join(b"tiny/%d.py,,\n" % number for number in range(30000))
    with WheelArchive(make_wheel(tmp_path, members=members)) as archive:
        start = time.process_time()
        assert len(archive.record()) == 30000
        assert time.process_time() - start < 5  # comparing each row with all before it takes 20 seconds


def test_verify_record_reports_unbalanced_quote(tmp_path: Path) -> None:
    members = with_record(RECORD, f'"{RECORD}')
    members[RECORD] += b"tiny/c.py,,\n" * 20000
    found = findings(tmp_path, members)
    assert found["record-malformed"].startswith("RECORD is malformed: it is not CSV: field larger than field limit")


def test_verify_record_reports_all_findings(tmp_path: Path) -> None:
    members = with_record(record_line("tiny/a.py", b"a\n"), record_line("tiny/c.py", b"a\n"))
    assert set(findings(tmp_path, members)) == {"record-missing-entry", "record-no-such-file"}


def test_verify_record_reports_damaged_member(tmp_path: Path) -> None:
    bad = RawMember(b"tiny/bad.so", data=b"x" * 3000, central={"crc": 7}, local={"crc": 7})
    with WheelArchive(raw_wheel(tmp_path, bad)) as archive:
        out = tmp_path / "bad.so"
        (finding,) = verify_record(archive, extract={"tiny/bad.so": out})
        assert (finding.code, finding.member) == ("member-damaged", "tiny/bad.so")
        assert not out.exists()


@pytest.mark.parametrize("data", [None, b"\xff\xfe"])
def test_verify_record_reports_missing_record(tmp_path: Path, data: bytes | None) -> None:
    members = contents()
    if data is None:
        del members[RECORD]
    else:
        members[RECORD] = data
    assert list(findings(tmp_path, members)) == ["record-unreadable"]


def test_record_refuses_ambiguous_rows(tmp_path: Path) -> None:
    members = with_record(RECORD, record_line("tiny/a.py", b"a\n") + "x\n" + RECORD)
    with (
        WheelArchive(make_wheel(tmp_path, members=members)) as archive,
        pytest.raises(ArchiveError, match=r"line 6 is not path,hash,size; tiny/a\.py is listed twice"),
    ):
        archive.record()


def test_verify_record_accepts_signatures_without_row(tmp_path: Path) -> None:
    members = contents() | {f"{INFO}/RECORD.jws": b"{}"}
    assert findings(tmp_path, members) == {}


def test_format_record_and_parse_record_round_trip() -> None:
    entries = [
        ("a,b.py", RecordEntry("ab" * 32, 5, "sha256")),
        ('quo"te', RecordEntry("00" * 32, 0, "sha256")),
        (RECORD, RecordEntry(None, None)),
    ]
    text = format_record(entries)
    assert text.endswith(b",,\n")
    assert parse_record(text.decode()) == (entries, [])
