"""Calls of the handler of attention backward."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.tests.support.fake.calls import Tensor, tensors


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
        heads = self.key_heads * self.group
        value_depth = self.value_depth or self.depth
        q = (*front, self.queries)
        k = (*front, self.keys)
        rows = (*front, heads, self.queries)
        cu = (self.packed + 1 if self.packed else 0,)
        made = tensors(
            (self.dtype, (*q, heads, value_depth)),
            (self.dtype, (*q, heads, self.depth)),
            (self.dtype, (*k, self.key_heads, self.depth)),
            (self.dtype, (*k, self.key_heads, value_depth)),
            ("f32", rows),
            ("f32", rows),
            ("s32", cu),
            ("s32", cu),
            ("f32", (*rows, self.depth)),
            (self.dtype, (*k, heads, self.depth)),
            (self.dtype, (*k, heads, value_depth)),
        )
        return made[:8], made[8:]

    def attributes(self) -> dict[str, object]:
        """Return the attributes of the call."""
        longest = self.longest if self.packed else (0, 0)
        names = ("window_left", "window_right", "longest_query", "longest_key")
        return {
            "scale": 0.125,
            **dict(
                zip(
                    names,
                    (*self.window, *longest),
                    strict=True,
                )
            ),
        }
