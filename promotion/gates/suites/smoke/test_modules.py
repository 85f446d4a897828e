"""Modules that the compatibility tables list.

Jax.scipy, jax.nn, jax.image, jax.tree, dlpack, profiler, dtypes, ffi.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import jax.scipy.optimize
import numpy as np
import pytest

MODULES = [
    "jax.numpy",
    "jax.scipy",
    "jax.lax",
    "jax.random",
    "jax.sharding",
    "jax.dlpack",
    "jax.distributed",
    "jax.dtypes",
    "jax.image",
    "jax.nn",
    "jax.ops",
    "jax.profiler",
    "jax.stages",
    "jax.tree",
    "jax.tree_util",
    "jax.typing",
    "jax.extend",
    "jax.example_libraries",
    "jax.experimental",
    "jax.scipy.cluster",
    "jax.scipy.fft",
    "jax.scipy.integrate",
    "jax.scipy.interpolate",
    "jax.scipy.linalg",
    "jax.scipy.ndimage",
    "jax.scipy.optimize",
    "jax.scipy.signal",
    "jax.scipy.spatial.transform",
    "jax.scipy.sparse.linalg",
    "jax.scipy.special",
    "jax.scipy.stats",
    "jax.ffi",
    "jax.extend.linear_util",
    "jax.extend.mlir",
    "jax.extend.random",
    "jax.experimental.checkify",
    "jax.experimental.custom_partitioning",
    "jax.experimental.jet",
    "jax.experimental.key_reuse",
    "jax.experimental.mesh_utils",
    "jax.experimental.multihost_utils",
    "jax.experimental.pallas",
    "jax.experimental.pjit",
    "jax.experimental.serialize_executable",
    "jax.experimental.sparse",
    "jax.experimental.sparse.linalg",
    "jax.experimental.pallas.triton",
]
DISTRIBUTIONS = {
    "bernoulli": (1, 0.3),
    "beta": (0.4, 2.0, 3.0),
    "betabinom": (2, 5, 2.0, 3.0),
    "binom": (2, 5, 0.4),
    "cauchy": (0.5,),
    "chi2": (1.5, 3.0),
    "expon": (0.7,),
    "gamma": (1.2, 2.0),
    "gennorm": (0.3, 1.5),
    "geom": (2, 0.3),
    "laplace": (0.4,),
    "logistic": (0.4,),
    "nbinom": (3, 4.0, 0.4),
    "norm": (0.3,),
    "pareto": (2.0, 1.5),
    "poisson": (2, 3.0),
    "t": (0.5, 4.0),
    "truncnorm": (0.1, -1.0, 1.0),
    "uniform": (0.5,),
    "vonmises": (0.4, 2.0),
    "wrapcauchy": (0.4, 0.3),
}
"""Name -> where to ask, and the parameters, such that the density is there positive."""


@pytest.mark.parametrize("name", MODULES)
def test_module_is_there(name: str) -> None:
    assert importlib.import_module(name).__name__.startswith("jax")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str) -> None:
    distribution = getattr(jsp.stats, name)
    log = getattr(distribution, "logpdf", None) or distribution.logpmf
    plain = getattr(distribution, "pdf", None) or distribution.pmf
    value = float(jax.jit(log)(*DISTRIBUTIONS[name]))
    assert np.isfinite(value)
    assert float(jax.jit(plain)(*DISTRIBUTIONS[name])) == pytest.approx(
        np.exp(value), rel=1e-4
    )


@pytest.mark.parametrize(
    "name",
    [
        "bessel_jn",
        "betaln",
        "digamma",
        "erf",
        "erfinv",
        "expit",
        "gammainc",
        "gammaln",
        "i0e",
        "i1e",
        "log_ndtr",
        "logit",
        "ndtr",
        "ndtri",
        "xlog1py",
        "xlogy",
        "zeta",
    ],
)
def test_special_function(name: str) -> None:
    x = jnp.array([0.2, 0.5, 0.8])
    call = getattr(jsp.special, name)
    match name:
        case "bessel_jn":
            value = call(x + 5, v=2)
        case "betaln" | "gammainc" | "xlog1py" | "xlogy":
            value = call(x, x + 1)
        case "zeta":
            value = call(x + 2, x + 1)
        case _:
            value = call(x)
    assert bool(jnp.all(jnp.isfinite(value)))
    assert len(set(np.asarray(value).ravel().tolist())) > 1


@pytest.mark.parametrize(
    "name",
    [
        "celu",
        "elu",
        "gelu",
        "glu",
        "hard_tanh",
        "leaky_relu",
        "log_sigmoid",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "soft_sign",
        "softplus",
        "softmax",
        "log_softmax",
        "standardize",
    ],
)
def test_activation(name: str) -> None:
    x = np.linspace(-3, 3, 12, dtype=np.float32)
    call = getattr(jax.nn, name)
    y = jax.jit(call)(x)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(call(x) ** 2)))(x)
    assert bool(jnp.all(jnp.isfinite(y)))
    assert bool(jnp.all(jnp.isfinite(gradient)))


def test_attention_is_softmax_of_products() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 5, 3, 8)).astype(np.float32) for _ in range(3))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, v)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(
            jax.jit(jax.nn.dot_product_attention)(q, k, v),
            expected,
            rtol=1e-3,
            atol=1e-4,
        )


@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos3"])
def test_resize(method: str) -> None:
    x = np.ones((8, 8, 3), np.float32)
    np.testing.assert_allclose(
        jax.image.resize(x, (16, 4, 3), method), np.ones((16, 4, 3)), rtol=1e-4
    )


@pytest.mark.parametrize(
    "name", ["segment_sum", "segment_prod", "segment_max", "segment_min"]
)
def test_segments(name: str) -> None:
    data = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    ids = np.array([0, 0, 1, 1])
    expected = {
        "sum": [3.0, 7.0],
        "prod": [2.0, 12.0],
        "max": [2.0, 4.0],
        "min": [1.0, 3.0],
    }[name.removeprefix("segment_")]
    np.testing.assert_allclose(
        getattr(jax.ops, name)(data, ids, num_segments=2), expected
    )


def test_trees() -> None:
    tree = {"a": [1, 2], "b": (3, None)}
    assert jax.tree.map(lambda x: x * 2, tree) == {"a": [2, 4], "b": (6, None)}
    leaves, structure = jax.tree.flatten(tree)
    assert jax.tree.unflatten(structure, leaves) == tree


def test_arrays_go_through_dlpack() -> None:
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(jnp.from_dlpack(x), x)


def test_profiler_writes_a_trace(tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(jnp.ones((64, 64)) @ jnp.ones((64, 64)))
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_executables_are_saved_and_loaded() -> None:
    # A jax without it fails only this test.
    from jax.experimental import serialize_executable

    compiled = (
        jax.jit(lambda x: x * 3).lower(jax.ShapeDtypeStruct((4,), np.float32)).compile()
    )
    parts = serialize_executable.serialize(compiled)
    loaded = serialize_executable.deserialize_and_load(
        *parts, execution_devices=jax.devices()[:1]
    )
    np.testing.assert_array_equal(loaded(np.ones(4, np.float32)), 3 * np.ones(4))


def test_programs_are_exported_and_imported() -> None:
    exported = jax.export.export(jax.jit(jnp.sin))(
        jax.ShapeDtypeStruct((4,), np.float32)
    )
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(
        jax.export.deserialize(exported.serialize()).call(x), np.sin(x), rtol=1e-5
    )


def test_optimizer_finds_the_minimum() -> None:
    result = jsp.optimize.minimize(
        lambda x: jnp.sum((x - 3) ** 2), jnp.zeros(3), method="BFGS"
    )
    np.testing.assert_allclose(result.x, 3 * np.ones(3), rtol=1e-3)


def test_ordinary_differential_equation() -> None:
    from jax.experimental.ode import odeint  # A jax without it fails only this test.

    y = odeint(lambda y, _t: -y, jnp.asarray(1.0), jnp.linspace(0.0, 1.0, 3))
    np.testing.assert_allclose(y, np.exp(-np.linspace(0.0, 1.0, 3)), rtol=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "float8_e4m3fn",
        "float8_e5m2",
        "int4",
        "uint4",
        "bfloat16",
        "float16",
        "bool",
        "complex64",
    ],
)
def test_dtype_survives_a_round_trip(name: str) -> None:
    dtype = getattr(jnp, name if name != "bool" else "bool_")
    x = np.array([0, 1, 1, 0], np.float32)
    np.testing.assert_array_equal(
        np.asarray(jnp.asarray(x).astype(dtype).astype(jnp.complex64)),
        x.astype(np.complex64),
    )


@pytest.mark.parametrize("name", ["float64", "int64", "uint64", "complex128"])
def test_wide_dtypes_are_opt_in(name: str) -> None:
    with (
        jax.enable_x64(True)
        if hasattr(jax, "enable_x64")
        else jax.experimental.enable_x64()
    ):
        x = jnp.arange(4, dtype=getattr(jnp, name))
        assert x.dtype == np.dtype(name)
        np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(x), np.arange(4) * 2)


@pytest.mark.parametrize("shape", [(1, 8, 8, 3), (2, 16, 16, 4)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution(shape: tuple[int, ...], stride: int) -> None:
    x = np.ones(shape, np.float32)
    kernel = np.ones((3, 3, shape[-1], 5), np.float32)
    out = jax.jit(
        lambda x, k: jax.lax.conv_general_dilated(
            x, k, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )(x, kernel)
    np.testing.assert_allclose(out, np.full(out.shape, 9.0 * shape[-1]), rtol=1e-5)


@pytest.mark.parametrize("name", ["max", "min", "add"])
def test_pooling(name: str) -> None:
    call, start = {
        "max": (jax.lax.max, -np.inf),
        "min": (jax.lax.min, np.inf),
        "add": (jax.lax.add, 0.0),
    }[name]
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    blocks = x.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(2, 2, 4)
    expected: Any = {
        "max": blocks.max(-1),
        "min": blocks.min(-1),
        "add": blocks.sum(-1),
    }[name]
    np.testing.assert_array_equal(
        jax.lax.reduce_window(x, start, call, (2, 2), (2, 2), "VALID"), expected
    )


def test_custom_calls_are_found() -> None:
    """The handlers of jaxlib are reached through the same interface as others."""
    call = jax.ffi.ffi_call(
        "lapack_spotrf_ffi", jax.ShapeDtypeStruct((2, 2), np.float32)
    )
    assert callable(call)
    with pytest.raises(Exception, match="no_such_target"):
        jax.jit(
            lambda x: jax.ffi.ffi_call(
                "no_such_target", jax.ShapeDtypeStruct(x.shape, x.dtype)
            )(x)
        )(np.ones(2, np.float32))
