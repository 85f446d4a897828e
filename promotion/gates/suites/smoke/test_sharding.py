"""Several devices at once: collectives, partitioned programs, arrays that are spread."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

pytestmark = pytest.mark.multiaccelerator
P = PartitionSpec


@pytest.fixture
def mesh() -> Mesh:
    """All devices in a row."""
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("needs more than one device")
    return Mesh(np.array(devices), ("x",))


def spread(mesh: Mesh, width: int = 4) -> Any:
    """Rows, several on each device."""
    count = 2 * mesh.size
    return jax.device_put(
        np.arange(count * width, dtype=np.float32).reshape(count, width),
        NamedSharding(mesh, P("x")),
    )


def mapped(mesh: Mesh, function: Any, out: PartitionSpec = P("x")) -> Any:  # noqa: B008
    """Apply a function to the part of each device."""
    return jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=P("x"), out_specs=out, check_vma=False
        )
    )


def test_arrays_are_spread(mesh: Mesh) -> None:
    x = spread(mesh)
    assert {shard.device for shard in x.addressable_shards} == set(mesh.devices.flat)
    assert {shard.data.shape for shard in x.addressable_shards} == {(2, 4)}


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_reduction(mesh: Mesh, name: str) -> None:
    x = spread(mesh)
    parts = np.asarray(x).reshape(mesh.size, 2, 4)
    expected = {
        "psum": parts.sum(0),
        "pmean": parts.mean(0),
        "pmax": parts.max(0),
        "pmin": parts.min(0),
    }[name]
    np.testing.assert_allclose(
        mapped(mesh, partial(getattr(jax.lax, name), axis_name="x"), P())(x), expected
    )


def test_all_gather(mesh: Mesh) -> None:
    x = spread(mesh)
    gathered = mapped(mesh, lambda x: jax.lax.all_gather(x, "x", tiled=True), P())(x)
    np.testing.assert_array_equal(gathered, x)


def test_reduce_scatter(mesh: Mesh) -> None:
    x = jax.device_put(
        np.ones((mesh.size * mesh.size, 2), np.float32), NamedSharding(mesh, P("x"))
    )
    out = mapped(mesh, lambda x: jax.lax.psum_scatter(x, "x", tiled=True))(x)
    np.testing.assert_array_equal(out, np.full((mesh.size, 2), mesh.size))


def test_all_to_all(mesh: Mesh) -> None:
    n = mesh.size
    x = jax.device_put(
        np.arange(n * n, dtype=np.float32).reshape(n * n, 1),
        NamedSharding(mesh, P("x")),
    )
    out = mapped(mesh, lambda x: jax.lax.all_to_all(x, "x", 0, 0, tiled=True))(x)
    np.testing.assert_array_equal(
        np.asarray(out).reshape(n, n), np.arange(n * n).reshape(n, n).T
    )


def test_ring(mesh: Mesh) -> None:
    n = mesh.size
    x = spread(mesh)
    out = mapped(
        mesh, lambda x: jax.lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)])
    )(x)
    np.testing.assert_array_equal(
        out, np.roll(np.asarray(x).reshape(n, 2, 4), 1, axis=0).reshape(2 * n, 4)
    )


def test_pmap(mesh: Mesh) -> None:
    x = np.arange(mesh.size, dtype=np.float32)
    np.testing.assert_allclose(
        jax.pmap(lambda v: v / jax.lax.psum(v, "i"), axis_name="i")(x), x / x.sum()
    )


@pytest.mark.parametrize("kind", ["rows", "columns", "both"])
def test_partitioned_matmul(mesh: Mesh, kind: str) -> None:
    n = mesh.size
    x, y = (
        np.random.default_rng(s).integers(-2, 3, (2 * n, 2 * n)).astype(np.float32)
        for s in (0, 1)
    )
    specs = {
        "rows": (P("x", None), P(None, None)),
        "columns": (P(None, None), P(None, "x")),
        "both": (P(None, "x"), P("x", None)),
    }
    a, b = (
        jax.device_put(v, NamedSharding(mesh, spec))
        for v, spec in zip((x, y), specs[kind], strict=True)
    )
    np.testing.assert_array_equal(jax.jit(jnp.matmul)(a, b), x @ y)


def test_two_axes() -> None:
    devices = jax.devices()
    if len(devices) % 2 or len(devices) < 4:
        pytest.skip("needs an even number of devices, at least four")
    mesh = Mesh(np.array(devices).reshape(2, -1), ("data", "model"))
    w = np.ones((mesh.shape["model"] * 2, 8), np.float32)
    x = np.ones((4, mesh.shape["model"] * 2), np.float32)
    placed = (
        jax.device_put(x, NamedSharding(mesh, P("data", "model"))),
        jax.device_put(w, NamedSharding(mesh, P("model", None))),
    )
    loss, gradient = jax.jit(jax.value_and_grad(lambda w, x: jnp.mean((x @ w) ** 2)))(
        placed[1], placed[0]
    )
    np.testing.assert_allclose(loss, float(w.shape[0] ** 2), rtol=1e-5)
    assert gradient.sharding.mesh.shape == mesh.shape


def test_gradient_is_reduced_over_devices(mesh: Mesh) -> None:
    x = spread(mesh)
    w = np.ones(4, np.float32)
    gradient = jax.jit(jax.grad(lambda w, x: jnp.sum(x @ w)))(w, x)
    np.testing.assert_allclose(gradient, np.asarray(x).sum(0), rtol=1e-5)


def test_constraint_inside_a_program(mesh: Mesh) -> None:
    out = jax.jit(
        lambda x: jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(None)))
    )(spread(mesh))
    assert out.sharding.is_fully_replicated


def test_copies_between_devices(mesh: Mesh) -> None:
    x = jax.device_put(np.arange(8.0, dtype=np.float32), mesh.devices.flat[0])
    for device in mesh.devices.flat:
        y = jax.device_put(x, device)
        assert y.devices() == {device}
        np.testing.assert_array_equal(y, x)
