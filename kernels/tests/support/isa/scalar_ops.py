"""Scalar instructions: CDNA3 chapter 5 and 12.1 to 12.5, RDNA3 chapter 6 and 16.1 to 16.5."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kernels.tests.support.isa.encodings import VCC, Instruction
from kernels.tests.support.isa.wave import EXEC, Wave

Execute = Callable[[Wave, Instruction], None]
_WORD = 0xFFFF_FFFF
_WIDE = 0xFFFF_FFFF_FFFF_FFFF


def _s(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _overflows(value: int) -> int:
    return int(not -(1 << 31) <= value < 1 << 31)


# Name -> function of two operands and SCC that returns the result and SCC; None keeps
# SCC.
_ARITHMETIC: dict[str, Callable[[int, int, int], tuple[int, int | None]]] = {
    "s_add_u32": lambda a, b, _: (a + b, a + b >> 32),
    "s_addc_u32": lambda a, b, c: (a + b + c, a + b + c >> 32),
    "s_add_i32": lambda a, b, _: (a + b, _overflows(_s(a) + _s(b))),
    "s_sub_u32": lambda a, b, _: (a - b, int(a < b)),
    "s_sub_i32": lambda a, b, _: (a - b, _overflows(_s(a) - _s(b))),
    "s_min_u32": lambda a, b, _: (min(a, b), int(a < b)),
    "s_cselect_b32": lambda a, b, c: (a if c else b, None),
    "s_cselect_b64": lambda a, b, c: (a if c else b, None),
    "s_mul_i32": lambda a, b, _: (a * b, None),
    "s_mul_hi_u32": lambda a, b, _: (a * b >> 32, None),
}


# Name -> function of two operands; SCC is 1 if the result is not 0.
_BITWISE: dict[str, Callable[[int, int], int]] = {
    "s_and_b32": lambda a, b: a & b,
    "s_and_b64": lambda a, b: a & b,
    "s_or_b32": lambda a, b: a | b,
    "s_or_b64": lambda a, b: a | b,
    "s_xor_b32": lambda a, b: a ^ b,
    "s_xor_b64": lambda a, b: a ^ b,
    "s_andn2_b64": lambda a, b: a & ~b,
    "s_and_not1_b32": lambda a, b: a & ~b,
    "s_lshl_b32": lambda a, b: a << (b & 31),
    "s_lshl_b64": lambda a, b: a << (b & 63),
    "s_lshr_b32": lambda a, b: a >> (b & 31),
    "s_ashr_i32": lambda a, b: _s(a) >> (b & 31),
    "s_bfe_u32": lambda a, b: _field(a, b),
}


def _field(value: int, where: int) -> int:
    """Return a bit field: offset in bits 4:0, width in bits 22:16."""
    return value >> (where & 31) & (1 << (where >> 16 & 127)) - 1


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _sop2(name: str) -> Execute:
    wide = name.endswith("64")
    every_bit = _WIDE if wide else _WORD

    def execute(w: Wave, i: Instruction) -> None:
        first, second = i.sources
        a = w.read_wide(first, i.literal) if wide else w.read(first, i.literal)
        # The count of a shift is one register.
        narrow = not wide or "lsh" in name
        b = w.read(second, i.literal) if narrow else w.read_wide(second, i.literal)
        if name in _BITWISE:
            value = _BITWISE[name](a, b)
            after: int | None = int(value & every_bit != 0)
        else:
            value, after = _ARITHMETIC[name](a, b, w.scc)
        if wide:
            w.write_wide(i.to, value)
        else:
            w.write(i.to, value)
        w.scc = w.scc if after is None else after

    return execute


def _compare(name: str) -> Execute:
    _, how, kind = name.split("_")[-3:]
    apply = _COMPARE[how]

    def execute(w: Wave, i: Instruction) -> None:
        values = [
            w.read_wide(n, i.literal) if kind == "u64" else w.read(n, i.literal)
            for n in i.sources
        ]
        if kind == "i32":
            values = [_s(value) for value in values]
        w.scc = int(apply(*values))

    return execute


def _compare_constant(w: Wave, i: Instruction) -> None:
    apply = _COMPARE[i.name.split("_")[2]]
    w.scc = int(apply(w.read(i.to), i.immediate & 0xFFFF))  # unsigned comparisons only


def _add_constant(w: Wave, i: Instruction) -> None:
    total = _s(w.read(i.to)) + i.immediate
    w.scc = _overflows(total)
    w.write(i.to, total)


def _mov_wide(w: Wave, i: Instruction) -> None:
    w.write_wide(i.to, w.read_wide(i.sources[0], i.literal))


def _saveexec(change: Callable[[int, int], int]) -> Execute:
    """Return an instruction that saves EXEC, then combines the source with EXEC."""

    def execute(w: Wave, i: Instruction) -> None:
        wide = w.lanes == 64
        source = w.read_wide(i.sources[0]) if wide else w.read(i.sources[0])
        before = w.mask_bits(EXEC)
        after = change(source, before) & (1 << w.lanes) - 1
        write = w.write_wide if wide else w.write
        write(i.to, before)
        write(EXEC, after)
        w.scc = int(after != 0)

    return execute


def _leading_zeros(w: Wave, i: Instruction) -> None:
    value = w.read(i.sources[0], i.literal)
    w.write(i.to, 32 - value.bit_length() if value else -1)


# Program flow (CDNA3 chapter 4, RDNA3 chapter 5). A branch counts words from the
# following instruction.
_TAKEN: dict[str, Callable[[Wave], bool]] = {
    "s_branch": lambda w: True,
    "s_cbranch_scc0": lambda w: not w.scc,
    "s_cbranch_scc1": lambda w: bool(w.scc),
    "s_cbranch_vccz": lambda w: not w.mask_bits(VCC),
    "s_cbranch_vccnz": lambda w: bool(w.mask_bits(VCC)),
    "s_cbranch_execz": lambda w: not w.mask_bits(EXEC),
    "s_cbranch_execnz": lambda w: bool(w.mask_bits(EXEC)),
}


def _branch(name: str) -> Execute:
    taken = _TAKEN[name]

    def execute(w: Wave, i: Instruction) -> None:
        if taken(w):
            w.at += 4 * i.immediate

    return execute


def _waitcnt(w: Wave, i: Instruction) -> None:
    """Wait (CDNA3 4.4 and 12.5, RDNA3 5.6 and 16.5: S_WAITCNT).

    VMCNT and LGKMCNT have other bits in each.
    """
    word = i.immediate & 0xFFFF
    if w.rdna:
        w.wait("vm", word >> 10 & 63)
        w.wait("lgkm", word >> 4 & 63)
    else:
        w.wait("vm", word & 15 | word >> 10 & 48)
        w.wait("lgkm", word >> 8 & 15)


def _end(w: Wave, i: Instruction) -> None:
    for counter in ("vm", "vs", "lgkm"):
        w.wait(counter, 0)
    w.ended = True


def _barrier(w: Wave, i: Instruction) -> None:
    w.waiting = True


def _nothing(w: Wave, i: Instruction) -> None:
    """Do nothing: hints, and waits for units that finish each instruction here."""


_COMPARISONS = [
    f"s_cmp_{how}_{kind}"
    for how, kind in itertools.product(_COMPARE, ("i32", "u32", "u64"))
]
SCALAR: dict[str, Execute] = {
    **{name: _sop2(name) for name in (*_ARITHMETIC, *_BITWISE)},
    **{name: _branch(name) for name in _TAKEN},
    **{name: _compare(name) for name in _COMPARISONS},
    "s_cmpk_eq_u32": _compare_constant,
    "s_cmpk_gt_u32": _compare_constant,
    "s_addk_i32": _add_constant,
    "s_movk_i32": lambda w, i: w.write(i.to, i.immediate),
    "s_mov_b32": lambda w, i: w.write(i.to, w.read(i.sources[0], i.literal)),
    "s_mov_b64": _mov_wide,
    "s_and_saveexec_b64": _saveexec(lambda s, e: s & e),
    "s_and_saveexec_b32": _saveexec(lambda s, e: s & e),
    "s_andn2_saveexec_b64": _saveexec(lambda s, e: s & ~e),
    "s_and_not1_saveexec_b32": _saveexec(lambda s, e: s & ~e),
    "s_flbit_i32_b32": _leading_zeros,
    "s_clz_i32_u32": _leading_zeros,
    "s_waitcnt": _waitcnt,
    "s_waitcnt_vscnt": lambda w, i: w.wait("vs", i.immediate),
    "s_endpgm": _end,
    "s_barrier": _barrier,
    **dict.fromkeys(
        (
            "s_nop",
            "s_delay_alu",
            "s_clause",
            "s_setprio",
            "s_set_inst_prefetch_distance",
        ),
        _nothing,
    ),
    **dict.fromkeys(("s_waitcnt_depctr", "v_nop", "buffer_gl0_inv"), _nothing),
}
