"""Expected behaviour of handlers, derived from AITER's files alone: tables, code object metadata, host code."""

from __future__ import annotations

import csv
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment

CSV = {
    "gemm_bf16": "bf16gemm/bf16gemm_outf32.csv",
    "gemm_i8": "i8gemm/i8gemm_bf16_perTokenI8.csv",
    "gemm_fp4": "f4gemm/f4gemm_bf16_per1x32Fp4.csv",
}


@cache
def kernels(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the kernels of a code object by name, as described in its AMDGPU metadata."""
    with path.open("rb") as file:
        for segment in ELFFile(file).iter_segments("PT_NOTE"):
            assert isinstance(segment, NoteSegment)
            for note in segment.iter_notes():
                if note["n_name"] == "AMDGPU":
                    start, size = note["n_offset"] + 12 + 8, note["n_descsz"]
                    file.seek(start)
                    found = msgpack.unpackb(file.read(size), strict_map_key=False)["amdhsa.kernels"]
                    return {kernel[".name"]: kernel for kernel in found}
    raise AssertionError(f"{path} has no metadata")


def metadata(path: Path) -> Mapping[str, Any]:
    """Return the only kernel of a code object."""
    (kernel,) = kernels(path).values()
    return kernel


@cache
def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel of a table."""

    kernel: str
    path: Path
    tile_m: int
    tile_n: int
    splits: bool
    shuffled: bool


@cache
def rows(hsa: Path, gfx: str, module: str) -> tuple[Row, ...]:
    """Return the kernels of a module for a target, in the order of AITER's table."""
    path = hsa / gfx / CSV[module]
    with path.open(newline="", encoding="utf-8") as file:
        found = [{key.lower(): value for key, value in line.items()} for line in csv.DictReader(file)]
    return tuple(
        Row(
            kernel=line["knl_name"],
            path=path.parent / (line.get("knl_file") or line["co_name"]),
            tile_m=int(line.get("tilem") or line["tile_m"]),
            tile_n=int(line.get("tilen") or line["tile_n"]),
            splits=line.get("splitk", "1") == "1",
            shuffled=line.get("bpreshuffle", "0") == "1",
        )
        for line in found
    )


def ceil(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def best(options: Sequence[tuple[Row, int]], m: int, n: int, units: int) -> tuple[Row, int]:
    """Return the row and split with the fewest rounds.

    Ties are broken by the least padding, then the fewest idle units, then the most work per byte.
    """

    def key(option: tuple[Row, int]) -> tuple[int, int, int, float, int]:
        row, split = option
        blocks = ceil(m, row.tile_m) * (n // row.tile_n) * split
        rounds = ceil(blocks, units)
        efficiency = row.tile_m * row.tile_n / (row.tile_m + row.tile_n)
        return rounds, -m % row.tile_m, rounds * units - blocks, -efficiency, split

    return min(options, key=key)  # the first of equal options


def bf16_options(table: Sequence[Row], m: int, n: int, k: int, units: int, splitk: int) -> list[tuple[Row, int]]:
    """Return the options of first-generation kernels, all of which can split.

    Without `splitk` they split to fill the compute units: at most 64 parts, and no part of k empty.
    """
    found = []
    for row in table:
        if n % row.tile_n or k % 64 or splitk > min(64, k // 64):
            continue
        blocks = ceil(m, row.tile_m) * (n // row.tile_n)
        fill = min(units // blocks, 64, k // 64) if blocks < units else 1
        found.append((row, splitk or max(1, fill)))
    return found


def i8_options(table: Sequence[Row], m: int, n: int, k: int, units: int, splitk: int) -> list[tuple[Row, int]]:
    """Return the options: non-empty parts of multiples of 128 that run at once; without `splitk`, at most 8."""
    found = []
    for row in table:
        most = units // (ceil(m, row.tile_m) * ceil(n, row.tile_n))
        fill = min(most, 8)
        wanted = [splitk] if splitk else [split for split in range(fill, 1, -1) if whole_parts(k, split)][:1] or [1]
        if k % 128 or n % row.tile_n or wanted[0] > max(1, min(most, 16)):
            continue
        if whole_parts(k, wanted[0]):
            found.append((row, wanted[0]))
    return [(row, split) for row, split in found if split == 1 or row.splits]


def whole_parts(k: int, split: int) -> bool:
    """Return whether K has so many non-empty parts of multiples of 128."""
    return ceil(k, ceil(ceil(k, split), 128) * 128) == split


def fp4_options(table: Sequence[Row], n: int, k: int, splitk: int, *, shuffled: bool) -> list[tuple[Row, int]]:
    """Return the options: with `splitk` above 1 the kernels that split, else the other kernels."""
    split = splitk or 1
    if k % (256 * split):
        return []
    return [
        (row, split) for row in table if row.shuffled == shuffled and n % row.tile_n == 0 and row.splits == (split > 1)
    ]


def packed(path: Path, values: Mapping[str, int | float]) -> bytes:
    """Return packed kernel arguments: named values at the metadata's offsets, zero everywhere else."""
    kernel = metadata(path)
    data = bytearray(kernel[".kernarg_segment_size"])
    left = dict(values)
    for argument in kernel[".args"]:
        name = argument.get(".name", "")
        if name in left:
            value = left.pop(name)
            kind = "f" if isinstance(value, float) else {8: "Q", 4: "I"}[argument[".size"]]
            struct.pack_into("<" + kind, data, argument[".offset"], value)
    assert not left, f"{path.name} has no arguments {', '.join(left)}"
    return bytes(data)
