"""Streams that are split while they are inflated, and spliced without being verified twice."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.errors import ArchiveError
from tests.support.tiny_wheel import make_wheel
from wheelkit.archive import blocks as cuts_module
from wheelkit.archive import file_member
from wheelkit.archive.blocks import BlockRun, CutPoints, find_block, inflate_cut, scan_blocks
from wheelkit.archive.inflate import WINDOW, InflateError
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.archive.verify import verify_record
from wheelkit.elf.constants import HEADER, SECTION, SHF_ALLOC, SHF_EXECINSTR, SHT_PROGBITS, SHT_STRTAB, SHT_SYMTAB
from wheelkit.repair.cut_plan import plan_cuts

MEMBER = "tiny/big.so"
SIZE = 12_000_000
CONTENT = hashlib.shake_256(b"seam").digest(SIZE).translate(bytes(b % 11 + 65 for b in range(256)))
GOALS = 3_000_000, 9_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"), {MEMBER: CONTENT})


def unpacked(archive: WheelArchive, cuts: CutPoints) -> bytes:
    member = archive[MEMBER]
    return b"".join(inflate_cut(archive.pread, member.data_offset, member.compressed_size, cuts))


def test_inflate_cut_splits_after_each_goal_with_same_bytes(wheel: Path) -> None:
    with WheelArchive(wheel) as archive:
        cuts = CutPoints(GOALS)
        assert cuts.index() is None, "nothing was unpacked yet"
        for _ in range(2):  # a second run gives the same result
            assert unpacked(archive, cuts) == CONTENT
        member = archive[MEMBER]
        blocks = scan_blocks(archive.pread, member.data_offset, member.compressed_size)
        index = cuts.index()
        assert blocks is not None
        assert index is not None
        known = zip(blocks.offsets, blocks.bits, strict=True)
        assert set(zip(index.offsets, index.bits, strict=True)) <= set(known)
        assert [offset // 3_000_000 for offset in index.offsets] == [0, 1, 3]
        assert (index.reach, index.complete) == (SIZE, True)
        for run in index.runs:
            begin, end = run.content
            assert run.crc32 == zlib.crc32(CONTENT[max(0, begin - WINDOW) : end])


@pytest.mark.parametrize("content", [b"", b"short", hashlib.shake_256(b"noise").digest(3_000_000)])
def test_inflate_cut_without_dynamic_blocks_does_not_split(content: bytes) -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    cuts = CutPoints([1, 1_000_000])
    assert b"".join(inflate_cut(lambda size, at: packed[at : at + size], 0, len(packed), cuts)) == content
    assert cuts.runs == [BlockRun(0, (0, len(content)), zlib.crc32(content))]
    assert cuts.index() is None


@pytest.mark.parametrize("lost", [1, 100_000, 4_000_000])
def test_inflate_cut_refuses_truncated_stream(wheel: Path, lost: int) -> None:
    with WheelArchive(wheel) as archive:
        member = archive[MEMBER]
        with pytest.raises(InflateError, match="ends early"):
            list(inflate_cut(archive.pread, member.data_offset, member.compressed_size - lost, CutPoints(GOALS)))


@pytest.mark.parametrize("by", [-1, 1, 4096])
def test_inflate_cut_refuses_wrong_split_point(wheel: Path, monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    monkeypatch.setattr(cuts_module, "find_block", lambda data: (find_block(data) or 0) + by)
    with WheelArchive(wheel) as archive:
        try:
            got = unpacked(archive, CutPoints(GOALS))
        except InflateError:
            return
        assert got != CONTENT


def test_find_block_finds_none_in_noise() -> None:
    """One byte in thirty looks like a header, one in thousands has complete codes, and none can be inflated."""
    noise = hashlib.shake_256(b"more noise").digest(2_000_000)
    assert find_block(noise) is None
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = packer.compress(CONTENT[:1_000_000]) + packer.flush()
    at = find_block(packed)
    assert at is not None
    assert find_block(noise[:100_000] + packed[at:]) == 100_000


def library(rows: list[tuple[int, int, int, int, int]], *, table: int, end: bytes = b"") -> bytes:
    """Return a large file with the section headers (type, flags, offset, size, alignment) of a library at its end."""
    head = HEADER.pack(b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, SECTION.size, len(rows) + 1, 0)
    headers = [SECTION.pack(0, kind, flags, 0, at, size, 0, 0, page, 0) for kind, flags, at, size, page in rows]
    return head + CONTENT[len(head) : table] + bytes(SECTION.size) + b"".join(headers) + end


def test_plan_cuts_surrounds_edited_sections(tmp_path: Path) -> None:
    table, megabyte = 11 << 20, 1 << 20
    rows = [
        (SHT_STRTAB, SHF_ALLOC, 500, 1000, 1),
        (SHT_PROGBITS, SHF_ALLOC, 4096, megabyte, 16),
        (SHT_PROGBITS, SHF_ALLOC, 3 * megabyte, megabyte, 4096),
        (SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 5 * megabyte, megabyte, 4096),
        (SHT_PROGBITS, 0, 10 * megabyte, 100, 1),
        (SHT_SYMTAB, 0, 10 * megabyte + 100, 100, 1),
    ]
    whole = library(rows, table=table)
    for content, goals in (
        (whole, [1500 + WINDOW, megabyte, 2 * megabyte, 4 * megabyte + WINDOW, 8 * megabyte]),
        (library(rows[:2], table=table), [1500 + WINDOW]),
        (library(rows, table=table, end=bytes(2 * megabyte)), []),
        (whole[:-64], []),
        (b"\x7fELF", []),
        (b"", []),
    ):
        with WheelArchive(make_wheel(tmp_path, {MEMBER: content}, level=1)) as archive:
            assert plan_cuts(archive, archive[MEMBER]).goals == goals


Change = Callable[[bytearray, tuple[int, int]], list[tuple[int, int]]]


def nothing(new: bytearray, part: tuple[int, int]) -> list[tuple[int, int]]:
    return []


def at_both_ends(new: bytearray, part: tuple[int, int]) -> list[tuple[int, int]]:
    new[1000:1010] = new[-1010:-1000] = b"0123456789"
    return [(1000, 1010), (SIZE - 1010, SIZE - 1000)]


def inside(new: bytearray, part: tuple[int, int]) -> list[tuple[int, int]]:
    at = sum(part) // 2
    new[at : at + 10] = b"0123456789"
    return [(at, at + 10)]


def just_before(new: bytearray, part: tuple[int, int]) -> list[tuple[int, int]]:
    new[part[0] - 10 : part[0]] = b"0123456789"
    return [(part[0] - 10, part[0])]


def shorter(new: bytearray, part: tuple[int, int]) -> list[tuple[int, int]]:
    del new[part[1] - 100_000 :]
    return []


@pytest.mark.parametrize("change", [nothing, at_both_ends, inside, just_before, shorter])
@pytest.mark.parametrize("named", [True, False])
def test_splice_of_split_stream_is_right_or_refused(wheel: Path, tmp_path: Path, change: Change, named: bool) -> None:
    out = tmp_path / "out" / wheel.name
    out.parent.mkdir()
    with WheelArchive(wheel) as archive:
        cuts = CutPoints(GOALS)
        assert verify_record(archive, extract={MEMBER: tmp_path / "lib"}, cuts={MEMBER: cuts}) == ()
        new = bytearray(CONTENT)
        changed = change(new, cuts.runs[1].content)
        (tmp_path / "new").write_bytes(new)
        rewrite = WheelRewrite(archive)
        rewrite.set_file(MEMBER, tmp_path / "new", changed=changed if named else [], blocks=cuts.index())
        if named or not changed:
            rewrite.write(out)
            with WheelArchive(out) as result:
                assert verify_record(result) == ()
                assert result.read(MEMBER) == new
        else:
            with pytest.raises(ArchiveError, match="would not have its new content"):
                rewrite.write(out)
            assert not out.exists()


def test_splice_detects_changed_window_of_copied_part(wheel: Path, tmp_path: Path) -> None:
    """Recompressed bytes before a copied part change its window, which only a checksum detects."""
    with WheelArchive(wheel) as archive:
        cuts = CutPoints(GOALS)
        verify_record(archive, extract={MEMBER: tmp_path / "lib"}, cuts={MEMBER: cuts})
        begin, _ = cuts.runs[1].content
        new = bytearray(CONTENT)
        new[begin - 1000 : begin] = bytes(1000)
        (tmp_path / "new").write_bytes(new)
        rewrite = WheelRewrite(archive)
        rewrite.set_file(MEMBER, tmp_path / "new", changed=[(1000, 1010)], blocks=cuts.index())
        with pytest.raises(ArchiveError, match="would not have its new content"):
            rewrite.write(tmp_path / wheel.name)


def test_write_and_verify_skips_copied_parts_of_split_stream(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[tuple[int, int]] = []
    original = file_member._verify_part

    def watched(packed: Iterator[bytes], content: int, start: int, stop: int, last: bool) -> None:
        parts.append((start, stop))
        original(packed, content, start, stop, last)

    monkeypatch.setattr(file_member, "_verify_part", watched)
    with WheelArchive(wheel) as archive:
        cuts = CutPoints(GOALS)
        verify_record(archive, extract={MEMBER: tmp_path / "lib"}, cuts={MEMBER: cuts})
        (tmp_path / "new").write_bytes(CONTENT)
        for changed, proven in ([], []), ([(0, 5)], [(0, cuts.runs[0].content[1])]):
            parts.clear()
            rewrite = WheelRewrite(archive)
            rewrite.set_file(MEMBER, tmp_path / "new", changed=changed, blocks=cuts.index())
            rewrite.write(tmp_path / wheel.name)
            assert parts == proven
