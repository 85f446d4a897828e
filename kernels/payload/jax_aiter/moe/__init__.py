"""Mixture of experts: the router (top-k softmax) and the experts, with gradients.

    weights, ids = topk_softmax(tokens @ router, topk=8, renormalize=True)
    out = fused_moe(tokens, w1, w2, weights, ids)

Names, arguments and their order are those of AITER's Python interface and of vLLM.
"""

from jax_aiter.moe._experts import LAYOUT, fused_moe
from jax_aiter.moe._router import topk_softmax

__all__ = ["LAYOUT", "fused_moe", "topk_softmax"]
