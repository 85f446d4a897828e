"""A part of a stream that is proven by unpacking, and not once more by inflating what was written."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build.errors import ArchiveError
from ci_build.wheel import proof
from ci_build.wheel.archive import WheelArchive
from ci_build.wheel.deflate import BlockIndex, Seam, scan_blocks, scan_end
from ci_build.wheel.inflate import InflateError, inflate_sewn
from ci_build.wheel.rewrite import WheelRewrite
from ci_build.wheel.verify import verify_record
from tests.tiny_wheel import make_wheel

MEMBER = "tiny/big.so"
SIZE = 12_000_000
CONTENT = hashlib.shake_256(b"seam").digest(SIZE).translate(bytes(b % 11 + 65 for b in range(256)))
BEGIN, END = 6_000_000, 9_000_000
"""Between them no blocks are looked for."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"), {MEMBER: CONTENT})


def scanned(archive: WheelArchive) -> BlockIndex:
    member = archive[MEMBER]
    stream = archive.pread, member.data_offset, member.compressed_size
    first = scan_blocks(*stream, until=BEGIN)
    rest = scan_end(*stream, total=SIZE, goal=END)
    assert first is not None
    assert rest is not None
    return first.joined(rest)


def seam_of(index: BlockIndex) -> Seam:
    assert index.seam is not None
    return index.seam


def unpacked(archive: WheelArchive, seam: Seam | None) -> bytes:
    member = archive[MEMBER]
    return b"".join(inflate_sewn(archive.pread, member.data_offset, member.compressed_size, lambda: seam))


def test_a_stream_is_taken_apart_at_a_seam_and_gives_the_same_bytes(wheel: Path) -> None:
    with WheelArchive(wheel) as archive:
        seam = seam_of(scanned(archive))
        begin, end = seam.content
        assert BEGIN // 2 < begin < BEGIN + 300_000
        assert BEGIN < end <= END
        before = seam.crc32
        assert unpacked(archive, seam) == CONTENT
        assert (before, seam.crc32) == (None, zlib.crc32(CONTENT[begin:end]))
        assert unpacked(archive, None) == CONTENT


@pytest.mark.parametrize("which", ["packed", "content"])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("by", [-1, 1, 4096])
def test_a_seam_that_lies_elsewhere_does_not_pass(wheel: Path, which: str, end: int, by: int) -> None:
    with WheelArchive(wheel) as archive:
        right = seam_of(scanned(archive))
        wrong = dataclasses.replace(right)
        pair = [*getattr(right, which)]
        pair[end] += by
        setattr(wrong, which, (pair[0], pair[1]))
        try:
            got = unpacked(archive, wrong)
        except InflateError:
            return
        assert got != CONTENT


def test_a_seam_in_the_first_quarter_is_not_used(wheel: Path) -> None:
    with WheelArchive(wheel) as archive:
        seam = Seam((10, 20), (10, 20))
        assert unpacked(archive, seam) == CONTENT
        assert seam.crc32 is None


Change = Callable[[bytearray, tuple[int, int]], list[tuple[int, int]]]


def nothing(new: bytearray, seam: tuple[int, int]) -> list[tuple[int, int]]:
    return []


def at_both_ends(new: bytearray, seam: tuple[int, int]) -> list[tuple[int, int]]:
    new[1000:1010] = new[-1010:-1000] = b"0123456789"
    return [(1000, 1010), (SIZE - 1010, SIZE - 1000)]


def in_the_seam(new: bytearray, seam: tuple[int, int]) -> list[tuple[int, int]]:
    at = sum(seam) // 2
    new[at : at + 10] = b"0123456789"
    return [(at, at + 10)]


def just_before_the_seam(new: bytearray, seam: tuple[int, int]) -> list[tuple[int, int]]:
    new[seam[0] - 10 : seam[0]] = b"0123456789"
    return [(seam[0] - 10, seam[0])]


def shorter(new: bytearray, seam: tuple[int, int]) -> list[tuple[int, int]]:
    del new[seam[1] - 100_000 :]
    return []


@pytest.mark.parametrize("change", [nothing, at_both_ends, in_the_seam, just_before_the_seam, shorter])
@pytest.mark.parametrize("named", [True, False])
def test_what_is_written_is_the_content_or_is_refused(wheel: Path, tmp_path: Path, change: Change, named: bool) -> None:
    out = tmp_path / "out" / wheel.name
    out.parent.mkdir()
    with WheelArchive(wheel) as archive:
        index = scanned(archive)
        seam = seam_of(index)
        assert verify_record(archive, extract={MEMBER: tmp_path / "lib"}, seams={MEMBER: lambda: seam}) == ()
        assert seam.crc32 is not None
        new = bytearray(CONTENT)
        changed = change(new, seam.content)
        (tmp_path / "new").write_bytes(new)
        rewrite = WheelRewrite(archive)
        rewrite.set_file(MEMBER, tmp_path / "new", changed=changed if named else [], blocks=index)
        if named or not changed:
            rewrite.write(out)
            with WheelArchive(out) as result:
                assert verify_record(result) == ()
                assert result.read(MEMBER) == new
        else:
            with pytest.raises(ArchiveError, match="would not hold its new content"):
                rewrite.write(out)
            assert not out.exists()


def test_the_proof_leaves_out_what_was_proven(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[tuple[int, int]] = []
    original = proof._prove

    def watched(out: int, content: int, part: proof._Part) -> None:
        parts.append((part.start, part.stop))
        original(out, content, part)

    monkeypatch.setattr(proof, "_prove", watched)
    with WheelArchive(wheel) as archive:
        index = scanned(archive)
        seam = seam_of(index)
        (tmp_path / "new").write_bytes(CONTENT)

        def proven() -> list[tuple[int, int]]:
            parts.clear()
            rewrite = WheelRewrite(archive)
            rewrite.set_file(MEMBER, tmp_path / "new", changed=[], blocks=index)
            rewrite.write(tmp_path / wheel.name)
            return sorted(parts)

        assert proven() == [(0, SIZE)], "nobody has unpacked it yet"
        verify_record(archive, extract={MEMBER: tmp_path / "lib"}, seams={MEMBER: lambda: seam})
        assert proven() == [(0, seam.content[0]), (seam.content[1], SIZE)]
