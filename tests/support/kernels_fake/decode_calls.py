"""Calls of the handlers of decoding, and the same requests to AITER's host code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.kernels_fake.asm_host import HostTensor, NoTensor
from tests.support.kernels_fake.calls import Tensor, tensors


@dataclass(frozen=True, kw_only=True)
class PagedCase:
    """A call of the handler of paged attention."""

    gfx: str = "gfx942"
    dtype: str = "bf16"
    cache: str = ""
    sequences: int = 3
    queries: int = 1
    key_heads: int = 2
    group: int = 4
    pages: int = 20
    width: int = 9
    precision: int = 1
    depth: int = 128
    page: int = 16

    @property
    def of_cache(self) -> str:
        """Dtype of the cache; "" means that of q, and "fp8" that of the processor."""
        fp8 = {"gfx942": "f8e4m3fnuz", "gfx950": "f8e4m3fn"}[self.gfx]
        return {"": self.dtype, "fp8": fp8}.get(self.cache, self.cache)

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the operands and results."""
        piece = 16 if self.cache else 8
        q = (self.dtype, (self.sequences, self.queries, self.key_heads * self.group, self.depth))
        pages = (self.pages, self.key_heads)
        scale = ("f32", (*pages, self.page) if self.cache else (0,))
        made = tensors(
            q, (self.of_cache, (*pages, self.depth // piece, self.page, piece)),
            (self.of_cache, (*pages, self.page // piece, self.depth, piece)),
            ("s32", (self.sequences, self.width)), ("s32", (self.sequences,)), scale, scale,
            ("s32", (self.sequences + 1 if self.queries > 1 else 0,)), q,
        )  # fmt: skip
        return made[:8], made[8:]

    def attributes(self) -> dict[str, object]:
        """Return the attributes of the call: the default of the scale."""
        return {"scale": self.depth**-0.5, "precision": self.precision}

    def of_aiter(self, args: list[Tensor], results: list[Tensor]) -> dict[str, Any]:
        """Return the parameters of pa_fwd: one row of queries for each token."""
        q, keys, values, tables, lengths, key_scale, value_scale, starts = (
            HostTensor(one.dtype, one.shape, one.address) for one in args
        )
        rows = (self.sequences * self.queries, *q.shape[2:])
        several, quantised = self.queries > 1, bool(self.cache)
        return {
            "Q": HostTensor(q.kind, rows, q.address), "K": keys, "V": values, "block_tables": tables,
            "output": HostTensor(q.kind, rows, results[0].address), "context_lens": lengths,
            "block_tables_stride0": self.width, "max_qlen": self.queries,
            "K_QScale": key_scale if quantised else NoTensor(), "V_QScale": value_scale if quantised else NoTensor(),
            "qo_indptr": starts if several else NoTensor(),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MlaCase:
    """A call of the handler of MLA decoding."""

    gfx: str = "gfx942"
    fp8: bool = False
    sequences: int = 3
    queries: int = 1
    heads: int = 16
    splits: int = 4
    tokens: int = 900
    packed: int = 700
    depth: int = 576

    @property
    def dtype(self) -> str:
        """Dtype of q and of the cache."""
        return {"gfx942": "f8e4m3fnuz", "gfx950": "f8e4m3fn"}[self.gfx] if self.fp8 else "bf16"

    @property
    def is_whole(self) -> bool:
        """Whether AITER's Python code takes the result from one part, in the dtype of the output."""
        return self.splits == 1 and (self.fp8 or (self.heads, self.queries) != (16, 1))

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the operands and results."""
        rows, parts = (self.sequences, self.queries), (self.splits, self.heads)
        bounds, scale = ("s32", (self.sequences + 1,)), ("f32", (int(self.fp8),))
        partial = (0,) if self.is_whole else (*rows, *parts, 512)
        made = tensors(
            (self.dtype, (*rows, self.heads, self.depth)), (self.dtype, (self.tokens, self.depth)), bounds,
            ("s32", (self.packed,)), ("s32", (self.sequences,)), bounds, bounds, scale, scale,
            ("bf16", (*rows, self.heads, 512)), ("f32", partial), ("f32", (*rows, *parts)),
        )  # fmt: skip
        return made[:9], made[9:]

    def of_aiter(self, args: list[Tensor], results: list[Tensor]) -> dict[str, Any]:
        """Return the parameters of mla_decode_stage1_asm_fwd as mla_decode_fwd of AITER's mla.py sets them."""
        q, cache, starts, tokens, last, query_starts, split_starts, q_scale, kv_scale = (
            HostTensor(one.dtype, one.shape, one.address) for one in args
        )
        out, partial, lse = results
        rows, none = self.sequences * self.queries, NoTensor()
        parts = out if self.is_whole else partial
        return {
            "Q": HostTensor(q.kind, (rows, *q.shape[2:]), q.address),
            "KV": HostTensor(cache.kind, (self.tokens, 1, 1, self.depth), cache.address),
            "qo_indptr": query_starts, "kv_indptr": starts, "kv_page_indices": tokens, "kv_last_page_lens": last,
            "num_kv_splits_indptr": split_starts, "work_meta_data": none, "work_indptr": none, "work_info_set": none,
            "max_seqlen_q": self.queries, "softmax_scale": 0.5,
            "splitData": HostTensor("f32", (rows, self.splits, self.heads, 512), parts.address),
            "splitLse": HostTensor("f32", (rows, self.splits, self.heads, 1), lse.address),
            "output": HostTensor("bf16", (rows, self.heads, 512), out.address),
            "q_scale": q_scale if self.fp8 else none, "kv_scale": kv_scale if self.fp8 else none,
        }  # fmt: skip
