"""Modules that the compatibility tables list: jax.scipy, jax.nn, jax.image, dtypes, ffi."""

import importlib

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import jax.scipy.optimize
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

parametrize = pytest.mark.parametrize

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
    "binom": (2, 5, 0.4),
    "chi2": (1.5, 3.0),
    "gamma": (1.2, 2.0),
    "laplace": (0.4,),
    "norm": (0.3,),
    "poisson": (2, 3.0),
    "t": (0.5, 4.0),
    "truncnorm": (0.1, -1.0, 1.0),
    "vonmises": (0.4, 2.0),
}
"""Name -> where to ask, and the parameters, such that the density is there positive."""


@parametrize("name", MODULES)
def test_module_is_there(name):
    assert importlib.import_module(name).__name__.startswith("jax")


@parametrize("name", DISTRIBUTIONS)
def test_distribution(name):
    distribution = getattr(jsp.stats, name)
    log = getattr(distribution, "logpdf", None) or distribution.logpmf
    plain = getattr(distribution, "pdf", None) or distribution.pmf
    arguments = DISTRIBUTIONS[name]
    value = float(jax.jit(log)(*arguments))
    density = float(jax.jit(plain)(*arguments))
    assert np.isfinite(value)
    assert density == pytest.approx(np.exp(value), rel=1e-4)


@parametrize(
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
def test_special_function(name):
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


@parametrize(
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
def test_activation(name):
    x = np.linspace(-3, 3, 12, dtype=np.float32)
    call = getattr(jax.nn, name)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(call(x) ** 2)))(x)
    for result in (jax.jit(call)(x), gradient):
        assert bool(jnp.all(jnp.isfinite(result)))


def test_attention_is_softmax_of_products():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 5, 3, 8)).astype(np.float32)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
    weights = jax.nn.softmax(scores)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, v)
    with jax.default_matmul_precision("highest"):
        actual = jax.jit(jax.nn.dot_product_attention)(q, k, v)
    assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


@parametrize("method", ["nearest", "linear", "cubic", "lanczos3"])
def test_resize(method):
    x = np.ones((8, 8, 3), np.float32)
    resized = jax.image.resize(x, (16, 4, 3), method)
    assert_allclose(resized, np.ones((16, 4, 3)), rtol=1e-4)


SEGMENTS = {
    "sum": [3.0, 7.0],
    "prod": [2.0, 12.0],
    "max": [2.0, 4.0],
    "min": [1.0, 3.0],
}


@parametrize("name", SEGMENTS)
def test_segments(name):
    data = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    owners = np.array([0, 0, 1, 1])
    call = getattr(jax.ops, f"segment_{name}")
    result = call(data, owners, num_segments=2)
    assert_allclose(result, SEGMENTS[name])


def test_trees():
    tree = {"a": [1, 2], "b": (3, None)}
    leaves, structure = jax.tree.flatten(tree)
    assert leaves == [1, 2, 3]
    assert jax.tree.unflatten(structure, leaves) == tree


def test_arrays_go_through_dlpack():
    x = jnp.arange(6.0)
    assert_array_equal(jnp.from_dlpack(x), x)


def test_profiler_writes_a_trace(tmp_path):
    ones = jnp.ones((64, 64))
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(ones @ ones)
    assert list(tmp_path.rglob("*.xplane.pb"))


FOUR = jax.ShapeDtypeStruct((4,), np.float32)


def test_executables_are_saved_and_loaded():
    # A jax without it fails only this test.
    from jax.experimental import serialize_executable

    compiled = jax.jit(lambda x: x * 3).lower(FOUR).compile()
    parts = serialize_executable.serialize(compiled)
    devices = jax.devices()[:1]
    loaded = serialize_executable.deserialize_and_load(
        *parts, execution_devices=devices
    )
    ones = np.ones(4, np.float32)
    assert_array_equal(loaded(ones), 3 * ones)


def test_programs_are_exported_and_imported():
    exported = jax.export.export(jax.jit(jnp.sin))(FOUR)
    imported = jax.export.deserialize(exported.serialize())
    x = np.arange(4, dtype=np.float32)
    assert_allclose(imported.call(x), np.sin(x), rtol=1e-5)


def test_optimizer_finds_the_minimum():
    def cost(x):
        return jnp.sum((x - 3) ** 2)

    result = jsp.optimize.minimize(cost, jnp.zeros(3), method="BFGS")
    assert_allclose(result.x, 3 * np.ones(3), rtol=1e-3)


@parametrize(
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
def test_dtype_survives_a_round_trip(name):
    dtype = getattr(jnp, name if name != "bool" else "bool_")
    x = np.array([0, 1, 1, 0], np.float32)
    there = jnp.asarray(x).astype(dtype)
    assert_array_equal(there.astype(jnp.complex64), x)


@parametrize("name", ["float64", "int64", "uint64", "complex128"])
def test_wide_dtypes_are_opt_in(name):
    # Older releases of jax have it in jax.experimental.
    module = jax if hasattr(jax, "enable_x64") else jax.experimental
    with module.enable_x64(True):
        x = jnp.arange(4, dtype=getattr(jnp, name))
        doubled = jax.jit(lambda x: x * 2)(x)
    assert x.dtype == np.dtype(name)
    assert_array_equal(doubled, np.arange(4) * 2)


@parametrize("shape", [(1, 8, 8, 3), (2, 16, 16, 4)], ids=str)
@parametrize("stride", [1, 2])
def test_convolution(shape, stride):
    layout = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, strides, "VALID", dimension_numbers=layout
        )

    channels = shape[-1]
    x = np.ones(shape, np.float32)
    kernel = np.ones((3, 3, channels, 5), np.float32)
    out = jax.jit(convolve)(x, kernel)
    assert_allclose(out, np.full(out.shape, 9.0 * channels), rtol=1e-5)


POOLING = {
    "max": (jax.lax.max, -np.inf),
    "min": (jax.lax.min, np.inf),
    "sum": (jax.lax.add, 0.0),
}


@parametrize("name", POOLING)
def test_pooling(name):
    call, start = POOLING[name]
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    pooled = jax.lax.reduce_window(x, start, call, (2, 2), (2, 2), "VALID")
    blocks = x.reshape(2, 2, 2, 2)
    assert_array_equal(pooled, getattr(blocks, name)(axis=(1, 3)))


def test_unknown_custom_call_is_refused():
    call = jax.ffi.ffi_call("no_such_target", FOUR)
    with pytest.raises(Exception, match="no_such_target"):
        jax.jit(call)(np.ones(4, np.float32))
