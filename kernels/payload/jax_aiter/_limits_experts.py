"""Limits of the handlers of a mixture of experts, a part of the table in `_limits`."""

from __future__ import annotations

from jax_aiter._limit import BUFFER, INT, Limit

_ASM = "AITER's assembly kernels"
_FMOE_TILES = (128, 192, 320, 448)
"""Factors of the tiles of the inner dimension: 256, 384 and 512 are multiples."""
EXPERTS: tuple[Limit, ...] = (
    (lambda f: f.topk <= 127, f"{_ASM} need at most 127 experts for each token, not {{topk}}"),
    (lambda f: f.m < 1 << 24, f"{_ASM} need fewer than 2**24 tokens"),
    (lambda f: f.m > 0, "there are no tokens"),
    (lambda f: f.quantised or f.dtype == "bfloat16", f"{_ASM} need bfloat16, int8 or fp8 weights, not {{dtype}}"),
    (lambda f: f.quantised or not f.gated, f"{_ASM} of bfloat16 weights need w1 with I rows"),
    (lambda f: not f.quantised or f.gated, f"{_ASM} of quantised weights need w1 with 2 I rows"),
    (lambda f: not f.quantised or f.out == "bfloat16", f"{_ASM} of quantised weights write bfloat16, not {{out}}"),
    (
        lambda f: (
            (f.dtype != "float8_e4m3fn" or f.gfx in ({"gfx942"}, {"gfx950"}))
            and (f.dtype != "float8_e4m3fnuz" or f.gfx == {"gfx942"})
        ),
        "fp8 differs between the GPUs: float8_e4m3fnuz on gfx942, float8_e4m3fn on gfx950",
    ),
    (
        lambda f: f.depth % 256 == 0 and f.depth >= 512,
        f"{_ASM} need a D of a multiple of 256 from 512, not {{depth}}",
    ),
    (
        lambda f: any(f.inner % tile == 0 for tile in _FMOE_TILES) if f.quantised else f.inner % 512 == 0,
        f"{_ASM} need an I of a multiple of 512 (quantised: 128, 192, 320 or 448), not {{inner}}",
    ),
    (lambda f: f.m * f.depth * 2 <= BUFFER, f"{_ASM} need a result of less than 4 GiB"),
    (
        lambda f: f.inner * (1 + f.gated) * f.depth * (2 - f.quantised) <= INT,
        f"{_ASM} need experts of less than 2 GiB",
    ),
    (lambda f: f.blocks <= INT // 32, f"{_ASM} need fewer than 2**31 sorted tokens"),
)

ROUTER: tuple[Limit, ...] = (
    (lambda f: f.dtype != "float64", "AITER's kernels do not support float64"),
    (
        lambda f: f.experts in (128, 256) and f.topk in (6, 8),
        "AITER's kernels choose 6 or 8 of 128 or 256 experts, not {topk} of {experts}",
    ),
    (lambda f: f.m > 0, "there are no tokens"),
    (lambda f: f.m * f.experts * 4 <= BUFFER, "gating_output has 4 GiB or more in float32"),
)
