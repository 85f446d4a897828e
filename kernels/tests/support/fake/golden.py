"""Expected behaviour of handlers, derived from AITER's files alone.

Tables, code object metadata, host code.
"""

from __future__ import annotations

import csv
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment

CSV = {
    "gemm_bf16": "bf16gemm/bf16gemm_*.csv",
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
                    start = note["n_offset"] + 12 + 8
                    size = note["n_descsz"]
                    file.seek(start)
                    found = msgspec.msgpack.decode(file.read(size))["amdhsa.kernels"]
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
def rows(
    hsa: Path,
    gfx: str,
    module: str,
) -> tuple[Row, ...]:
    """Return the kernels of a module for a target, in the order of AITER's table."""
    (path,) = (hsa / gfx).glob(CSV[module])
    with path.open(newline="", encoding="utf-8") as file:
        found = []
        for line in csv.DictReader(file):
            found.append({key.lower(): value for key, value in line.items()})
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


def row_of(table: Sequence[Row], kernel: str) -> Row:
    """Return the row of a kernel."""
    return next(row for row in table if row.kernel == kernel)


def ceil(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def packed(path: Path, values: Mapping[str, int | float]) -> bytes:
    """Return packed kernel arguments.

    Named values at the metadata's offsets, zero everywhere else.
    """
    kernel = metadata(path)
    data = bytearray(kernel[".kernarg_segment_size"])
    left = dict(values)
    for argument in kernel[".args"]:
        name = argument.get(".name", "")
        if name in left:
            value = left.pop(name)
            # The metadata of some pointers says that they have 4 bytes.
            wide = argument[".size"] == 8 or value >= 2**32
            kind = "f" if isinstance(value, float) else "Q" if wide else "I"
            struct.pack_into("<" + kind, data, argument[".offset"], value)
    assert not left, f"{path.name} has no arguments {', '.join(left)}"
    return bytes(data)
