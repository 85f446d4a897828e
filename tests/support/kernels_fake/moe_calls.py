"""Calls of the handler of the experts, and the same request to AITER's host code."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.kernels_fake.calls import Tensor, tensors


@dataclass(frozen=True, kw_only=True)
class MoeCase:
    """A call of the handler."""

    dtype: str = "s8"
    tokens: int = 40
    depth: int = 512
    inner: int = 512
    experts: int = 5
    topk: int = 2
    blocks: int = 7
    gelu: bool = False

    @property
    def half(self) -> bool:
        """Whether the numbers are not quantised."""
        return self.dtype == "bf16"

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the operands and the result."""
        rows = self.inner * (1 if self.half else 2)
        scales: list[tuple[int, ...]] = [(self.tokens, 1), (self.experts, rows), (self.experts, self.depth)]
        made = tensors(
            (self.dtype, (self.tokens, self.depth)), (self.dtype, (self.experts, rows, self.depth)),
            (self.dtype, (self.experts, self.depth, self.inner)), ("s32", (32 * self.blocks,)),
            ("f32", (32 * self.blocks,)), ("s32", (self.blocks,)), ("s32", (2,)),
            *(("f32", (0,) if self.half else scale) for scale in scales),
            ("bf16", (self.tokens, self.depth)),
        )  # fmt: skip
        return made[:10], made[10:]

    def attributes(self) -> dict[str, object]:
        """Return the attributes of the call."""
        return {"topk": self.topk, "gelu": self.gelu}

    def of_aiter(self, args: list[Tensor], results: list[Tensor]) -> dict[str, Tensor]:
        """Return the arguments of AITER's host code by name."""
        names = ("input", "w1", "w2", "sorted_token_ids", "sorted_weights", "sorted_expert_ids", "num_valid_ids")
        scales = () if self.half else ("input_dqn", "w1_dqn", "w2_dqn")
        return {"out": results[0], **dict(zip((*names, *scales), args, strict=False))}
