"""Flash attention, for batches and for packed sequences of different lengths, with gradients.

The layout is (batch, sequence, heads, head dimension). Scores are computed block by
block in both directions, so the whole matrix is never in memory. `jax_aiter.info()`
reports the backend. JAX_AITER_BACKEND_FLASH_ATTN forces the backend of attention, and
JAX_AITER_BACKEND_FLASH_ATTN_BWD that of its gradient.
"""

from jax_aiter.mha._batch import flash_attn_func
from jax_aiter.mha._varlen import flash_attn_varlen

__all__ = ["flash_attn_func", "flash_attn_varlen"]
