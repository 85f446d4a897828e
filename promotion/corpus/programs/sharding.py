"""Programs on a mesh of 2 x 4 devices.

Single collectives, and models that the partitioner splits.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .declaration import program

BOTH = ("data", "model")


@program("f32[64,128]@data|model,-", corpus="small", devices=8)
def all_reduce(mesh, x):
    """Compute a sum over all devices (psum) and a maximum over one axis (pmax)."""

    def local(block):
        return lax.psum(block, BOTH), lax.pmax(block, "model")

    return jax.shard_map(
        local, mesh=mesh, in_specs=P(BOTH), out_specs=(P(), P("data"))
    )(x)


@program("bf16[64,128]@data|model,-", devices=8)
def all_gather(mesh, x):
    """Gather the parts of all devices along one axis (all_gather)."""

    def local(block):
        return lax.all_gather(block, "model", tiled=True)

    return jax.shard_map(local, mesh=mesh, in_specs=P(BOTH), out_specs=P(BOTH))(x)


@program("f32[64,128]@-,data", devices=8)
def reduce_scatter(mesh, x):
    """Sum along one axis and keep one part on each device (psum_scatter)."""

    def local(block):
        return lax.psum_scatter(block, "model", tiled=True)

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=P(None, "data"),
        out_specs=P("model", "data"),
        check_vma=False,
    )(x)


@program("f32[64,128]@data|model,-", devices=8)
def all_to_all(mesh, x):
    """Move the split from one dimension to another (all_to_all)."""

    def local(block):
        return lax.all_to_all(block, BOTH, split_axis=1, concat_axis=0, tiled=True)

    return jax.shard_map(local, mesh=mesh, in_specs=P(BOTH), out_specs=P(None, BOTH))(x)


@program("f32[64,128]@data|model,-", devices=8)
def collective_permute(mesh, x):
    """Send from each device to the next device in a ring (ppermute)."""

    def local(block):
        return block + lax.ppermute(block, BOTH, [(i, (i + 1) % 8) for i in range(8)])

    return jax.shard_map(local, mesh=mesh, in_specs=P(BOTH), out_specs=P(BOTH))(x)


@program("f32[64,128]@data|model,-", devices=8)
def collective_broadcast(mesh, x):
    """Broadcast from the first device of an axis (pbroadcast)."""

    def local(block):
        return lax.pbroadcast(block, ("model",), 0)

    return jax.shard_map(
        local, mesh=mesh, in_specs=P(BOTH), out_specs=P(BOTH), check_vma=False
    )(x)


@program(
    "bf16[256,512]@data,-",
    "bf16[512,1024]@-,model",
    "bf16[1024,512]@model,-",
    corpus="small",
    devices=8,
)
def tensor_parallel(mesh, x, up, down):
    """Apply a feed-forward network with weights split by columns, then by rows."""
    y = jax.nn.relu(x @ up) @ down
    return lax.with_sharding_constraint(y, NamedSharding(mesh, P("data", None)))


@program(
    "f32[64,128]@data|model,-",
    "f32[128,32]",
    "f32[64,32]@data|model,-",
    devices=8,
)
def data_parallel(mesh, x, w, y):
    """Compute the gradient of a loss over a batch that is split over all devices."""

    def loss(weights):
        return jnp.mean((jnp.tanh(x @ weights) - y) ** 2)

    return lax.with_sharding_constraint(
        w - 0.1 * jax.grad(loss)(w), NamedSharding(mesh, P())
    )


@program("f32[128,64]@data,model", devices=8)
def reshard(mesh, x):
    """Transpose into another sharding, for which the partitioner chooses collectives."""
    return lax.with_sharding_constraint(
        jnp.sort(x, axis=0).T, NamedSharding(mesh, P("data", "model"))
    )
