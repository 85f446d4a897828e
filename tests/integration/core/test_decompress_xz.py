"""Decompression of files packed by the real xz with several options."""

from __future__ import annotations

import io
import random
import shutil
import subprocess

import pytest

from core.unpack.decompress import chunks_of, decompressed

PLAIN = random.Random(1).randbytes(300_000) + b"words " * 100_000
BLOCKS = ("-T2", "--block-size=100000")


@pytest.mark.skipif(shutil.which("xz") is None, reason="xz is not on this machine")
@pytest.mark.parametrize(
    "options",
    [
        (),
        BLOCKS,
        ("-T2", "--block-list=1,300000,0"),
        ("-T1", "--block-size=100000"),
        *((*BLOCKS, f"--check={name}") for name in ("none", "crc64", "sha256")),
        (*BLOCKS, "--x86", "--lzma2=preset=1"),
    ],
)
def test_decompress_reads_output_of_xz(options: tuple[str, ...]) -> None:
    for plain in (b"", b"x", PLAIN):
        packed = subprocess.run(
            ["xz", "-1", "-c", *options], input=plain, capture_output=True, check=True
        ).stdout
        with decompressed(chunks_of(io.BytesIO(packed)), "xz") as pieces:
            assert b"".join(pieces) == plain
