"""Gradient of attention by AITER's assembly kernels.

When they are chosen, and what XLA computes around them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax_aiter import BackendError
from jax_aiter.mha import flash_attn_func, flash_attn_varlen

from kernels.tests.checks.programs import BF16, F32, QKV, S, calls, lowered, total

pytestmark = pytest.mark.usefixtures("installed")
F16 = jnp.float16


def gradients(
    gfx: str,
    function: Callable[..., Any],
    depth: int = 128,
    value_depth: int = 0,
    dtype: Any = BF16,
    **sizes: int,
) -> Any:
    """Return a case of `GRADIENTS`: the target, the program and its arguments."""
    batch, queries, keys = (
        sizes.get(name, value)
        for name, value in (("batch", 2), ("queries", 40), ("keys", 50))
    )
    shapes = ((queries, 4, depth), (keys, 2, depth), (keys, 2, value_depth or depth))
    program = jax.grad(total(function), (0, 1, 2))
    return (
        gfx,
        program,
        [S((batch, *shape) if batch else shape, dtype) for shape in shapes],
    )


def windowed(
    left: int = -1,
    right: int = -1,
    *,
    causal: bool = False,
) -> Callable[..., Any]:
    return lambda q, k, v: flash_attn_func(
        q,
        k,
        v,
        causal=causal,
        window_size=(left, right),
    )


def packed_two(left: int = -1, right: int = -1) -> Callable[..., Any]:
    """Return attention of packed sequences that two traced arrays delimit."""
    cu = jnp.array([0, 10, 30], jnp.int32)
    return lambda q, k, v: flash_attn_varlen(
        q,
        k,
        v,
        cu + 0,
        cu + 0,
        window_size=(left, right),
    )


KERNEL = "jax_aiter_mha_bwd_asm"
SAID = "assembly kernels of the gradient need "
GRADIENTS: dict[str, tuple[Any, str]] = {
    "64": (gradients("gfx942", windowed(), 64), ""),
    "72": (
        gradients(
            "gfx950",
            windowed(causal=True),
            72,
            dtype=F16,
        ),
        "",
    ),
    "192": (
        gradients(
            "gfx942",
            windowed(causal=True),
            192,
            dtype=F16,
        ),
        "",
    ),
    "window": (gradients("gfx942", windowed(8, 3)), ""),
    "more queries than keys": (
        gradients(
            "gfx942",
            windowed(causal=True),
            queries=60,
        ),
        "",
    ),
    "packed": (
        gradients(
            "gfx942",
            packed_two(),
            64,
            batch=0,
            dtype=F16,
        ),
        "",
    ),
    "gfx950 192 and 128": (gradients("gfx950", windowed(), 192, 128), ""),
    "gfx942 192 and 128": (
        gradients("gfx942", windowed(), 192, 128),
        SAID + "equal head dimensions",
    ),
    "200": (gradients("gfx942", windowed(), 200), SAID + "equal head dimensions"),
    "float32": (
        gradients(
            "gfx942",
            windowed(),
            dtype=F32,
        ),
        SAID + "float16 or bfloat16, not float32",
    ),
    "window at 64": (
        gradients("gfx942", windowed(8, 3), 64),
        SAID + "a head dimension of 72 to 128 for win.*not 64",
    ),
    "diagonal": (
        gradients("gfx942", windowed(0, 0)),
        SAID + r"a window of more than the diagonal, not \(0, 0\)",
    ),
    "packed window": (
        gradients(
            "gfx942",
            packed_two(8, 3),
            batch=0,
        ),
        SAID + "a batch for windows",
    ),
    "few queries": (
        gradients(
            "gfx942",
            windowed(),
            queries=16,
        ),
        "AITER does not use its .* for 16 queries",
    ),
    "long": (
        gradients(
            "gfx942",
            windowed(),
            keys=1 << 21,
        ),
        SAID + "sequences of less than 2 GiB",
    ),
    "large": (
        gradients(
            "gfx942",
            windowed(),
            batch=2048,
            queries=1024,
        ),
        SAID + "gradients of less than 4 GiB",
    ),
    "in order": (
        gradients(
            "gfx942",
            lambda q, k, v: flash_attn_func(
                q,
                k,
                v,
                deterministic=True,
            ),
        ),
        "which deterministic=True forbids",
    ),
    "slopes": (
        gradients(
            "gfx942",
            lambda q, k, v: flash_attn_func(
                q,
                k,
                v,
                alibi_slopes=jnp.ones(4),
            ),
        ),
        "nor ALiBi",
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def check_gradients_of_attention_are_kernels_or_xla_with_a_reason(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gfx, program, arguments), said = GRADIENTS[name]
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    monkeypatch.setenv(
        "JAX_AITER_BACKEND_FLASH_ATTN", "xla"
    )  # the forward direction has other limits
    names = [call[0] for call in calls(lowered(program, *arguments))]
    # Composable Kernel, which the wheel of these checks has for gfx950, follows.
    if not said:
        assert names == [KERNEL]
    else:
        assert names == (["jax_aiter_mha_bwd"] if gfx == "gfx950" else [])
    if said and gfx != "gfx950":
        monkeypatch.setenv("JAX_AITER_BACKEND_FLASH_ATTN_BWD", "aiter")
        jax.clear_caches()
        with pytest.raises(BackendError, match=said):
            lowered(program, *arguments)


@pytest.mark.releases
def check_vmap_of_gradients_makes_a_larger_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    text = lowered(
        jax.vmap(jax.grad(total(flash_attn_func), (0, 1, 2))),
        *(S((3, *part.shape), BF16) for part in QKV),
    )
    assert [call[1][0] for call in calls(text)] == ["6x20x8x128xbf16"] * 2
    assert "stablehlo.while" not in text
