"""Strict archive reader: accepted and refused archives."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ArchiveError
from tests.support.tiny_wheel import (
    INFO,
    METADATA,
    NAME,
    RawMember,
    contents,
    make_wheel,
    raw_members,
    raw_wheel,
    raw_zip,
)
from wheelkit.archive import zip_check, zip_format
from wheelkit.archive.filename import WheelName
from wheelkit.archive.wheel_archive import WheelArchive

SOME = b"some bytes " * 5000


def refusal(path: Path) -> str:
    with pytest.raises(ArchiveError) as caught, WheelArchive(path):
        pass
    return str(caught.value)


def test_members_keep_order_and_modes(tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path, {"tiny/z.so": SOME, "tiny/a.py": b""}, modes={"tiny/z.so": 0o755}
    )
    with WheelArchive(path) as archive:
        assert [m.name for m in archive.members] == list(
            contents({"tiny/z.so": b"", "tiny/a.py": b""})
        )
        member = archive["tiny/z.so"]
        assert member.mode == 0o755
        assert member.size == len(SOME)
        assert member.method == 8
        assert member.crc32 == zlib.crc32(SOME)
        assert archive.read("tiny/z.so") == SOME
        assert archive.read("tiny/a.py") == b""
        assert "tiny/a.py" in archive
        assert "tiny/b.py" not in archive
        assert archive.dist_info == INFO
        assert archive.headers("METADATA")["Name"] == "tiny"
        assert archive.headers("WHEEL").get_all("Tag") == ["py3-none-any"]
        assert archive.size == path.stat().st_size
        with pytest.raises(ArchiveError, match=r"no member tiny/b\.py"):
            archive["tiny/b.py"]


@pytest.mark.parametrize("text", ["tiny-1.0.zip", "tiny-one-py3-none-any.whl"])
def test_wheel_name_refuses_invalid_names(text: str) -> None:
    with pytest.raises(ArchiveError, match="not the name of a wheel"):
        WheelName.parse(text)


def test_extract_writes_and_hashes(tmp_path: Path) -> None:
    big = bytes(range(256)) * 20000
    out = tmp_path / "big.so"
    with WheelArchive(make_wheel(tmp_path, {"tiny/big.so": big})) as archive:
        assert archive.extract("tiny/big.so", out) == hashlib.sha256(big).hexdigest()
        assert out.read_bytes() == big
        archive.unpack("tiny/big.so", out)
        assert out.read_bytes() == big
        assert all(len(chunk) <= 1 << 20 for chunk in archive.chunks("tiny/big.so"))
        with pytest.raises(ArchiveError, match="the limit is 100"):
            archive.read("tiny/big.so", limit=100)


def fail(chunk: bytes) -> None:
    raise OSError("the disk is full")


def test_extract_write_error_is_raised_and_leaves_no_file(tmp_path: Path) -> None:
    with WheelArchive(make_wheel(tmp_path, {"tiny/big.so": bytes(5 << 20)})) as archive:
        with pytest.raises(OSError, match="full"):
            archive.digest("tiny/big.so", fail)
        with pytest.raises(FileNotFoundError):
            archive.extract("tiny/big.so", tmp_path / "nowhere" / "big.so")
        with pytest.raises(FileNotFoundError):
            archive.unpack("tiny/big.so", tmp_path / "nowhere" / "big.so")


def test_archive_reads_directories_and_streamed_members(tmp_path: Path) -> None:
    class Stream(io.BytesIO):
        def seek(self, *where: int) -> int:
            raise OSError("a pipe cannot seek")

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("tiny/")
        for name, data in contents({"tiny/a.py": SOME, "tiny/b.py": b""}).items():
            archive.writestr(name, data)
    path = tmp_path / NAME
    path.write_bytes(stream.getvalue())
    with WheelArchive(path) as opened:
        assert opened["tiny/a.py"].flags & 8
        assert opened.read("tiny/a.py") == SOME
        assert "tiny/" not in [m.name for m in opened.members]


@pytest.mark.parametrize("layout", ["<4sLLL", "<4sLQQ", "<LLL", "<LQQ"])
def test_archive_reads_every_kind_of_data_descriptor(
    tmp_path: Path, layout: str
) -> None:
    member = RawMember(
        b"tiny/late.py", flags=8, local={"crc": 0, "packed": 0, "size": 0}
    )
    values = (zlib.crc32(member.data), len(member.compressed()), len(member.data))
    member.after = struct.pack(
        layout, *((b"PK\7\x08", *values) if "s" in layout else values)
    )
    with WheelArchive(raw_wheel(tmp_path, member)) as archive:
        assert archive.read("tiny/late.py") == member.data
    member.after = member.after[:-1] + b"\x55"
    assert (
        "tiny/late.py: its data descriptor is missing or disagrees with the central directory"
        in refusal(raw_wheel(tmp_path, member))
    )


def test_archive_reads_zip64_extra_fields(tmp_path: Path) -> None:
    member = RawMember(b"tiny/wide.py")
    size = len(member.data)
    packed = len(member.compressed())
    extra = struct.pack("<HHQQ", 1, 16, size, packed)
    wide = {
        "size": 0xFFFFFFFF,
        "packed": 0xFFFFFFFF,
        "extra": extra,
    }
    member.central = member.local = wide
    with WheelArchive(raw_wheel(tmp_path, member)) as archive:
        assert archive.read("tiny/wide.py") == member.data
    member.local = wide | {"extra": b""}
    assert "tiny/wide.py: its zip64 sizes are missing" in refusal(
        raw_wheel(tmp_path, member)
    )


def wrong(name: bytes = b"tiny/bad.py", **fields: object) -> RawMember:
    return RawMember(name, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("member", "named"),
    [
        (wrong(b"tiny/__init__.py"), "tiny/__init__.py: it occurs 2 times"),
        (wrong(b"/etc/passwd"), "'/etc/passwd': its path is absolute"),
        (wrong(b"C:/x"), "'C:/x': its path is absolute"),
        (wrong(b"tiny/../../x"), "'tiny/../../x': its path has an empty, . or .. part"),
        (wrong(b"tiny\\x"), "its path has a backslash"),
        (wrong(b"tiny/x\0.py"), "its path is empty or has control characters"),
        (wrong(b"tiny/\xc3\xa9.py"), "the encoding of its name is ambiguous"),
        (
            wrong(b"tiny/__init__.py/x"),
            "tiny/__init__.py/x: tiny/__init__.py is a file, not a directory",
        ),
        (wrong(b"tiny/dir/", method=0), "tiny/dir/: it is a directory with content"),
        (
            wrong(attr=0o120777 << 16),
            "tiny/bad.py: it is not a regular file (mode lrwxrwxrwx)",
        ),
        (wrong(attr=0o104755 << 16), "tiny/bad.py: it is setuid or setgid"),
        (wrong(flags=1), "tiny/bad.py: it is encrypted"),
        (
            wrong(method=12),
            "tiny/bad.py: compression method 12 is neither stored nor deflated",
        ),
        (
            wrong(method=0, central={"size": 7}),
            "tiny/bad.py: it is stored, but its compressed and uncompressed sizes differ",
        ),
        (
            wrong(local={"name": b"tiny/fine.py"}),
            "tiny/bad.py: its local header has the name 'tiny/fine.py'",
        ),
        (
            wrong(local={"size": 1}),
            "tiny/bad.py: size is 120 in the central directory and 1 in the local header",
        ),
        (
            wrong(local={"method": 0}),
            "tiny/bad.py: method is 8 in the central directory and 0 in the local header",
        ),
        (wrong(central={"offset": 5}), "tiny/bad.py: no local header at byte 5"),
        (wrong(central={"disk": 3}), "tiny/bad.py: it is on another disk"),
        (
            wrong(local={"extra": struct.pack("<HHBL", 0x7075, 10, 1, 0) + b"other"}),
            "tiny/bad.py: an extra field contains another name",
        ),
        (  # readers disagree about which of the two fields counts
            wrong(central={"extra": b"\x55\x54\1\0a\x55\x54\1\0b"}),
            "tiny/bad.py: its extra fields are malformed",
        ),
        (
            wrong(before=b"hidden"),
            "6 bytes between tiny-1.0.dist-info/RECORD and tiny/bad.py belong to no member",
        ),
        (
            wrong(central={"packed": 99}, local={"packed": 99}),
            "tiny/bad.py: it overlaps the central directory",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_archive_reports_invalid_member(
    tmp_path: Path, member: RawMember, named: str
) -> None:
    assert named in refusal(raw_wheel(tmp_path, member))


def comment_beyond_the_directory(data: bytes) -> bytes:
    size = data.rindex(b"PK\1\2") + 32
    return data[:size] + b"\1" + data[size + 1 :]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (
            lambda data: data[:-1],
            "the file was cut short, bytes follow its end, or it is not a zip archive",
        ),
        (lambda data: b"#!/bin/sh\n" + data, "Bytes were added or lost"),
        (
            lambda data: data.replace(b"PK\1\2", b"PK\1\3"),
            "The central directory is damaged at entry 0",
        ),
        (comment_beyond_the_directory, "The central directory is damaged at entry 3"),
        (
            lambda data: data[:-12] + struct.pack("<H", 9) + data[-10:],
            "split over several disks",
        ),
        (
            lambda data: data[:-14] + struct.pack("<HH", 9, 9) + data[-10:],
            "declares 9 members, but",
        ),
    ],
)
def test_archive_reports_damage(
    tmp_path: Path, damage: Callable[[bytes], bytes], named: str
) -> None:
    path = tmp_path / NAME
    path.write_bytes(damage(raw_zip(raw_members())))
    assert named in refusal(path)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (
            {f"{INFO}/METADATA": b"", "other-2.dist-info/METADATA": b""},
            "2 .dist-info directories",
        ),
        (
            {"other-1.0.dist-info/METADATA": b""},
            "other-1.0.dist-info does not match the file name",
        ),
    ],
)
def test_archive_requires_one_matching_dist_info(
    tmp_path: Path, files: dict[str, bytes], named: str
) -> None:
    assert named in refusal(make_wheel(tmp_path, members=files))


def test_archive_refuses_zip_bombs_before_inflating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = wrong(central={"size": 1 << 31}, local={"size": 1 << 31})
    assert "to 1 (a zip bomb)" in refusal(raw_wheel(tmp_path, lie))
    honest = wrong(data=bytes(20 << 20))  # zeros, which deflate compresses 1030 to 1
    with WheelArchive(raw_wheel(tmp_path, honest)) as archive:
        assert archive["tiny/bad.py"].size == 20 << 20
    monkeypatch.setattr(zip_check, "MAX_TOTAL", 20 << 20)
    assert "more than 20971520 (a zip bomb)" in refusal(tmp_path / NAME)
    monkeypatch.setattr(zip_format, "MAX_DIRECTORY", 100)
    assert "the limit is 100" in refusal(tmp_path / NAME)


@pytest.mark.parametrize(
    ("member", "named"),
    [
        (wrong(packed=b"\xff" * 40), "its deflate data is broken"),
        (wrong(packed=RawMember(b"").compressed()[:-2]), "its deflate data ends early"),
        (
            wrong(packed=RawMember(b"").compressed() + b"more"),
            "bytes follow the end of its deflate data",
        ),
        (
            wrong(central={"crc": 5}, local={"crc": 5}),
            "instead of the declared 00000005",
        ),
        (
            wrong(central={"size": 100}, local={"size": 100}),
            "the content is larger than the declared 100 bytes",
        ),
        (
            wrong(central={"size": 200}, local={"size": 200}),
            "the content has 120 bytes instead of the declared 200",
        ),
    ],
)
def test_extract_damaged_member_leaves_no_file(
    tmp_path: Path, member: RawMember, named: str
) -> None:
    with WheelArchive(raw_wheel(tmp_path, member)) as archive:
        out = tmp_path / "out"
        with pytest.raises(ArchiveError, match=named):
            archive.extract("tiny/bad.py", out)
        assert not out.exists()


def test_metadata_not_utf8_is_reported(tmp_path: Path) -> None:
    members = contents() | {f"{INFO}/METADATA": METADATA + b"Author: \xff\n"}
    with (
        WheelArchive(make_wheel(tmp_path, members=members)) as archive,
        pytest.raises(ArchiveError, match="not UTF-8"),
    ):
        archive.headers("METADATA")


def zip64(
    data: bytes, *, at: int | None = None, gap: bytes = b"", count: int | None = None
) -> bytes:
    """Give an archive zip64 end records in front of its end."""
    head = data[:-22]
    end = data[-22:]
    entries, size, offset = struct.unpack_from("<HLL", end, 10)
    entries = entries if count is None else count
    wide = struct.pack(
        "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, size, offset
    )
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(head) if at is None else at, 1)
    return head + wide + gap + locator + end


def test_archive_reads_zip64_end_records(tmp_path: Path) -> None:
    path = tmp_path / NAME
    good = raw_zip(raw_members())
    path.write_bytes(zip64(good))
    with WheelArchive(path) as archive:
        assert archive.headers("METADATA")["Name"] == "tiny"
    for broken, named in (
        (zip64(good, at=3), "not at the offset in its locator"),
        (
            zip64(good, gap=b"hidden"),
            "There are bytes between the zip64 end record and its locator",
        ),
        (zip64(good, count=3), "disagrees with the classic one"),
    ):
        path.write_bytes(broken)
        assert named in refusal(path)
