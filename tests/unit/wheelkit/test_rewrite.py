"""Rewritten wheels: changed, unchanged and refused members."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ArchiveError
from tests.support.tiny_wheel import INFO, NAME, WHEEL, make_wheel
from wheelkit.archive import member_writer, zip_format
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.rewrite import WheelRewrite, WrittenWheel
from wheelkit.archive.wheel_archive import WheelArchive

TEXT = b"".join(b"line %d of a member\n" % n for n in range(100_000))


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    files = {"tiny/__init__.py": b"x = 1\n", "tiny/big.so": TEXT}
    return make_wheel(
        tmp_path / "in", files, modes={"tiny/big.so": 0o755, f"{INFO}/RECORD": 0o664}
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / NAME


def members(path: Path) -> dict[str, bytes]:
    """Return all members, after every available reader has accepted the archive."""
    with WheelArchive(path) as archive:
        assert verify_record(archive) == ()
    with zipfile.ZipFile(path) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name) for name in opened.namelist()}


def rewritten(
    wheel: Path, out: Path, *edits: Callable[[WheelRewrite], object]
) -> WrittenWheel:
    """Return a wheel rewritten with some changes."""
    with WheelArchive(wheel) as source:
        rewrite = WheelRewrite(source)
        for edit in edits:
            edit(rewrite)
        return rewrite.write(out)


@pytest.fixture
def content(tmp_path: Path) -> Path:
    return tmp_path / "content"


def test_rewrite_keeps_unchanged_members(wheel: Path, out: Path) -> None:
    with WheelArchive(wheel) as source:
        rewrite = WheelRewrite(source)
        rewrite.set(f"{INFO}/WHEEL", WHEEL.replace(b"true", b"false"))
        rewrite.set("tiny/new.py", b"")
        rewrite.set(f"{INFO}/licenses/LICENSE", b"free\n")
        written = rewrite.write(out)
        before = source.members
        packed = source.pread(
            source["tiny/big.so"].compressed_size, source["tiny/big.so"].data_offset
        )
    assert members(out)[f"{INFO}/WHEEL"] == WHEEL.replace(b"true", b"false")
    with WheelArchive(out) as result:
        assert [m.name for m in result.members] == [
            "tiny/__init__.py",
            "tiny/big.so",
            "tiny/new.py",
            f"{INFO}/METADATA",
            f"{INFO}/WHEEL",
            f"{INFO}/licenses/LICENSE",
            f"{INFO}/RECORD",
        ]
        for old in before:
            assert result[old.name].external_attr == old.external_attr
        assert result["tiny/new.py"].mode == 0o644
        assert result[f"{INFO}/licenses/LICENSE"].mode == 0o644
        assert result.pread(len(packed), result["tiny/big.so"].data_offset) == packed
    assert written.path == out
    assert written.size == out.stat().st_size
    assert written.sha256 == hashlib.sha256(out.read_bytes()).hexdigest()


def test_rewrite_is_reproducible(wheel: Path, out: Path, content: Path) -> None:
    digests = []
    content.write_bytes(TEXT + b"more")
    edits = (
        lambda r: r.set("tiny/big.so", content),
        lambda r: r.set("tiny/new.so", content),
    )
    for _ in range(2):
        digests.append(rewritten(wheel, out, *edits).sha256)
        with zipfile.ZipFile(out) as result:
            assert {entry.date_time for entry in result.infolist()} == {
                (1980, 1, 1, 0, 0, 0)
            }
    assert digests[0] == digests[1]


def test_rewrite_renames_folders(wheel: Path, out: Path) -> None:
    new = out.with_name("tiny-1.0.post1-py3-none-any.whl")
    rewritten(
        wheel,
        new,
        lambda rewrite: rewrite.rename("tiny", "small"),
        lambda rewrite: rewrite.rename(INFO, "tiny-1.0.post1.dist-info"),
        lambda rewrite: rewrite.set("tiny-1.0.post1.dist-info/WHEEL", WHEEL),
    )
    found = members(new)
    assert list(found) == [
        "small/__init__.py",
        "small/big.so",
        *(f"tiny-1.0.post1.dist-info/{n}" for n in ("METADATA", "WHEEL", "RECORD")),
    ]
    with WheelArchive(new) as result:
        assert result["tiny-1.0.post1.dist-info/RECORD"].mode == 0o664


def test_rewrite_refuses_impossible_changes(wheel: Path, out: Path) -> None:
    with WheelArchive(wheel) as source:
        rewrite = WheelRewrite(source)
        with pytest.raises(ArchiveError, match="RECORD cannot be set"):
            rewrite.set(f"{INFO}/RECORD", b"")
        rewrite.set("../escape", b"")
        with pytest.raises(
            ArchiveError, match=r"its path has an empty, \. or \.\. part"
        ):
            rewrite.write(out)
        with pytest.raises(ArchiveError, match="does not match the file name"):
            WheelRewrite(source).write(out.with_name("tiny-2.0-py3-none-any.whl"))
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-1],
        lambda packed: packed + b"more",
        lambda packed: deflated(b"x"),
    ],
    ids=["truncated", "longer", "other"],
)
def test_rewrite_verifies_compressed_members(
    wheel: Path,
    out: Path,
    content: Path,
    damage: Callable[[bytes], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content.write_bytes(TEXT)
    monkeypatch.setattr(
        "deflate.deflate_compress", lambda data, level: damage(deflated(data))
    )
    with pytest.raises(ArchiveError, match=r"tiny/big.so was compressed wrongly"):
        rewritten(wheel, out, lambda rewrite: rewrite.set("tiny/big.so", content))
    assert list(out.parent.iterdir()) == []


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def test_local_header_of_large_member_is_zip64() -> None:
    member = zip_format.ZipMember(
        name="big",
        method=0,
        crc32=1,
        compressed_size=5 << 30,
        size=5 << 30,
        external_attr=0,
        header_offset=6 << 30,
        data_offset=0,
    )
    problems: list[str] = []
    directory = member_writer.central_directory([member], 11 << 30)
    assert zip_format.read_central(directory[:-98], 1, problems) == [member]
    raw = member_writer.local_header(member)
    local = zip_format.read_local(
        lambda size, at: raw[at : at + size], member._replace(header_offset=0), problems
    )
    assert local is not None
    assert local.size == 5 << 30
    assert local.compressed_size == 5 << 30
    assert problems == []
