"""Flash attention, for batches and for packed sequences of different lengths, with gradients.

The layout is (batch, sequence, heads, head dimension). Scores are made block by block and never held as a whole, in
either direction. See `jax_aiter.info()` for what serves it, and JAX_AITER_BACKEND_FLASH_ATTN to force it, or
JAX_AITER_BACKEND_FLASH_ATTN_BWD for its gradient.
"""

from jax_aiter.mha._batch import flash_attn_func
from jax_aiter.mha._varlen import flash_attn_varlen

__all__ = ["flash_attn_func", "flash_attn_varlen"]
