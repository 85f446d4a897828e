"""Calls of the handler of attention backward, and the same request to AITER's host code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels.tests.support.fake.calls import Tensor, tensors

NO_MASK, BOTTOM_RIGHT = 0, 2


@dataclass(frozen=True, kw_only=True)
class BwdCase:
    """A call of the handler."""

    gfx: str = "gfx942"
    queries: int = 600
    keys: int = 700
    depth: int = 128
    value_depth: int = 0
    dtype: str = "bf16"
    packed: int = 0
    window: tuple[int, int] = (-1, -1)
    batch: int = 2
    key_heads: int = 2
    group: int = 4
    longest: tuple[int, int] = (310, 420)

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the operands and results."""
        front = () if self.packed else (self.batch,)
        heads, value_depth = self.key_heads * self.group, self.value_depth or self.depth
        q, k = (*front, self.queries), (*front, self.keys)
        rows, cu = (*front, heads, self.queries), (self.packed + 1 if self.packed else 0,)
        made = tensors(
            (self.dtype, (*q, heads, value_depth)), (self.dtype, (*q, heads, self.depth)),
            (self.dtype, (*k, self.key_heads, self.depth)), (self.dtype, (*k, self.key_heads, value_depth)),
            ("f32", rows), ("f32", rows), ("s32", cu), ("s32", cu),
            ("f32", (*rows, self.depth)), (self.dtype, (*k, heads, self.depth)), (self.dtype, (*k, heads, value_depth)),
        )  # fmt: skip
        return made[:8], made[8:]

    def attributes(self) -> dict[str, object]:
        """Return the attributes of the call."""
        longest = self.longest if self.packed else (0, 0)
        names = ("window_left", "window_right", "longest_query", "longest_key")
        return {"scale": 0.125, **dict(zip(names, (*self.window, *longest), strict=True))}

    def of_aiter(self, args: list[Tensor], results: list[Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return mha_bwd_traits and fmha_bwd_args as asm_mha_bwd.cu and asm_mha_varlen_bwd.cu set them."""
        heads, value_depth, mask = self.key_heads * self.group, self.value_depth or self.depth, NO_MASK
        if self.window != (-1, -1):
            mask = BOTTOM_RIGHT
        traits = {
            "use_ext_asm": True, "bias_type": 0, "has_dbias": False, "has_dropout": False, "is_deterministic": False,
            "data_type": {"bf16": "bf16", "f16": "fp16"}[self.dtype], "is_group_mode": bool(self.packed),
            "mask_type": mask, "is_v3_atomic_fp32": True, "how_v3_bf16_cvt": 1 if self.gfx == "gfx942" else 0,
        }  # fmt: skip
        dout, q, k, v, lse, d, cu_q, cu_k = (one.address for one in args)
        dq_acc, dk, dv = (one.address for one in results)
        values: dict[str, Any] = {
            "q_ptr": q, "k_ptr": k, "v_ptr": v, "do_ptr": dout, "lse_ptr": lse, "d_ptr": d, "dq_acc_ptr": dq_acc,
            "dk_ptr": dk, "dv_ptr": dv, "seqlen_q": self.queries, "seqlen_k": self.keys, "total_keys": self.keys,
            "batch": self.packed or self.batch, "hdim_q": self.depth, "hdim_v": value_depth, "nhead_q": heads,
            "nhead_k": self.key_heads, "scale": 0.125, "mask_type": mask, "cu_seqlen_q_ptr": 0, "cu_seqlen_k_ptr": 0,
            "max_seqlen_q": self.longest[0] if self.packed else self.queries,
            "max_seqlen_k": self.longest[1] if self.packed else self.keys,
            "seqstart_q_ptr": cu_q if self.packed else 0, "seqstart_k_ptr": cu_k if self.packed else 0,
            "window_size_left": self.window[0], "window_size_right": self.window[1],
            "nhead_stride_lsed": self.queries, "stride_dq_acc": self.depth,
            "nhead_stride_dq_acc": self.queries * self.depth,
        }  # fmt: skip
        for name, rows, count, depth in (
            ("q", self.queries, heads, self.depth), ("do", self.queries, heads, value_depth),
            ("k", self.keys, self.key_heads, self.depth), ("v", self.keys, self.key_heads, value_depth),
            ("dk", self.keys, heads, self.depth), ("dv", self.keys, heads, value_depth),
        ):  # fmt: skip
            values |= {f"stride_{name}": count * depth, f"nhead_stride_{name}": depth}
            values[f"batch_stride_{name}"] = 0 if self.packed else rows * count * depth
        return traits, values
