"""Several devices at once: collectives, partitioned programs, arrays that are spread."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

parametrize = pytest.mark.parametrize

pytestmark = pytest.mark.multiaccelerator
ROWS = P("x")


@pytest.fixture
def mesh():
    """All devices in a row."""
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("needs more than one device")
    return Mesh(np.array(devices), ("x",))


def put(mesh, x, spec=ROWS):
    return jax.device_put(x, NamedSharding(mesh, spec))


def numbers(*shape):
    size = int(np.prod(shape))
    return np.arange(size, dtype=np.float32).reshape(shape)


def spread(mesh):
    """Return an array with two rows on each device."""
    return put(mesh, numbers(2 * mesh.size, 4))


def mapped(mesh, function, out=ROWS):
    """Apply a function to the part of each device."""
    split = partial(jax.shard_map, mesh=mesh, in_specs=ROWS, check_vma=False)
    return jax.jit(split(function, out_specs=out))


def test_arrays_are_spread(mesh):
    shards = spread(mesh).addressable_shards
    assert {shard.device for shard in shards} == set(mesh.devices.flat)
    assert {shard.data.shape for shard in shards} == {(2, 4)}


@parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_reduction(mesh, name):
    x = spread(mesh)
    collective = partial(getattr(jax.lax, name), axis_name="x")
    parts = np.asarray(x).reshape(mesh.size, 2, 4)
    reduce = getattr(np, name.removeprefix("p"))
    result = mapped(mesh, collective, P())(x)
    assert_allclose(result, reduce(parts, axis=0))


def test_all_gather(mesh):
    x = spread(mesh)
    gather = partial(jax.lax.all_gather, axis_name="x", tiled=True)
    assert_array_equal(mapped(mesh, gather, P())(x), x)


def test_reduce_scatter(mesh):
    n = mesh.size
    x = put(mesh, np.ones((n * n, 2), np.float32))
    scatter = partial(jax.lax.psum_scatter, axis_name="x", tiled=True)
    assert_array_equal(mapped(mesh, scatter)(x), np.full((n, 2), n))


def test_all_to_all(mesh):
    n = mesh.size
    x = numbers(n * n, 1)
    out = mapped(mesh, lambda x: jax.lax.all_to_all(x, "x", 0, 0, tiled=True))(x)
    square = np.asarray(out).reshape(n, n)
    assert_array_equal(square, x.reshape(n, n).T)


def test_ring(mesh):
    x = spread(mesh)
    pairs = [(i, (i + 1) % mesh.size) for i in range(mesh.size)]
    send = partial(jax.lax.ppermute, axis_name="x", perm=pairs)
    assert_array_equal(mapped(mesh, send)(x), np.roll(x, 2, axis=0))


@parametrize(
    ("left", "right"),
    [
        (P("x", None), P(None, None)),
        (P(None, None), P(None, "x")),
        (P(None, "x"), P("x", None)),
    ],
    ids=["rows", "columns", "both"],
)
def test_partitioned_matmul(mesh, left, right):
    n = 2 * mesh.size
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (n, n)).astype(np.float32)
    y = rng.integers(-2, 3, (n, n)).astype(np.float32)
    product = jax.jit(jnp.matmul)(put(mesh, x, left), put(mesh, y, right))
    assert_array_equal(product, x @ y)


def test_two_axes():
    devices = jax.devices()
    if len(devices) % 2 or len(devices) < 4:
        pytest.skip("needs an even number of devices, at least four")
    mesh = Mesh(np.array(devices).reshape(2, -1), ("data", "model"))
    rows = mesh.shape["model"] * 2
    w = put(mesh, np.ones((rows, 8), np.float32), P("model", None))
    x = put(mesh, np.ones((4, rows), np.float32), P("data", "model"))

    def program(w, x):
        return jnp.mean((x @ w) ** 2)

    loss, gradient = jax.jit(jax.value_and_grad(program))(w, x)
    assert_allclose(loss, float(rows**2), rtol=1e-5)
    assert gradient.sharding.mesh.shape == mesh.shape


def test_copies_between_devices(mesh):
    x = jax.device_put(numbers(8), mesh.devices.flat[0])
    for device in mesh.devices.flat:
        copy = jax.device_put(x, device)
        assert copy.devices() == {device}
        assert_array_equal(copy, x)
