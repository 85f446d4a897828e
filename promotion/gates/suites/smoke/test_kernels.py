"""AITER's kernels of the wheel jax_aiter, if the set has it, against XLA's code on the same device.

A test is skipped at its end if both results are XLA's, since no kernel fits the device.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

jax_aiter = pytest.importorskip("jax_aiter")
parametrize = pytest.mark.parametrize

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
E4M3 = jnp.float8_e4m3fn


def normal(shape, dtype=BF16):
    """Return numbers, the same everywhere."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return jnp.asarray(values.astype(np.float32), dtype)


def scales(shape):
    return 0.1 + jnp.abs(normal(shape, F32))


def integers(shape, low, high, dtype):
    """Return whole numbers, the same everywhere."""
    return jnp.asarray(
        np.random.default_rng(sum(shape)).integers(low, high, shape), dtype
    )


def with_gradients(function):
    """Return a function that returns the result and the gradient of each operand."""

    def loss(*operands):
        out = function(*operands)
        parts = jax.tree.leaves(out)
        return sum(jnp.sum(jnp.sin(part.astype(F32))) for part in parts), out

    def both(*operands):
        places = tuple(range(len(operands)))
        grads, out = jax.grad(loss, places, has_aux=True)(*operands)
        return out, grads

    return both


def attention(depth, dtype, heads, key_heads, length, **options):
    """Return causal or full attention, and its operands."""

    def function(q, k, v):
        return jax_aiter.mha.flash_attn_func(q, k, v, **options)

    shapes = [(2, length, count, depth) for count in (heads, key_heads, key_heads)]
    return with_gradients(function), [normal(shape, dtype) for shape in shapes]


def packed(q, k, v):
    """Return the attention of three sequences."""
    ends = jnp.array([0, 40, 72, 128], jnp.int32)
    return jax_aiter.mha.flash_attn_varlen(q, k, v, ends, ends, 56, 56, causal=True)


def cases():
    """Return name -> options of the backend, function and operands."""
    mha = ("FLASH_ATTN", "FLASH_ATTN_BWD")
    found = {}
    for dtype in (BF16, F16):
        for depth in (64, 80, 96, 128, 256):
            name = f"attention-{depth}-{jnp.dtype(dtype).name}"
            found[name] = (mha, *attention(depth, dtype, 8, 2, 128, causal=True))
    found["attention-full"] = (mha, *attention(128, BF16, 4, 4, 200))
    found["attention-window"] = (
        mha,
        *attention(128, BF16, 8, 8, 160, causal=True, window_size=(32, 0)),
    )
    operands = [normal((128, heads, 128)) for heads in (8, 2, 2)]
    found["attention-packed"] = (mha, with_gradients(packed), operands)
    for dtype in (BF16, F16, F32):
        name = jnp.dtype(dtype).name
        x, gamma = normal((64, 1000), dtype), normal((1000,), dtype)
        norms = jax_aiter.rmsnorm
        found[f"norm-{name}"] = (
            ("RMS_NORM",),
            with_gradients(norms.rms_norm),
            [x, gamma],
        )
        found[f"norm-add-{name}"] = (
            ("RMS_NORM_WITH_ADD",),
            with_gradients(norms.rms_norm_with_add),
            [x, x[::-1], gamma],
        )
    for rows in (1, 64, 500):
        operands = [normal((rows, 512)), normal((768, 512))]
        found[f"gemm-{rows}"] = (("GEMM",), jax_aiter.gemm.gemm, operands)
    int8 = [integers(shape, -128, 128, jnp.int8) for shape in ((70, 512), (768, 512))]
    bias = normal((768,), F32)
    found["int8"] = (
        ("GEMM_I8",),
        jax_aiter.gemm_i8.gemm_i8,
        [*int8, scales((70, 1)), scales((1, 768)), bias],
    )
    fp8 = [normal((64, 512), E4M3), normal((1024, 512), E4M3)]
    fp8 += [scales((4, 64)), scales((4, 8))]
    product = jax_aiter.gemm_fp8.gemm_fp8_mi350
    found["fp8-mi350"] = (("GEMM_FP8_MI350",), product, fp8)
    found["fp8-flat"] = (("FLATMM_FP8",), jax_aiter.flatmm_fp8.flatmm_fp8, fp8)
    fp4 = [integers(shape, 0, 256, jnp.uint8) for shape in ((64, 128), (512, 128))]
    fp4 += [integers(shape, 122, 130, jnp.uint8) for shape in ((64, 8), (512, 8))]
    found["fp4"] = (("GEMM_FP4",), jax_aiter.gemm_fp4.gemm_fp4, fp4)
    return found


CASES = cases()  # type: ignore[no-untyped-call]


def choose(monkeypatch, options, backend):
    jax.clear_caches()
    for option in options:
        monkeypatch.setenv(f"JAX_AITER_BACKEND_{option}", backend)


@parametrize("name", CASES)
def test_kernel_agrees_with_xla(name, monkeypatch):
    options, function, operands = CASES[name]
    choose(monkeypatch, options, "xla")
    wanted = jax.tree.leaves(jax.jit(function)(*operands))
    choose(monkeypatch, options, "aiter")
    try:
        jax.eval_shape(function, *operands)
    except jax_aiter.BackendError:
        choose(monkeypatch, options, "auto")
    choices = jax_aiter.info(function, *operands)["choices"]
    got = jax.tree.leaves(jax.jit(function)(*operands))
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(part, np.float64) for part in (one, other))
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() <= 0.03 * np.abs(other).max()
    if all(choice["backend"] == "xla" for choice in choices):
        pytest.skip(f"no kernel: {choices[0]['why']}")


def test_modules_load_on_this_device():
    report = jax_aiter.info()
    named = [device["gfx"] or "" for device in report["devices"]]
    gpus = {name.partition(":")[0] for name in named}
    modules = report["modules"].items()
    wanted = {name for name, row in modules if not gpus.isdisjoint(row["targets"])}
    assert wanted <= {*jax_aiter.load_kernels()}
