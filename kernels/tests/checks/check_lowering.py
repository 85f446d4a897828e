"""Lowering: custom calls for AMD GPUs, plain XLA elsewhere, and both from one trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_aiter import BackendError, _warning
from jax_aiter._table import TARGETS
from jax_aiter.gemm import gemm
from jax_aiter.gemm_i8 import gemm_i8
from jax_aiter.mha import _kernels, flash_attn_func, flash_attn_varlen
from jax_aiter.rmsnorm import rms_norm

from kernels.tests.checks.common import compare, made
from kernels.tests.checks.programs import (
    BF16,
    F32,
    FEW,
    GAMMA,
    INT8,
    PROGRAMS,
    QKV,
    S,
    X,
    calls,
    lowered,
    names,
    total,
)

pytestmark = pytest.mark.usefixtures("installed")
A = S((16, 128), BF16)
B = S((256, 128), BF16)


@pytest.mark.releases
@pytest.mark.parametrize("name", PROGRAMS)
def check_amd_gpus_get_custom_calls_and_others_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[name]
    monkeypatch.setenv("JAX_AITER_TARGET", program.gfx)
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    text = lowered(program.function, *program.operands)
    assert names(text) == program.calls
    for target, operands, results, attrs in calls(text):
        row = TARGETS[target]
        assert len(operands) == len(row.args)
        assert len(results) == len(row.results)
        assert set(attrs) == set(row.attrs)
    monkeypatch.delenv("JAX_AITER_BACKEND_GEMM")
    jax.clear_caches()
    for platform in ("cpu", "cuda"):
        assert (
            names(
                lowered(
                    program.function,
                    *program.operands,
                    platform=platform,
                )
            )
            == ()
        )


@pytest.mark.parametrize(
    ("gfx", "bias", "out"),
    [("gfx942", "0xf32", "16x256xf32"), ("gfx950", "256xf32", "16x256xbf16")],
)
def check_gemm_leaves_bias_and_rounding_to_kernels_that_have_them(
    gfx: str, bias: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    text = lowered(lambda a, b, c: gemm(a, b, bias=c), A, B, S((256,), F32))
    ((_, operands, results, _),) = calls(text)
    assert (operands[2], results[0]) == (bias, out)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.releases] if "gemm" in name else [])
        for name in PROGRAMS
    ],
)
def check_handlers_compute_what_xla_computes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[name]
    operands = PROGRAMS[name].values()
    monkeypatch.setenv("JAX_AITER_TARGET", program.gfx)
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    assert (
        names(
            lowered(
                program.function,
                *operands,
                platform="cpu",
            )
        )
        == program.calls
    )
    found = jax.jit(program.function)(*operands)
    monkeypatch.setenv("JAX_AITER_BACKEND", "xla")
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "xla")
    jax.clear_caches()
    wanted = jax.jit(program.function)(*operands)
    tolerance = 3e-2 if "mha" in program.calls[0] else 4e-3
    if operands[0].dtype == F32:
        tolerance = 1e-5
    compare(found, wanted, tolerance)


@pytest.mark.releases
def check_amd_gpus_without_a_known_target_warn_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _warning.warn_once.cache_clear()
    gradient = jax.vmap(jax.grad(total(rms_norm)), (0, None))
    arguments = (S((3, 4, 64), F32), GAMMA)
    assert calls(lowered(gradient, *arguments, platform="cpu")) == []
    with pytest.warns(UserWarning, match="JAX_AITER_TARGET"):
        text = lowered(gradient, *arguments)
    assert calls(text) == []
    # A second warning would be an error.
    assert calls(lowered(jax.vmap(rms_norm, (0, None)), *arguments)) == []
    _warning.warn_once.cache_clear()
    jax.clear_caches()
    monkeypatch.setenv("JAX_AITER_BACKEND", "xla")
    assert calls(lowered(rms_norm, X, GAMMA)) == []


FEW_TYPES = ["2x7x8x16xbf16", *["2x9x4x16xbf16"] * 2]
OF_CK = {
    "scale": "2.500000e-01 : f32",
    "dropout": "2.500000e-01 : f32",
    "window_left": "-1 : i32",
    "window_right": "-1 : i32",
    "longest_query": "0 : i32",
    "longest_key": "0 : i32",
}


@pytest.mark.releases
def check_dropout_calls_have_the_operands_of_the_contract(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No handler of these checks computes them."""
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx950")

    dropped = partial(flash_attn_func, dropout_p=0.25, dropout_seed=7)
    extras = ["0xbf16", "0xf32", "0xi32", "0xi32", "4xui32"]
    out = ["2x7x8x16xbf16", "2x8x7xf32"]
    gradients = [FEW_TYPES[0], *["2x9x8x16xbf16"] * 2, "2x7x8x16xf32", out[1]]
    assert calls(lowered(jax.grad(total(dropped)), *FEW)) == [
        ("jax_aiter_mha_fwd", [*FEW_TYPES, *extras], out, OF_CK),
        (
            "jax_aiter_mha_bwd",
            [out[0], *FEW_TYPES, *out, *extras],
            gradients,
            OF_CK,
        ),
    ]


@pytest.mark.releases
def check_what_is_forced_has_no_stand_in_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_BACKEND_RMS_NORM", "portable")
    assert len(calls(lowered(rms_norm, X, GAMMA))) == 1
    with pytest.raises(NotImplementedError, match="cpu"):
        lowered(
            rms_norm,
            X,
            GAMMA,
            platform="cpu",
        )
    monkeypatch.setenv("JAX_AITER_BACKEND_RMS_NORM", "xla")
    jax.clear_caches()
    assert calls(lowered(rms_norm, X, GAMMA)) == []


@pytest.mark.releases
def check_vmap_makes_more_rows_and_not_more_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    text = lowered(
        jax.vmap(rms_norm, (0, None)),
        S((3, 4, 64), F32),
        GAMMA,
    )
    assert [call[1][0] for call in calls(text)] == ["12x64xf32"]
    assert "stablehlo.while" not in text
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    text = lowered(
        jax.vmap(gemm, (0, None)),
        S((3, 16, 128), BF16),
        B,
    )
    assert [call[1][0] for call in calls(text)] == ["48x128xbf16"]
    # One weight per element means one call per element.
    text = lowered(
        jax.vmap(gemm),
        S((3, 16, 128), BF16),
        S((3, 256, 128), BF16),
    )
    assert [call[1][0] for call in calls(text)] == ["16x128xbf16"]
    assert "stablehlo.while" in text


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


REFUSED: dict[str, tuple[str, Callable[..., Any], Any, str]] = {
    "lengths": (
        "gfx950",
        lambda q, k, v, cu: flash_attn_func(
            q,
            k,
            v,
            cu_seqlens_q=cu,
            cu_seqlens_kv=cu,
        ),
        (*QKV, S((3,), jnp.int32)),
        "do not support sequence lengths in a batch",
    ),
    "gradient in order": (
        "gfx950",
        jax.grad(
            total(
                lambda q, k, v: flash_attn_func(
                    q,
                    k,
                    v,
                    deterministic=True,
                )
            )
        ),
        FEW,
        "which deterministic=True forbids",
    ),
    "gradient of a bias": (
        "gfx950",
        lambda *a: jax.grad(
            lambda q, k, v, b: total(
                lambda: flash_attn_func(
                    q,
                    k,
                    v,
                    bias=b,
                    deterministic=False,
                )
            )(),
            3,
        )(*a),
        (*FEW, S((7, 9), BF16)),
        "compute no gradient of a bias",
    ),
    "gradient of lse": (
        "gfx950",
        jax.grad(
            total(
                lambda q, k, v: flash_attn_func(
                    q,
                    k,
                    v,
                    return_lse=True,
                    deterministic=False,
                )
            )
        ),
        FEW,
        "does not support a cotangent of lse",
    ),
}


@pytest.mark.releases
@pytest.mark.parametrize("name", REFUSED)
def check_attention_that_no_kernel_does_is_xlas_or_an_error_if_forced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gfx, function, arguments, said = REFUSED[name]
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    wanted = ["jax_aiter_mha_fwd"] if name.startswith("gradient") else []
    assert [call[0] for call in calls(lowered(function, *arguments))] == wanted
    monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")
    jax.clear_caches()
    with pytest.raises(BackendError, match=said):
        lowered(function, *arguments)


@pytest.mark.releases
@pytest.mark.usefixtures("on_cpu")
def check_an_error_of_a_handler_is_an_exception() -> None:
    _, b, _, *others = (jnp.ones(part.shape, part.dtype) for part in INT8)
    with pytest.raises(Exception, match="thirteen rows are too many"):
        jax.block_until_ready(
            jax.jit(gemm_i8)(
                jnp.ones((13, 128), jnp.int8), b, jnp.ones((13, 1)), *others
            )
        )


TWO_CU = (S((9, 4, 128), BF16), *[S((11, 2, 128), BF16)] * 2, *[S((4,), jnp.int32)] * 2)


@pytest.mark.releases
def check_packed_attention_keeps_its_kernel_with_two_traced_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")

    packed = partial(flash_attn_varlen, causal=True)
    # The program chooses between the kernel and XLA's code; a promise or concrete
    # arrays decide before.
    text = lowered(packed, *TWO_CU)
    assert [call[0] for call in calls(text)] == ["jax_aiter_mha_fwd_asm"]
    assert "stablehlo.exponential" in text
    promised = lowered(packed, *TWO_CU[:4])
    cu = jnp.array([0, 3, 9], jnp.int32), jnp.array([0, 3, 11], jnp.int32)
    concrete = lowered(lambda q, k, v: packed(q, k, v, *cu), *TWO_CU[:3])
    for text in (promised, concrete):
        assert [call[0] for call in calls(text)] == ["jax_aiter_mha_fwd_asm"]
        assert "stablehlo.exponential" not in text


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("cu_k", "causal", "kernel"),
    [
        ([0, 4, 4, 11], True, 1),
        ([0, 5, 11, 11], False, 0),
    ],
)
def check_the_program_decides_whether_each_query_sees_a_key(
    cu_k: list[int],
    causal: bool,
    kernel: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler refuses calls with a query that sees no key."""
    arrays = [made(seed, part.shape, BF16) for seed, part in enumerate(TWO_CU[:3])]
    arrays += [jnp.array([0, 4, 4, 9], jnp.int32), jnp.array(cu_k, jnp.int32)]

    packed = partial(flash_attn_varlen, causal=causal, return_lse=True)
    count = 0
    plain = _kernels.forward

    def counted(*arguments: Any) -> Any:
        def count_one() -> None:
            nonlocal count
            count += 1

        jax.debug.callback(count_one)
        return plain(*arguments)

    monkeypatch.setattr(_kernels, "forward", counted)
    out, lse = jax.jit(packed)(*arrays)
    jax.effects_barrier()
    assert count == kernel
    monkeypatch.setenv("JAX_AITER_BACKEND", "xla")
    jax.clear_caches()
    wanted, of_lse = jax.jit(packed)(*arrays)
    compare(out, wanted, 3e-2)
    np.testing.assert_allclose(lse, of_lse, 1e-3, 1e-2)
