"""Parts of the tokens that AITER's kernels of MLA compute attention with, as get_meta_param of AITER's mla.py.

This module imports nothing of JAX: tests/integration/kernels/test_kernel_mla.py compares it with AITER's function.
"""

from __future__ import annotations

_MOST = 16
_OVERHEAD = 84.1
"""Cost of a part, in tokens."""
_FP8_TOKENS = {16: 128, 32: 128, 48: 64, 64: 64, 128: 32, 256: 32, 384: 32, 512: 32}
"""Heads times queries -> tokens of a step of the fp8 kernels."""


def count(sequences: int, tokens: int, heads: int, queries: int, units: int, *, fp8: bool) -> int:
    """Return the number of parts.

    Args:
        sequences: number of sequences.
        tokens: tokens of all sequences.
        heads: 16 or 128.
        queries: queries of each sequence, 1 to 4.
        units: compute units of the GPU.
        fp8: whether operands are fp8.
    """
    average = tokens / sequences

    def use(parts: int) -> float:
        blocks = sequences * parts
        return blocks / (-(-blocks // units) * units) * average / (average + _OVERHEAD * parts)

    best = max(range(1, _MOST + 1), key=use)
    if fp8:
        step = _FP8_TOKENS[heads * queries]
        best = min(best, int(average + step - 1) // step)
    return max(1, best)


def granule(heads: int, queries: int) -> int:
    """Return the fewest tokens of a part: a sequence has no more parts than its tokens divided by this, rounded up."""
    return 64 if (heads, queries) == (16, 1) else 16
