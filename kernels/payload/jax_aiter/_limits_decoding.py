"""Limits of the handlers of decoding, a part of the table in `_limits`."""

from __future__ import annotations

from jax_aiter._limit import BUFFER, Limit

_KERNELS = "AITER's kernels of paged attention"
_FP8 = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}
PAGED: tuple[Limit, ...] = (
    (lambda f: f.dtype in ("float16", "bfloat16"), f"{_KERNELS} need float16 or bfloat16, not {{dtype}}"),
    (lambda f: f.depth == 128, f"{_KERNELS} need a head dimension of 128, not {{depth}}"),
    (lambda f: f.page == 16, f"{_KERNELS} need pages of 16 tokens, not {{page}}"),
    (lambda f: 1 <= f.queries <= 4, f"{_KERNELS} need 1 to 4 tokens of each sequence, not {{queries}}"),
    (
        lambda f: f.cache in ("", "int8") or {f.cache} == {_FP8.get(gfx, "") for gfx in f.gfx},
        f"{_KERNELS} need a cache of the dtype of q, int8, or the fp8 of the GPU, not {{cache}}",
    ),
    (
        lambda f: f.heads <= 16 * f.key_heads,
        f"{_KERNELS} need at most 16 heads for each of the cache, not {{heads}} for {{key_heads}}",
    ),
    (
        lambda f: f.cache or f.queries == 1 or f.heads <= 8 * f.key_heads,
        f"{_KERNELS} for several tokens need at most 8 heads for each of the cache, or a quantised cache",
    ),
    (
        lambda f: f.precision < 2 or (f.cache not in ("", "int8") and f.queries == 1 and f.heads <= 8 * f.key_heads),
        f"{_KERNELS} with a high precision of 2 need an fp8 cache, one token, and at most 8 heads for each head of it",
    ),
    (lambda f: f.sequences <= 65535, f"{_KERNELS} need at most 65535 sequences, not {{sequences}}"),
    (
        lambda f: (
            max(
                f.sequences * f.queries * f.heads * f.depth * 2,
                f.pages * f.key_heads * f.page * f.depth * (1 if f.cache else 2),
                f.sequences * f.width * 4,
            )
            <= BUFFER
        ),
        f"{_KERNELS} need caches, queries and tables of less than 4 GiB",
    ),
    (lambda f: min(f.sequences, f.pages, f.width) > 0, "there are no sequences or no pages"),
)
_LATENT = "AITER's kernels of MLA"
MLA: tuple[Limit, ...] = (
    (
        lambda f: f.dtype == "bfloat16" or {f.dtype} == {_FP8.get(gfx, "") for gfx in f.gfx},
        f"{_LATENT} need bfloat16 or the fp8 of the GPU, not {{dtype}}",
    ),
    (
        lambda f: (f.depth, f.value_depth) == (576, 512),
        f"{_LATENT} need keys of 576 numbers and values of 512, not [{{depth}}, {{value_depth}}]",
    ),
    (lambda f: f.heads % 16 == 0, f"{_LATENT} need a multiple of 16 heads, not {{heads}}"),
    (lambda f: 1 <= f.queries <= 4, f"{_LATENT} need 1 to 4 tokens of each sequence, not {{queries}}"),
    (lambda f: f.sequences <= 65535, f"{_LATENT} need at most 65535 sequences, not {{sequences}}"),
    (
        lambda f: (
            max(
                f.tokens * f.depth * f.element,
                f.sequences * f.queries * f.part * max(f.depth * f.element, f.splits * f.value_depth * 4),
                f.sequences * f.width * 4,
            )
            <= BUFFER
        ),
        f"{_LATENT} need a cache, queries, tables and {{splits}} parts of less than 4 GiB",
    ),
    (lambda f: min(f.sequences, f.tokens, f.width) > 0, "there are no sequences or no tokens"),
)
