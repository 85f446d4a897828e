"""Gradient of attention by AITER's assembly kernels: when they are chosen, and what XLA computes around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_aiter import BackendError
from jax_aiter.mha import _backward_asm, flash_attn_func, flash_attn_varlen

from kernels.tests.checks.check_lowering import BF16, F32, QKV, S, calls, lowered, total
from kernels.tests.checks.common import made, wide

pytestmark = pytest.mark.usefixtures("installed")
F16 = jnp.float16


def gradients(
    gfx: str, function: Callable[..., Any], depth: int = 128, value_depth: int = 0, dtype: Any = BF16, **sizes: int
) -> Any:
    """Return a case of `GRADIENTS`: the target, the program and its arguments."""
    batch, queries, keys = (sizes.get(name, value) for name, value in (("batch", 2), ("queries", 40), ("keys", 50)))
    shapes = ((queries, 4, depth), (keys, 2, depth), (keys, 2, value_depth or depth))
    program = jax.grad(total(function), (0, 1, 2))
    return gfx, program, [S((batch, *shape) if batch else shape, dtype) for shape in shapes]


def windowed(left: int = -1, right: int = -1, *, causal: bool = False) -> Callable[..., Any]:
    return lambda q, k, v: flash_attn_func(q, k, v, causal=causal, window_size=(left, right))


def packed_two(left: int = -1, right: int = -1) -> Callable[..., Any]:
    """Return attention of packed sequences that two traced arrays delimit."""
    cu = jnp.array([0, 10, 30], jnp.int32)
    return lambda q, k, v: flash_attn_varlen(q, k, v, cu + 0, cu + 0, window_size=(left, right))


KERNEL, SAID = "jax_aiter_mha_bwd_asm", "assembly kernels of the gradient need "
GRADIENTS: dict[str, tuple[Any, str]] = {
    **{f"{gfx} {dtype.__name__} {depth} {causal}": (gradients(gfx, windowed(causal=causal), depth, dtype=dtype), "")
       for gfx in ("gfx942", "gfx950") for dtype in (BF16, F16)
       for depth, causal in ((64, False), (72, True), (128, False), (128, True), (136, False), (192, True))},
    "window": (gradients("gfx942", windowed(8, 3)), ""),
    "more queries than keys": (gradients("gfx942", windowed(causal=True), queries=60), ""),
    "packed": (gradients("gfx942", packed_two(), 64, batch=0, dtype=F16), ""),
    "gfx950 192 and 128": (gradients("gfx950", windowed(), 192, 128), ""),
    "gfx942 192 and 128": (gradients("gfx942", windowed(), 192, 128), SAID + "equal head dimensions"),
    "200": (gradients("gfx942", windowed(), 200), SAID + "equal head dimensions"),
    "float32": (gradients("gfx942", windowed(), dtype=F32), SAID + "float16 or bfloat16, not float32"),
    "window at 64": (gradients("gfx942", windowed(8, 3), 64), SAID + "a head dimension of 72 to 128 for win.*not 64"),
    "diagonal": (gradients("gfx942", windowed(0, 0)), SAID + r"a window of more than the diagonal, not \(0, 0\)"),
    "packed window": (gradients("gfx942", packed_two(8, 3), batch=0), SAID + "a batch for windows"),
    "few queries": (gradients("gfx942", windowed(), queries=16), "AITER does not use its .* for 16 queries"),
    "long": (gradients("gfx942", windowed(), keys=1 << 21), SAID + "sequences of less than 2 GiB"),
    "large": (gradients("gfx942", windowed(), batch=2048, queries=1024), SAID + "gradients of less than 4 GiB"),
    "in order": (gradients("gfx942", lambda q, k, v: flash_attn_func(q, k, v, deterministic=True)),
                 "which deterministic=True forbids"),
    "slopes": (gradients("gfx942", lambda q, k, v: flash_attn_func(q, k, v, alibi_slopes=jnp.ones(4))), "nor ALiBi"),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def check_gradients_of_attention_are_kernels_or_xla_with_a_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (gfx, program, arguments), said = GRADIENTS[name]
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    monkeypatch.setenv("JAX_AITER_BACKEND_FLASH_ATTN", "xla")  # the forward direction has other limits
    names = [call[0] for call in calls(lowered(program, *arguments))]
    # Composable Kernel, which the wheel of these checks has for gfx950, follows.
    assert names == ([KERNEL] if not said else ["jax_aiter_mha_bwd"] if gfx == "gfx950" else [])
    if said and gfx != "gfx950":
        monkeypatch.setenv("JAX_AITER_BACKEND_FLASH_ATTN_BWD", "aiter")
        jax.clear_caches()
        with pytest.raises(BackendError, match=said):
            lowered(program, *arguments)


@pytest.mark.releases
def check_both_directions_of_attention_have_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kernel, each direction is a loop over blocks of queries."""
    program = jax.grad(total(flash_attn_func), (0, 1, 2))
    assert lowered(program, *QKV).count("stablehlo.while") > 0
    jax.clear_caches()
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    text = lowered(program, *QKV)
    assert [call[0] for call in calls(text)] == ["jax_aiter_mha_fwd_asm", KERNEL]
    assert "stablehlo.while" not in text


@pytest.mark.releases
def check_vmap_of_gradients_makes_a_larger_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    text = lowered(jax.vmap(jax.grad(total(flash_attn_func), (0, 1, 2))), *(S((3, *part.shape), BF16) for part in QKV))
    assert [call[1][0] for call in calls(text)] == ["6x256x8x128xbf16"] * 2
    assert "stablehlo.while" not in text


@pytest.mark.parametrize("dtype", [BF16, F16])
def check_sums_and_conversion_are_those_of_float64(dtype: Any) -> None:
    """XLA computes d before the kernel and dq after it; the kernel takes a large lse where a query sees no key."""
    q, k, v, dout, out = (made(i, (2, 24, 4, 96), dtype) for i in range(5))
    dlse, lse = made(5, (2, 4, 24)), made(6, (2, 4, 24)).at[:, :, 3].set(-jnp.inf)
    sees = jnp.arange(24) != 3
    *same, found_lse, d = jax.jit(_backward_asm.operands)(q, k, v, dout, dlse, out, lse, sees)
    assert [(part == other).all() for part, other in zip(same, (dout, q, k, v), strict=True)] == [True] * 4
    wanted = np.einsum("bshd,bshd->bhs", wide(dout), wide(out)) - wide(dlse)
    assert (d.dtype, found_lse.dtype) == (F32, F32)
    np.testing.assert_allclose(wide(d), np.where(sees, wanted, 0), rtol=2e-6, atol=2e-6 * 96)
    np.testing.assert_array_equal(wide(found_lse)[:, :, sees], wide(lse)[:, :, sees])
    scores = np.array([-np.inf, -1e4, 0, 1e4], np.float32)
    assert (np.exp2(scores * np.float32(1.442695) - wide(found_lse)[0, 0, 3] * 1.442695) == 0).all()
    sums = made(7, (2, 4, 24, 96), F32)
    dq = jax.jit(_backward_asm.converted, static_argnums=1)(sums, dtype)
    np.testing.assert_array_equal(wide(dq), wide(np.asarray(sums).transpose(0, 2, 1, 3).astype(dtype)))
