"""Limits of AITER's attention kernels: which calls they accept, and why not."""

from __future__ import annotations

from typing import Any

import pytest
from jax import export
from jax_aiter._limits import obstacle
from jax_aiter._table import MHA_BWD, MHA_BWD_ASM, MHA_FWD, MHA_FWD_ASM, FfiTarget

FACTS = {
    "dtype": "bfloat16",
    "unequal": False,
    "unequal_gradient": False,
    "batch": 2,
    "queries": 300,
    "keys": 400,
    "heads": 4,
    "key_heads": 2,
    "depth": 128,
    "value_depth": 128,
    "sequences": 0,
    "packed": False,
    "longest": (0, 0),
    "window": (-1, -1),
    "complete": True,
    "bias": "",
    "slopes": False,
    "dropout": 0,
    "returns_lse": False,
    "attention": "all",
    "padded": False,
    "deterministic": False,
    "forward": "aiter",
    "dbias": False,
    "dslopes": False,
    "dlse": False,
}
UNEQUAL = {"unequal": True, "unequal_gradient": True, "depth": 192}
PACKED = {"packed": True, "sequences": 3, "longest": (100, 100)}
CAUSAL = {"window": (-1, 0)}


def deep(depth: int, **more: Any) -> dict[str, Any]:
    return {"depth": depth, "value_depth": depth, **more}


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        (MHA_FWD_ASM, {}, ""),
        (MHA_FWD_ASM, UNEQUAL, ""),
        (MHA_FWD_ASM, {**PACKED, "complete": False}, ""),
        (MHA_FWD_ASM, {"dtype": "float32"}, "need bfloat16, not float32"),
        (MHA_FWD_ASM, deep(64), "a head dimension of 128"),
        (MHA_FWD_ASM, {"depth": 192}, "a head dimension of 128"),
        (MHA_FWD_ASM, {"window": (3, 0)}, "do not support windows"),
        (MHA_FWD_ASM, {"complete": False}, "each query sees a key"),
        (MHA_FWD_ASM, {"padded": True}, "sequence lengths in a batch"),
        (MHA_FWD_ASM, {"queries": 0}, "no queries or no keys"),
        (MHA_FWD, deep(16, dropout=0.5), ""),
        (MHA_FWD, deep(260), "multiples of 8 up to 256"),
        (MHA_FWD, {"bias": "float32"}, "a bias of the dtype of q"),
        (MHA_FWD, {"dropout": 0.5, "slopes": True}, "with dropout"),
        (MHA_BWD, {"dlse": True}, "cotangent of lse"),
        (MHA_BWD, {"dbias": True}, "no gradient of a bias"),
        (MHA_BWD, {"dslopes": True}, "no gradient of ALiBi"),
        (MHA_BWD, {"deterministic": True}, "deterministic=True"),
        (MHA_BWD, {"dropout": 0.5, "forward": "xla"}, "dropout differs"),
        (MHA_BWD_ASM, {}, ""),
        (MHA_BWD_ASM, deep(64), ""),
        (MHA_BWD_ASM, deep(72, **CAUSAL, dtype="float16", queries=600), ""),
        (MHA_BWD_ASM, deep(192, **CAUSAL), ""),
        (MHA_BWD_ASM, {"window": (8, 3)}, ""),
        (MHA_BWD_ASM, deep(64, **PACKED), ""),
        (MHA_BWD_ASM, UNEQUAL, ""),
        (MHA_BWD_ASM, {"depth": 192}, "equal head dimensions"),
        (MHA_BWD_ASM, deep(200), "equal head dimensions"),
        (MHA_BWD_ASM, {"dtype": "float32"}, "float16 or bfloat16, not float32"),
        (MHA_BWD_ASM, deep(64, window=(8, 3)), "72 to 128 for windows, not 64"),
        (MHA_BWD_ASM, {"window": (0, 0)}, "more than the diagonal"),
        (MHA_BWD_ASM, {**PACKED, "window": (8, 3)}, "a batch for windows"),
        (MHA_BWD_ASM, {**PACKED, "longest": (0, 0)}, "need max_seqlen_q"),
        (MHA_BWD_ASM, {"queries": 16}, "for 16 queries"),
        (MHA_BWD_ASM, {"keys": 1 << 21}, "sequences of less than 2 GiB"),
        (MHA_BWD_ASM, {"batch": 1 << 14}, "gradients of less than 4 GiB"),
        (MHA_BWD_ASM, {"slopes": True}, "nor ALiBi"),
    ],
)
def check_attention_has_the_limits_of_its_kernel(
    target: FfiTarget,
    changes: dict[str, Any],
    said: str,
) -> None:
    found = obstacle(target, **FACTS | changes)
    assert (said in found) if said else not found


def check_limits_must_hold_for_every_symbolic_size() -> None:
    (size,) = export.symbolic_shape("s")
    facts = FACTS | {"queries": size, "keys": size}
    assert "constraints of the symbolic sizes" in obstacle(MHA_FWD_ASM, **facts)
