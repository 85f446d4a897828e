"""Packed and mixed vector instructions: CDNA3 6.7 and 12.10, RDNA3 16.10 (VOP3P)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.tests.support.isa import floats
from kernels.tests.support.isa.encodings import VGPR, Instruction
from kernels.tests.support.isa.wave import Array, Wave

Execute = Callable[[Wave, Instruction], None]


def _u(value: int) -> Array:
    return np.uint32(value)


def _pair(
    w: Wave,
    i: Instruction,
    which: int,
    half: int,
) -> Array:
    """Return an operand of a packed float32 instruction; OPSEL chooses the register of a pair."""
    number = i.sources[which]
    chosen = (i.select_high if half else i.select) >> which & 1
    register = number < 128 or number >= VGPR
    value = w.raw(number + chosen if register else number, i.literal).view(np.float32)
    negative = i.negative_high if half else i.negative
    return -value if negative >> which & 1 else value


def _packed_f32(count: int, apply: Callable[..., Array]) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        results = []
        for half in (0, 1):
            operands = (_pair(w, i, which, half) for which in range(count))
            results.append(np.asarray(apply(*operands)))
        for half, value in enumerate(results):
            w.store(i.to - VGPR + half, value.astype(np.float32).view(np.uint32))

    return execute


def _packed_add_f16(w: Wave, i: Instruction) -> None:
    total = _u(0)
    for half, (select, negative) in enumerate(
        ((i.select, i.negative), (i.select_high, i.negative_high))
    ):
        parts = []
        for which in (0, 1):
            word = w.raw(i.sources[which], i.literal) >> _u(16 * (select >> which & 1))
            value = word.astype(np.uint16).view(np.float16)
            parts.append(-value if negative >> which & 1 else value)
        total = total | np.asarray(parts[0] + parts[1], np.float16).view(
            np.uint16
        ).astype(np.uint32) << _u(16 * half)
    w.store(i.to - VGPR, total)


def _mixed(w: Wave, i: Instruction) -> None:
    """Multiply and add numbers that are each float32 or half of a register."""
    values = []
    for which, number in enumerate(i.sources):
        if i.select_high >> which & 1:
            word = w.raw(number, i.literal) >> _u(16 * (i.select >> which & 1))
            value = word.astype(np.uint16).view(np.float16).astype(np.float32)
        else:
            value = w.raw(number, i.literal).view(np.float32)
        value = np.abs(value) if i.negative_high >> which & 1 else value
        values.append(-value if i.negative >> which & 1 else value)
    total = np.broadcast_to(floats.fma(*values), w.lanes)
    register = i.to - VGPR
    if i.name == "v_fma_mix_f32":
        w.store(
            register,
            (
                total.view(np.uint32)
                if total.flags.c_contiguous
                else total.copy().view(np.uint32)
            ),
        )
        return
    half = total.astype(np.float16).view(np.uint16).astype(np.uint32)
    old = w.vector[register]
    low = (
        old & _u(0xFFFF_0000) | half
        if i.name == "v_fma_mixlo_f16"
        else old & _u(0xFFFF) | half << _u(16)
    )
    w.store(register, low)


PACKED: dict[str, Execute] = {
    "v_pk_mul_f32": _packed_f32(2, lambda a, b: a * b),
    "v_pk_add_f32": _packed_f32(2, lambda a, b: a + b),
    "v_pk_fma_f32": _packed_f32(3, floats.fma),
    "v_pk_add_f16": _packed_add_f16,
    "v_fma_mix_f32": _mixed,
    "v_fma_mixlo_f16": _mixed,
    "v_fma_mixhi_f16": _mixed,
}
