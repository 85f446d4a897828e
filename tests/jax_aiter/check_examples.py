"""The examples of docs/kernels.md, with small arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from tests.jax_aiter.common import made

BLOCKS = re.findall(r"```python\n(.*?)```", Path("kernels.md").read_text(encoding="utf-8"), re.DOTALL)
BF16 = jnp.bfloat16
ARGUMENTS: dict[str, dict[str, Any]] = {
    "gemm": {"a": made(1, (16, 64), BF16), "b": made(2, (32, 64), BF16)},
    "paged_attention": {
        "keys": made(3, (4, 16, 2, 128), BF16),
        "values": made(4, (4, 16, 2, 128), BF16),
        "q": made(5, (2, 8, 128), BF16),
        "block_tables": jnp.asarray([[0, 1], [2, 3]], jnp.int32),
        "context_lens": jnp.asarray([20, 5], jnp.int32),
    },
    "moe": {
        "tokens": made(6, (4, 32), BF16),
        "router": made(7, (32, 16), BF16),
        "w1": made(8, (16, 2 * 8, 32), BF16),
        "w2": made(9, (16, 32, 8), BF16),
    },
}
OUT = {"paged_attention": (2, 8, 128), "moe": (4, 32)}


@pytest.mark.parametrize("name", ARGUMENTS)
def check_example_runs(name: str) -> None:
    (block,) = (block for block in BLOCKS if f"from jax_aiter.{name} import" in block)
    found = dict(ARGUMENTS[name])
    exec(block, found)
    if name in OUT:
        assert found["out"].shape == OUT[name]
        assert bool(jnp.isfinite(found["out"]).all())


def check_every_example_of_the_page_is_run() -> None:
    assert len(BLOCKS) == len(ARGUMENTS)
