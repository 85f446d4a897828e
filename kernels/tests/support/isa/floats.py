"""Floating-point arithmetic that numpy lacks.

Fused multiply-add, approximations, steps of a division.
"""

from __future__ import annotations

import numpy as np

from kernels.tests.support.isa.wave import Array, Wave

_TINY = np.float32(2.0**-126)


def fma(
    a: Array,
    b: Array,
    c: Array,
) -> Array:
    """Return a * b + c, rounded once to float32.

    The product is exact in float64. The sum is rounded to odd, so that the second
    rounding cannot err (S. Boldo and G. Melquiond, "Emulation of FMA and correctly
    rounded sums", 2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    words = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (words & 1 == 0)
    return (
        (words + np.where(inexact, np.where((error > 0) == (total > 0), 1, -1), 0))
        .view(np.float64)
        .astype(np.float32)
    )


def nearly(w: Wave, exact: Array) -> Array:
    """Return float32 numbers within 1 ULP of float64 ones, as the hardware does.

    The error is random, so kernels may rely neither on exact nor on repeatable results.
    """
    value = np.asarray(exact).astype(np.float32)
    # The neighbour on the other side of the exact number; the next one would be further
    # away than 1 ULP.
    other = np.sign(
        np.abs(np.asarray(exact)) - np.abs(value.astype(np.float64))
    ).astype(np.int32)
    moved = value.view(np.int32) + other * w.random.integers(
        0, 2, value.shape, np.int32
    )
    normal = (
        np.isfinite(value)
        & (np.abs(value) > 2 * _TINY)
        & (np.abs(value) < np.float32(2.0**127))
    )
    powers = np.frexp(value)[0] == np.float32(
        0.5
    )  # exact results of exact powers stay exact
    return np.where(normal & ~powers, moved.view(np.float32), value)


def _exponent(value: Array) -> Array:
    return (
        np.asarray(value, np.float32).view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)
    ).astype(np.int32)


def _denormal(value: Array) -> Array:
    return (np.abs(value) < _TINY) & (value != 0)


def div_scale(
    value: Array,
    denominator: Array,
    numerator: Array,
) -> tuple[Array, Array]:
    """Return the scaled operand, and in which lanes V_DIV_FMAS scales back (V_DIV_SCALE_F32).

    CDNA3 12.11, RDNA3 16.12.
    """
    v, d, n = np.broadcast_arrays(
        *(np.asarray(one, np.float32) for one in (value, denominator, numerator))
    )
    up = np.ldexp(v, 64)
    down = np.ldexp(v, -64)
    reciprocal = 1 / d.astype(np.float64)
    small_reciprocal = np.abs(reciprocal) < 2.0**-1022
    quotient = np.abs(n.astype(np.float64) / d.astype(np.float64))
    small_quotient = quotient < 2.0**-126
    conditions = [
        (n == 0) | (d == 0),
        _exponent(n) - _exponent(d) >= 96,
        _denormal(d),
        small_reciprocal & small_quotient,
        small_reciprocal,
        small_quotient,
        _exponent(n) <= 23,
    ]
    is_denominator = v == d
    is_numerator = v == n
    scaled = [
        np.full_like(v, np.nan),
        np.where(is_denominator, up, v),
        up,
        np.where(is_denominator, up, v),
        down,
        np.where(is_numerator, up, v),
        up,
    ]
    flags = [
        np.full(v.shape, flag)
        for flag in (False, True, False, True, False, True, False)
    ]
    return np.select(conditions, scaled, v), np.select(
        conditions, flags, np.zeros(v.shape, bool)
    )


def div_fmas(
    a: Array,
    b: Array,
    c: Array,
    scale: Array,
) -> Array:
    """Return the FMA of a division, scaled back where V_DIV_SCALE asked for it.

    V_DIV_FMAS_F32, CDNA3 12.11.
    """
    total = fma(a, b, c)
    return np.where(
        scale,
        np.where(
            _exponent(c) > 127,
            np.ldexp(total, 64),
            np.ldexp(total, -64),
        ),
        total,
    )


def div_fixup(
    quotient: Array,
    denominator: Array,
    numerator: Array,
) -> Array:
    """Return a quotient with the special cases of a division.

    V_DIV_FIXUP_F32, CDNA3 12.11 and RDNA3 16.12.
    """
    q, d, n = (
        np.asarray(one, np.float32) for one in (quotient, denominator, numerator)
    )
    sign = np.signbit(d) ^ np.signbit(n)
    zero_d = d == 0
    zero_n = n == 0
    inf_d = np.isinf(d)
    inf_n = np.isinf(n)
    conditions: list[Array] = [
        np.isnan(n),
        np.isnan(d),
        (zero_d & zero_n) | (inf_d & inf_n),
        zero_d | inf_n,
        inf_d | zero_n,
        _exponent(n) - _exponent(d) < -150,
    ]
    infinite = np.float32(np.inf)
    zero = np.float32(0)
    values: list[Array] = [
        n,
        d,
        np.float32(np.nan),
        np.where(sign, -infinite, infinite),
        np.where(sign, -zero, zero),
        zero,
    ]
    found: Array = np.where(sign, -np.abs(q), np.abs(q))
    for condition, value in zip(
        reversed(conditions),
        reversed(values),
        strict=True,
    ):
        found = np.where(condition, value, found)
    return found


def classes(value: Array, mask: Array) -> Array:
    """Return whether a number is in a chosen class (V_CMP_CLASS_F32: CDNA3 12.9, RDNA3 16.9)."""
    v = np.asarray(value, np.float32)
    signalling = np.isnan(v) & (v.view(np.uint32) & np.uint32(1 << 22) == 0)
    tests = [signalling, np.isnan(v) & ~signalling]
    normal = np.isfinite(v) & (np.abs(v) >= _TINY)
    small = _denormal(v)
    minus = np.signbit(v)
    tests += [minus & np.isinf(v), minus & normal, minus & small, minus & (v == 0)]
    tests += [
        ~minus & (v == 0),
        ~minus & small,
        ~minus & normal,
        ~minus & np.isinf(v),
    ]
    found = np.zeros(np.broadcast(v, mask).shape, bool)
    for bit, test in enumerate(tests):
        found |= test & (
            np.asarray(mask, np.uint32) >> np.uint32(bit) & np.uint32(1)
        ).astype(bool)
    return found


def bf16(value: Array) -> Array:
    """Return the bits of bfloat16 numbers, rounded to nearest even, as uint32."""
    words = np.asarray(value, np.float32).view(np.uint32)
    rounded = words + np.uint32(0x7FFF) + (
        words >> np.uint32(16) & np.uint32(1)
    ) >> np.uint32(16)
    return np.where(
        np.isnan(value),
        words >> np.uint32(16) | np.uint32(0x40),
        rounded,
    )


def to_u32(value: Array) -> Array:
    """Return numbers rounded towards zero and saturated (V_CVT_U32_F32: CDNA3 12.8)."""
    return np.clip(
        np.nan_to_num(np.asarray(value, np.float64), nan=0.0), 0, 0xFFFF_FFFF
    ).astype(np.uint32)
