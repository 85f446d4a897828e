"""Matrix instructions: CDNA3 chapter 7 ("Matrix Arithmetic Instructions") and 12.10.

Lane l holds of A the row l % rows, of B the column l % columns, and of both the depths
that start at (l // rows) * (values per lane). Results: rows in groups of four
registers, columns across the lanes. EXEC is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from kernels.tests.support.isa.encodings import VGPR, Instruction
from kernels.tests.support.isa.wave import Array, Wave

Execute = Callable[[Wave, Instruction], None]


def _bf16(words: Array) -> Array:
    halves = words.view(np.uint16)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _bytes(words: Array) -> Array:
    return words.view(np.int8)


@cache
def fp8_numbers(bias: int) -> Array:
    """Return the numbers of all bytes of fp8 E4M3.

    Bias 8 with one zero on CDNA3 (NaN is 0x80), 7 on CDNA4 (0x7F).
    """
    byte = np.arange(256)
    exponent = byte >> 3 & 15
    mantissa = byte & 7
    size = np.where(
        exponent > 0,
        (8 + mantissa) * 2.0 ** (exponent - 3 - bias),
        mantissa * 2.0 ** (-2 - bias),
    )
    numbers = np.where(byte >> 7, -size, size)
    numbers[[0x80] if bias == 8 else [0x7F, 0xFF]] = np.nan
    return numbers


def _fp8(bias: int) -> Callable[[Array], Array]:
    return lambda words: fp8_numbers(bias)[words.view(np.uint8)]


@cache
def _result_rows(size: int) -> Array:
    """Return the row of each result register and lane."""
    lane = np.arange(64)
    register = np.arange(size * size // 64)[:, None]
    return register // 4 * (256 // size) + lane // size * 4 + register % 4


def _mfma(
    size: int,
    depth: int,
    unpack: Callable[[Array], Array],
    dtype: Array,
    registers: int = 2,
) -> Execute:
    count = size * size // 64

    def execute(w: Wave, i: Instruction) -> None:
        assert not any(i.flags.values()), f"broadcasts of {i.name} are not known"
        columns = np.arange(64) % size
        rows = _result_rows(size)
        matrices = []
        for number in i.sources[:2]:
            words = np.ascontiguousarray(
                w.vector[number - VGPR : number - VGPR + registers].T
            )  # of each lane
            values = unpack(words).reshape(
                64 // size, size, -1
            )  # part of the depth, row, values of a lane
            matrices.append(
                values.transpose(1, 0, 2).reshape(size, depth).astype(np.float64)
            )
        product = matrices[0] @ matrices[1].T
        total = product[rows, columns]
        if i.sources[2] >= VGPR:
            at = i.sources[2] - VGPR
            total = total + w.vector[at : at + count].view(dtype)
        else:
            total = total + np.uint32(w.read(i.sources[2])).view(dtype)
        to = i.to - VGPR
        w.vector[to : to + count] = total.astype(dtype).view(np.uint32)

    return execute


MATRIX: dict[str, Execute] = {
    "v_mfma_f32_16x16x16_bf16": _mfma(16, 16, _bf16, np.float32),
    "v_mfma_f32_32x32x8_bf16": _mfma(32, 8, _bf16, np.float32),
    "v_mfma_f32_16x16x32_fp8_fp8": _mfma(16, 32, _fp8(8), np.float32),
    # CBSZ and BLGP of 0: both operands are fp8. The order along the depth does not
    # matter, as it is that of both.
    "v_mfma_f32_16x16x128_f8f6f4": _mfma(
        16,
        128,
        _fp8(7),
        np.float32,
        registers=8,
    ),
    "v_mfma_i32_32x32x16_i8": _mfma(32, 16, _bytes, np.int32),
}
