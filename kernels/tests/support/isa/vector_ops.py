"""Vector instructions: CDNA3 chapter 6 and 12.7 to 12.11, RDNA3 chapter 7 and 16.7 to 16.12."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from kernels.tests.support.isa import floats
from kernels.tests.support.isa.encodings import VCC, VGPR, Instruction
from kernels.tests.support.isa.wave import EXEC, Array, Wave

Execute = Callable[[Wave, Instruction], None]


def _u(value: int) -> Array:
    return np.uint32(value)


def _signed24(value: Array) -> Array:
    return (value << _u(8)).view(np.int32) >> np.int32(8)


def _unsigned24(value: Array) -> Array:
    return value & _u(0xFF_FFFF)


def _bfe(
    value: Array,
    at: Array,
    width: Array,
) -> Array:
    return value >> (at & _u(31)) & (_u(1) << (width & _u(31))) - _u(1)


def _bfe_signed(
    value: Array,
    at: Array,
    width: Array,
) -> Array:
    width = width & _u(31)
    moved = np.asarray(_bfe(value, at, width), np.int64)
    return np.where(
        width > 0,
        moved - ((moved >> np.maximum(width, 1).astype(np.int64) - 1 & 1) << width),
        0,
    ).astype(np.int32)


def _perm(
    first: Array,
    second: Array,
    selector: Array,
) -> Array:
    """Choose four bytes (V_PERM_B32: CDNA3 12.11).

    0 to 3 of the second operand, 4 to 7 of the first, 12 is zero.
    """
    both = np.asarray(first, np.uint64) << np.uint64(32) | np.asarray(second, np.uint64)
    total = _u(0)
    for byte in range(4):
        which = np.asarray(selector >> _u(8 * byte) & _u(0xFF))
        assert ((which < 8) | (which >= 12)).all(), (
            "sign bytes of v_perm_b32 are not known"
        )
        picked = (
            both >> ((which & _u(7)).astype(np.uint64) * np.uint64(8)) & np.uint64(0xFF)
        ).astype(np.uint32)
        picked = np.where(
            which == 12,
            _u(0),
            np.where(which > 12, _u(0xFF), picked),
        )
        total = total | picked << _u(8 * byte)
    return total


def _shift(count: Array, most: int) -> Array:
    return count & _u(most)


def _maximum(a: Array, b: Array) -> Array:
    return np.fmax(a, b)  # a number wins against a NaN (CDNA3 12.7: V_MAX_F32)


# Type of the result and of all operands -> name -> function.
_ONE_TYPE: dict[str, dict[str, Callable[..., Array]]] = {
    "f32": {
        "v_add_f32": lambda a, b: a + b,
        "v_sub_f32": lambda a, b: a - b,
        "v_subrev_f32": lambda a, b: b - a,
        "v_mul_f32": lambda a, b: a * b,
        "v_max_f32": _maximum,
        "v_max3_f32": lambda a, b, c: _maximum(_maximum(a, b), c),
        "v_fma_f32": floats.fma,
        "v_div_fixup_f32": floats.div_fixup,
    },
    "i32": {
        "v_max_i32": lambda a, b: np.maximum(a, b),
        "v_min_i32": lambda a, b: np.minimum(a, b),
    },
    "u16": {
        "v_mov_b16": lambda a: a,
        "v_or_b16": lambda a, b: a | b,
    },
    "u32": {
        "v_mov_b32": lambda a: a,
        "v_add_u32": lambda a, b: a + b,
        "v_add_nc_u32": lambda a, b: a + b,
        "v_sub_u32": lambda a, b: a - b,
        "v_subrev_u32": lambda a, b: b - a,
        "v_add_i32": lambda a, b: a + b,
        "v_sub_i32": lambda a, b: a - b,
        "v_add3_u32": lambda a, b, c: a + b + c,
        "v_max_u32": lambda a, b: np.maximum(a, b),
        "v_min_u32": lambda a, b: np.minimum(a, b),
        "v_mul_lo_u32": lambda a, b: a * b,
        "v_mul_hi_u32": lambda a, b: _high(a, b),
        "v_mul_u32_u24": lambda a, b: _unsigned24(a) * _unsigned24(b),
        "v_mad_u32_u24": lambda a, b, c: _unsigned24(a) * _unsigned24(b) + c,
        "v_and_b32": lambda a, b: a & b,
        "v_or_b32": lambda a, b: a | b,
        "v_xor_b32": lambda a, b: a ^ b,
        "v_or3_b32": lambda a, b, c: a | b | c,
        "v_and_or_b32": lambda a, b, c: a & b | c,
        "v_lshlrev_b32": lambda a, b: b << _shift(a, 31),
        "v_lshrrev_b32": lambda a, b: b >> _shift(a, 31),
        "v_lshl_add_u32": lambda a, b, c: (a << _shift(b, 31)) + c,
        "v_lshl_or_b32": lambda a, b, c: a << _shift(b, 31) | c,
        "v_bfe_u32": _bfe,
        "v_perm_b32": _perm,
    },
    "u64": {
        "v_mov_b64": lambda a: a,
    },
}
# Name -> types of the result and the operands, function.
_PLAIN: dict[str, tuple[str, str, Callable[..., Array]]] = {
    "v_ldexp_f32": ("f32", "f32 i32", lambda a, b: np.ldexp(a, np.clip(b, -400, 400))),
    "v_cvt_f32_f16": ("f32", "f16", lambda a: np.asarray(a, np.float32)),
    "v_cvt_f16_f32": ("f16", "f32", lambda a: np.asarray(a).astype(np.float16)),
    "v_cvt_f32_u32": ("f32", "u32", lambda a: np.asarray(a).astype(np.float32)),
    "v_cvt_f32_i32": ("f32", "i32", lambda a: np.asarray(a).astype(np.float32)),
    "v_cvt_u32_f32": ("u32", "f32", floats.to_u32),
    "v_mul_i32_i24": ("i32", "u32 u32", lambda a, b: _signed24(a) * _signed24(b)),
    "v_ashrrev_i32": ("i32", "u32 i32", lambda a, b: b >> _shift(a, 31).view(np.int32)),
    "v_lshlrev_b64": ("u64", "u32 u64", lambda a, b: b << _wide(_shift(a, 63))),
    "v_lshl_add_u64": (
        "u64",
        "u64 u32 u64",
        lambda a, b, c: (a << _wide(_shift(b, 7))) + c,
    ),
    "v_bfe_i32": ("i32", "u32 u32 u32", _bfe_signed),
    "v_pack_b32_f16": ("u32", "u16 u16", lambda a, b: _word(a) | _word(b) << _u(16)),
}
for _kind, _functions in _ONE_TYPE.items():
    for _name, _function in _functions.items():
        _count = _function.__code__.co_argcount
        _PLAIN[_name] = (_kind, " ".join([_kind] * _count), _function)


def _high(a: Array, b: Array) -> Array:
    return (_wide(a) * _wide(b) >> np.uint64(32)).astype(np.uint32)


def _wide(value: Array) -> Array:
    return np.asarray(value, np.uint64)


def _word(value: Array) -> Array:
    return np.asarray(value, np.uint32)


def _plain(name: str) -> Execute:
    result, operands, apply = _PLAIN[name]
    kinds = tuple(enumerate(operands.split()))

    def execute(w: Wave, i: Instruction) -> None:
        w.result(
            i, apply(*[w.operand(i, which, kind) for which, kind in kinds]), result
        )

    return execute


# Approximations within 1 ULP (CDNA3 12.8, RDNA3 16.8: VOP1).
_APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "v_rcp_f32": lambda a: 1 / a,
    "v_rcp_iflag_f32": lambda a: 1 / a,
    "v_sqrt_f32": np.sqrt,
    "v_exp_f32": np.exp2,
    "v_log_f32": np.log2,
}


def _approximate(name: str) -> Execute:
    apply = _APPROXIMATE[name]

    def execute(w: Wave, i: Instruction) -> None:
        w.result(
            i,
            floats.nearly(w, apply(np.asarray(w.operand(i, 0, "f32"), np.float64))),
            "f32",
        )

    return execute


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "ngt": lambda a, b: ~(a > b),
}


def _compare(name: str) -> Execute:
    """Return a comparison (CDNA3 12.9, RDNA3 16.9); V_CMPX of RDNA3 writes only EXEC."""
    start, how, kind = name.rsplit("_", 2)
    apply = _COMPARE[how]
    to_exec = start == "v_cmpx"

    def execute(w: Wave, i: Instruction) -> None:
        w.write_mask(
            EXEC if to_exec else i.scalar_to,
            apply(w.operand(i, 0, kind), w.operand(i, 1, kind)),
        )

    return execute


def _compare_class(w: Wave, i: Instruction) -> None:
    w.write_mask(
        i.scalar_to,
        floats.classes(w.operand(i, 0, "f32"), w.raw(i.sources[1], i.literal)),
    )


def _cndmask(w: Wave, i: Instruction) -> None:
    kind = "f32" if i.negative | i.absolute else "u32"
    if i.name.endswith("16"):
        kind = "u16"
    chosen = w.mask(i.sources[2] if len(i.sources) > 2 else VCC)
    w.result(
        i,
        np.where(
            chosen,
            w.operand(i, 1, kind),
            w.operand(i, 0, kind),
        ),
        kind,
    )


def _fmac(w: Wave, i: Instruction) -> None:
    old = w.vector[i.to - VGPR].view(np.float32)
    w.result(
        i,
        floats.fma(
            w.operand(i, 0, "f32"),
            w.operand(i, 1, "f32"),
            old,
        ),
        "f32",
    )


def _div_scale(w: Wave, i: Instruction) -> None:
    value, flag = floats.div_scale(*(w.operand(i, which, "f32") for which in range(3)))
    w.result(i, value, "f32")
    w.write_mask(i.scalar_to, flag)


def _div_fmas(w: Wave, i: Instruction) -> None:
    quotient, denominator, numerator = (
        w.operand(i, which, "f32") for which in range(3)
    )
    w.result(i, floats.div_fmas(quotient, denominator, numerator, w.mask(VCC)), "f32")


def _mad_wide(w: Wave, i: Instruction) -> None:
    product = _wide(w.operand(i, 0, "u32")) * _wide(w.operand(i, 1, "u32"))
    total = product + w.operand(i, 2, "u64")
    w.result(i, np.broadcast_to(total, w.lanes), "u64")
    w.write_mask(i.scalar_to, np.broadcast_to(total < product, w.lanes))


def _add_carry(w: Wave, i: Instruction) -> None:
    """Add with a carry out, and for V_ADD_CO_CI with a carry in (RDNA3 16.7)."""
    carry = np.zeros(w.lanes, bool)
    if i.name == "v_add_co_ci_u32":
        carry = w.mask(i.sources[2] if i.wide else VCC)
    total = (
        _wide(w.operand(i, 0, "u32"))
        + _wide(w.operand(i, 1, "u32"))
        + carry.astype(np.uint64)
    )
    w.result(i, total.astype(np.uint32), "u32")
    w.write_mask(i.scalar_to if i.wide else VCC, total >> np.uint64(32) != 0)


def _mbcnt(w: Wave, i: Instruction) -> None:
    """Count the set bits of a mask below this lane, in the low or the high 32 lanes."""
    lane = np.arange(w.lanes)
    first = 32 if "_hi_" in i.name else 0
    below = np.asarray(w.operand(i, 0, "u32"), np.uint64) & (
        (np.uint64(1) << np.clip(lane - first, 0, 32).astype(np.uint64)) - np.uint64(1)
    )
    w.result(
        i, np.bitwise_count(below).astype(np.uint32) + w.operand(i, 1, "u32"), "u32"
    )


def _first_lane(w: Wave, i: Instruction) -> None:
    """Read the first active lane; lane 0 if none is active (CDNA3 12.8: V_READFIRSTLANE_B32)."""
    value = np.broadcast_to(w.raw(i.sources[0]), w.lanes)
    w.write(i.to - VGPR, int(value[int(np.argmax(w.active))]))


def _lane(w: Wave, i: Instruction) -> None:
    """Read a lane, active or not (CDNA3 12.11: V_READLANE_B32)."""
    value = np.broadcast_to(w.raw(i.sources[0]), w.lanes)
    w.write(i.to - VGPR, int(value[w.read(i.sources[1]) % w.lanes]))


def _packed_bf16(w: Wave, i: Instruction) -> None:
    """Convert two numbers to bfloat16, rounded to nearest even (CDNA4 12.11: V_CVT_PK_BF16_F32)."""
    low, high = (floats.bf16(w.operand(i, which, "f32")) for which in (0, 1))
    w.result(i, low | high << _u(16), "u32")


def _accumulator(w: Wave, i: Instruction) -> None:
    w.store(i.to - VGPR, w.raw(i.sources[0], i.literal))


_COMPARISONS = [
    f"{start}_{how}_{kind}"
    for start, how, kind in itertools.product(
        ("v_cmp", "v_cmpx"), _COMPARE, ("f16", "f32", "i32", "u32", "u64")
    )
]
VECTOR: dict[str, Execute] = {
    **{name: _plain(name) for name in _PLAIN},
    **{name: _approximate(name) for name in _APPROXIMATE},
    **{name: _compare(name) for name in _COMPARISONS},
    "v_cmp_class_f32": _compare_class,
    "v_cndmask_b32": _cndmask,
    "v_cndmask_b16": _cndmask,
    "v_fmac_f32": _fmac,
    "v_div_scale_f32": _div_scale,
    "v_div_fmas_f32": _div_fmas,
    "v_mad_u64_u32": _mad_wide,
    "v_add_co_u32": _add_carry,
    "v_add_co_ci_u32": _add_carry,
    "v_mbcnt_lo_u32_b32": _mbcnt,
    "v_mbcnt_hi_u32_b32": _mbcnt,
    "v_readfirstlane_b32": _first_lane,
    "v_readlane_b32": _lane,
    "v_cvt_pk_bf16_f32": _packed_bf16,
    "v_accvgpr_read_b32": _accumulator,
    "v_accvgpr_write_b32": _accumulator,
}
