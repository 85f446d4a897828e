"""Limits of the handlers: the arguments that each custom call accepts, in one table.

A call that breaks a limit is never lowered; the text of the limit is the reason that
`info` and errors show. The handlers in kernels/src check the same limits again:
kernels/tests/integration/handlers/test_kernel_limits.py lowers random shapes and
compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from jax_aiter._check import proven
from jax_aiter._table import (
    AITER,
    CK_RMS_NORM,
    FLATMM_FP8,
    GEMM_BF16,
    GEMM_FP4,
    GEMM_FP8_MI350,
    GEMM_I8,
    MHA_BWD,
    MHA_BWD_ASM,
    MHA_FWD,
    MHA_FWD_ASM,
    RMS_NORM,
    RMS_NORM_BWD,
    RMS_NORM_WITH_ADD,
    FfiTarget,
)

Limit = tuple[Callable[[Any], bool], str]
"""Condition of a call's facts, and the reason if it is false; {names} are replaced by facts."""

INT = 2**31 - 1
"""Largest size, stride or offset of most kernels."""
BUFFER = 2**32 - 1
"""Bytes within the range of a buffer descriptor."""

_UNPROVEN = ", unless constraints of the symbolic sizes exclude it"
_ASM = "AITER's assembly kernels"
_CK = "Composable Kernel"


def obstacle(target: FfiTarget, **facts: Any) -> str:
    """Return the reason why a custom call does not accept these facts; empty if it does.

    Limits must hold for every value of a symbolic size.

    Args:
        target: the custom call.
        facts: m, n, k and dtype of products; rows, n and dtype of normalisations; for
            attention the names of `jax_aiter.mha._kernels.facts`.
    """
    known = SimpleNamespace(**facts)
    for holds, text in LIMITS[target.name]:
        fits = proven(partial(holds, known))
        if fits is None:
            return text.format(**facts) + _UNPROVEN
        if not fits:
            return text.format(**facts)
    return ""


def _within(limit: int, *sizes: Any) -> bool:
    # max(sizes) would compare symbolic sizes with one another.
    return all(size <= limit for size in sizes)


def _multiple(name: str, factor: int) -> Limit:
    return (
        lambda f: getattr(f, name) % factor == 0 and getattr(f, name) > 0,
        f"{name.upper()} is {{{name}}}, not a multiple of {factor}",
    )


def _least(name: str, least: int) -> Limit:
    return (
        lambda f: getattr(f, name) >= least,
        f"{name.upper()} is {{{name}}}, less than {least}",
    )


def _product(bits: int, out: int, *more: Limit) -> tuple[Limit, ...]:
    # Limits of a product whose factors have `bits` for each element, and its result
    # `out` bytes.
    def addressable(f: Any) -> bool:
        factors = (f.m * f.k * bits // 8, f.n * f.k * bits // 8)
        return _within(BUFFER, *factors, f.m * f.n * out)

    return (
        *more,
        (lambda f: f.m > 0, "M is 0"),
        (
            lambda f: _within(INT, f.m, f.n, f.k),
            "M={m}, N={n}, K={k}: the kernels' sizes end at 2**31 - 1",
        ),
        (
            addressable,
            "M={m}, N={n}, K={k}: an operand or the result has 4 GiB or more",
        ),
    )


def _elements(f: Any) -> tuple[Any, ...]:
    # Of q, k, v and out: one sequence, or all packed ones.
    return (
        f.queries * f.heads * f.depth,
        f.keys * f.key_heads * f.depth,
        f.keys * f.key_heads * f.value_depth,
        f.queries * f.heads * f.value_depth,
    )


def _gradient(f: Any) -> tuple[Any, Any]:
    # Elements of the largest of q and dout, and of dk and dv, which have a head for each
    # head of q.
    widest = f.heads * max(f.depth, f.value_depth)
    return f.queries * widest, f.keys * widest


def _gradient_bytes(f: Any) -> tuple[Any, Any, Any]:
    # Of the same in 16 bits, and of dq in float32.
    queries, keys = _gradient(f)
    return queries * 2, keys * 2, f.queries * f.heads * f.depth * 4


_SIZES: Limit = (
    lambda f: _within(
        INT,
        f.batch,
        f.queries,
        f.keys,
        f.heads,
        f.sequences,
    ),
    "the kernels' sizes end at 2**31 - 1",
)
_NOT_EMPTY: Limit = (
    lambda f: all(size > 0 for size in (f.batch, f.queries, f.keys, f.heads)),
    "there are no queries or no keys",
)
_BATCH: Limit = (
    lambda f: not f.padded,
    "AITER's kernels do not support sequence lengths in a batch",
)
_ANY_GRADIENT: tuple[Limit, ...] = (
    _BATCH,
    (
        lambda f: not f.deterministic,
        "AITER's kernels sum gradients in any order, which deterministic=True forbids",
    ),
    (lambda f: not f.dbias, "AITER's kernels compute no gradient of a bias"),
    (lambda f: not f.dslopes, "AITER's kernels compute no gradient of ALiBi's slopes"),
    (
        lambda f: not f.dropout or f.forward == AITER,
        "its dropout differs from that of the forward direction, which XLA computed",
    ),
)
_LENGTHS: Limit = (
    lambda f: not f.packed or min(f.longest) > 0,
    "packed sequences of a symbolic length need max_seqlen_q and max_seqlen_k",
)
_ANY_ASM: tuple[Limit, ...] = (
    (lambda f: not f.bias and not f.slopes, f"{_ASM} support neither bias nor ALiBi"),
    (lambda f: not f.dropout, f"{_ASM} do not support dropout"),
    (
        lambda f: f.queries * 4 <= INT and (f.packed or f.heads * f.queries <= INT),
        f"{_ASM} need fewer queries than {{queries}} for {{heads}} heads",
    ),
    _SIZES,
    _NOT_EMPTY,
)
_ASM_ATTENTION: tuple[Limit, ...] = (
    (lambda f: f.dtype == "bfloat16", f"{_ASM} need bfloat16, not {{dtype}}"),
    (
        lambda f: (
            (f.depth, f.value_depth) == (128, 128)
            or ((f.depth, f.value_depth) == (192, 128) and f.unequal)
        ),
        (
            f"{_ASM} need a head dimension of 128 (q and k also 192, if the wheel has"
            " such kernels for the GPU), not [{depth}, {value_depth}]"
        ),
    ),
    *_ANY_ASM,
    (lambda f: f.window in ((-1, -1), (-1, 0)), f"{_ASM} do not support windows"),
    (lambda f: f.complete or f.packed, f"{_ASM} require that each query sees a key"),
    _BATCH,
    (
        lambda f: _within(INT // 2, *_elements(f)),
        f"{_ASM} need sequences of less than 2 GiB",
    ),
    # A block has 256 queries, whose rows have a 32-bit stride.
    (
        lambda f: 256 * f.heads * f.depth * 2 <= INT,
        f"{_ASM} need fewer heads than {{heads}}",
    ),
)
_GRADIENT = f"{_ASM} of the gradient need"
_PLAIN = ((-1, -1), (-1, 0))
_FEW_QUERIES = 16
_ASM_GRADIENT: tuple[Limit, ...] = (
    *_ANY_GRADIENT,
    (
        lambda f: f.dtype in ("float16", "bfloat16"),
        f"{_GRADIENT} float16 or bfloat16, not {{dtype}}",
    ),
    (
        lambda f: (
            (f.depth == f.value_depth and 64 <= f.depth <= 192 and f.depth % 8 == 0)
            or (
                (f.depth, f.value_depth) == (192, 128)
                and f.unequal_gradient
                and f.window in _PLAIN
                and not f.packed
            )
        ),
        (
            f"{_GRADIENT} equal head dimensions, a multiple of 8 from 64 to 192, not"
            " [{depth}, {value_depth}]"
        ),
    ),
    *_ANY_ASM,
    (lambda f: f.window in _PLAIN or not f.packed, f"{_GRADIENT} a batch for windows"),
    (
        lambda f: f.window in _PLAIN or 64 < f.depth <= 128,
        f"{_GRADIENT} a head dimension of 72 to 128 for windows, not {{depth}}",
    ),
    (
        lambda f: f.window in _PLAIN or max(f.window) > 0,
        f"{_GRADIENT} a window of more than the diagonal, not {{window}}",
    ),
    (
        lambda f: f.packed or f.queries > _FEW_QUERIES,
        "AITER does not use its assembly kernels of the gradient for {queries} queries",
    ),
    _LENGTHS,
    (
        lambda f: _within(INT // 2, *_gradient(f)),
        f"{_GRADIENT} sequences of less than 2 GiB",
    ),
    (
        lambda f: _within(BUFFER, *(f.batch * size for size in _gradient_bytes(f))),
        f"{_GRADIENT} gradients of less than 4 GiB, q's in float32",
    ),
    # A block has up to 256 keys, whose rows have a 32-bit stride.
    (
        lambda f: 256 * f.key_heads * f.depth * 2 <= INT,
        f"{_GRADIENT} fewer heads than {{key_heads}}",
    ),
)
_CK_ATTENTION: tuple[Limit, ...] = (
    (
        lambda f: f.dtype in ("float16", "bfloat16"),
        f"{_CK}'s attention needs float16 or bfloat16, not {{dtype}}",
    ),
    (
        lambda f: all(
            depth % 8 == 0 and 0 < depth <= 256 for depth in (f.depth, f.value_depth)
        ),
        (
            f"{_CK} needs head dimensions of multiples of 8 up to 256, not [{{depth}},"
            " {value_depth}]"
        ),
    ),
    (lambda f: f.bias in ("", f.dtype), f"{_CK} needs a bias of the dtype of q"),
    (
        lambda f: not f.dropout or not (f.bias or f.slopes or f.returns_lse),
        f"with dropout, {_CK} supports neither bias, ALiBi nor lse",
    ),
    (
        lambda f: _within(INT, *_elements(f)),
        f"{_CK} needs sequences of fewer than 2**31 elements",
    ),
    (
        lambda f: f.heads * f.queries <= INT,
        f"{_CK} needs fewer queries than {{queries}} for {{heads}} heads",
    ),
    _LENGTHS,
    _SIZES,
    _NOT_EMPTY,
)


def _common_forward(f: Any) -> bool:
    depths = (f.depth, f.value_depth)
    return f.attention != "common" or max(depths) <= 128 or depths == (256, 256)


def _common_gradient(f: Any) -> bool:
    # In packed sequences the handler drops a window that reaches the longest one's keys,
    # but never a causal mask.
    depths = (f.depth, f.value_depth)
    masked = f.window[1] == 0 or (not f.packed and f.window != (-1, -1))
    if f.attention != "common" or depths == (256, 256):
        return True
    if not masked:
        return False
    return depths == (64, 64) or (f.packed and 64 < max(depths) <= 128)


_COMMON = f"{_CK}'s kernels of this wheel, built with --attention=common,"
_COMMON_PLAIN: Limit = (
    lambda f: f.attention != "common" or not (f.bias or f.slopes or f.dropout),
    f"{_COMMON} support neither bias, ALiBi nor dropout",
)
_NORM: tuple[Limit, ...] = (
    (lambda f: f.dtype != "float64", "the portable kernels do not support float64"),
    (lambda f: f.rows > 0 and f.n > 0, "there are no rows"),
)

LIMITS: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        GEMM_BF16.name: _product(
            16,
            4,
            (lambda f: f.dtype == "bfloat16", "the kernels need bfloat16, not {dtype}"),
            _multiple("k", 64),
            _multiple("n", 64),
        ),
        GEMM_I8.name: _product(8, 2, _multiple("n", 128), _multiple("k", 128)),
        # M is padded to whole groups of rows before.
        GEMM_FP4.name: _product(4, 2, _multiple("n", 128), _multiple("k", 256)),
        GEMM_FP8_MI350.name: _product(
            8,
            2,
            _least("m", 16),
            _least("k", 512),
            _multiple("k", 128),
            _multiple("n", 256),
        ),
        FLATMM_FP8.name: _product(8, 2, _multiple("k", 128), _multiple("n", 256)),
        MHA_FWD_ASM.name: _ASM_ATTENTION,
        MHA_FWD.name: (
            _BATCH,
            *_CK_ATTENTION,
            _COMMON_PLAIN,
            (
                _common_forward,
                (
                    f"{_COMMON} need head dimensions up to 128, or of 256, not"
                    " [{depth}, {value_depth}]"
                ),
            ),
        ),
        MHA_BWD_ASM.name: _ASM_GRADIENT,
        # Gradients of k and v have a head for each head of q.
        MHA_BWD.name: (
            *_ANY_GRADIENT,
            *_CK_ATTENTION,
            (lambda f: not f.dlse, f"{_CK} does not support a cotangent of lse"),
            (
                lambda f: f.keys * f.heads * max(f.depth, f.value_depth) <= INT,
                f"{_CK} needs gradients of fewer than 2**31 elements of a sequence",
            ),
            _COMMON_PLAIN,
            (
                _common_gradient,
                (
                    f"{_COMMON} have gradients for a head dimension of 256 and for masks:"
                    " 64, and to 128 in packed sequences; not [{depth}, {value_depth}]"
                ),
            ),
        ),
        CK_RMS_NORM.name: (
            (
                lambda f: f.dtype in ("float16", "bfloat16"),
                "AITER's kernels need float16 or bfloat16, not {dtype}",
            ),
            (lambda f: f.rows > 0, "there are no rows"),
            (lambda f: f.n * 2 <= INT, "AITER's kernels need rows of less than 2 GiB"),
        ),
        RMS_NORM.name: _NORM,
        RMS_NORM_WITH_ADD.name: _NORM,
        RMS_NORM_BWD.name: _NORM,
    }
)
"""Custom call -> its limits, the most general first."""
