"""Calls of a kernel on AMD GPUs and of its reference elsewhere, under jit, vmap and shard_map."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import Array

from jax_aiter._choice import Choice
from jax_aiter._table import XLA, FfiTarget
from jax_aiter._warning import warned

Arrays = tuple[Array, ...]
PLATFORM = "rocm"
"""Platform that kernels are lowered for."""


def dispatch(
    choice: Choice,
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    *args: Any,
) -> Any:
    """Call the kernel if code is lowered for AMD GPUs, else the reference.

    One program can thus be lowered for several platforms. A forced choice has no
    reference as a fallback, so lowering for another platform is an error.
    """
    if choice.blind:
        leaves, tree = jax.tree.flatten(args)
        leaves[0] = warned(leaves[0])
        args = jax.tree.unflatten(tree, leaves)
    if choice.backend == XLA:
        return reference(*args)
    branches = {PLATFORM: kernel}
    if not choice.forced:
        branches["default"] = reference
    return jax.lax.platform_dependent(*args, **branches)


def ffi(
    target: FfiTarget,
    results: Sequence[tuple[Sequence[int], Any]],
    **attrs: Any,
) -> Callable[..., Arrays]:
    """Return a custom call as a function of its operands; vmap runs the call once per element.

    Args:
        target: declaration of the call.
        results: shape and dtype of each result.
        attrs: values of exactly the attributes that `target` declares.
    """

    def call(*operands: Array) -> Arrays:
        shapes = [_result(shape, dtype, operands) for shape, dtype in results]
        custom = jax.ffi.ffi_call(target.name, shapes, vmap_method="sequential")
        return tuple(custom(*operands, **attrs))

    return call


def rowwise(
    call: Callable[[int], Callable[..., Arrays]],
    rows: Sequence[bool],
    fits: Callable[[int], bool] = lambda _count: True,
) -> Callable[..., Arrays]:
    """Return a custom call with independent rows; vmap adds rows instead of calls.

    Args:
        call: function that returns the call for a number of rows; all results have the
            rows as first dimension.
        rows: for each operand, whether its first dimension is the rows; all rows share
            the other operands.
        fits: whether the handler accepts a number of rows; with more of them, vmap runs
            the call once per element.
    """
    with_rows = tuple(rows).index(True)

    def plain(*operands: Array) -> Arrays:
        return call(operands[with_rows].shape[0])(*operands)

    def batched(
        size: int,
        is_batched: Sequence[bool],
        *operands: Array,
    ) -> tuple[Arrays, tuple[bool, ...]]:
        first = 1 if is_batched[with_rows] else 0
        count = operands[with_rows].shape[first]
        shared = [batch for batch, own in zip(is_batched, rows, strict=True) if not own]
        if any(shared) or not fits(size * count):
            axes = tuple(0 if batch else None for batch in is_batched)
            out = jax.vmap(plain, in_axes=axes)(*operands)
            return out, (True,) * len(out)
        merged = []
        for operand, batch, has_rows in zip(operands, is_batched, rows, strict=True):
            if has_rows and not batch:
                operand = jax.numpy.broadcast_to(operand, (size, *operand.shape))
            if has_rows:
                operand = operand.reshape(-1, *operand.shape[2:])
            merged.append(operand)
        whole = mapped(*merged)
        out = tuple(part.reshape(size, -1, *part.shape[1:]) for part in whole)
        return out, (True,) * len(out)

    mapped = jax.custom_batching.custom_vmap(plain)
    mapped.def_vmap(batched)
    return mapped  # type: ignore[no-any-return]


def contract(
    subscripts: str,
    a: Array,
    b: Array,
    wide: Any,
) -> Array:
    """Return jnp.einsum of two arrays of one dtype, summed in a wider dtype.

    On CPUs, some versions of XLA cannot multiply 16-bit floats into a wider result;
    there, both arrays are widened first, which is exact. Elsewhere they keep their
    dtype, so that matrix units are used.

    Args:
        subscripts: subscripts of jnp.einsum.
        a, b: the arrays.
        wide: dtype of sums and of the result.
    """
    if a.dtype == wide:
        highest = jax.lax.Precision.HIGHEST
        return jax.numpy.einsum(subscripts, a, b, precision=highest)

    def widened(a: Array, b: Array) -> Array:
        return contract(subscripts, a.astype(wide), b.astype(wide), wide)

    def halves(a: Array, b: Array) -> Array:
        return jax.numpy.einsum(subscripts, a, b, preferred_element_type=wide)

    return jax.lax.platform_dependent(a, b, cpu=widened, default=halves)


def together(*arrays: Any) -> tuple[Any, ...]:
    """Return the arrays varying over the same axes of a shard_map, for correct gradients.

    Outside of shard_map, arrays are returned unchanged, as are arguments that are None.
    """
    present = [array for array in arrays if array is not None]
    axes = all_varying(*present)
    return tuple(array if array is None else vary(array, axes) for array in arrays)


def all_varying(*arrays: Any) -> frozenset[str]:
    """Return the axes of a shard_map over which any of the arrays varies."""
    return frozenset[str]().union(*map(varying, arrays))


def varying(array: Any) -> frozenset[str]:
    """Return the axes of a shard_map over which an array varies."""
    kind = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)
    axes: frozenset[str] = (
        getattr(kind, "vma", frozenset()) if manual is None else manual.varying
    )
    return axes


def vary(array: Any, axes: frozenset[str]) -> Any:
    """Return the array varying over these axes in addition to its own."""
    more = tuple(sorted(axes - varying(array)))
    if not more:
        return array
    # jax 0.8 has pvary; later versions replace it by pcast.
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, more, to="varying")
    return jax.lax.pvary(array, more)


def empty(dtype: Any) -> Array:
    """Return the placeholder of an omitted operand, of shape [0]."""
    return jax.numpy.zeros((0,), dtype)


def int32(value: int) -> Any:
    """Return a 32-bit attribute.

    Python's own numbers become 64 bits wide if jax_enable_x64 is set.
    """
    return np.int32(value)


def _result(
    shape: Sequence[int],
    dtype: Any,
    operands: Sequence[Array],
) -> Any:
    axes = all_varying(*operands)
    if not axes:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    if not _has_manual_axis_type():
        return jax.ShapeDtypeStruct(tuple(shape), dtype, vma=axes)
    like = jax.typeof(next(operand for operand in operands if varying(operand) == axes))
    # A type that varies over axes needs the sharding of their mesh, with an unsharded
    # spec.
    unsharded = jax.sharding.PartitionSpec(*[None] * len(shape))
    sharding = like.sharding.update(spec=unsharded)
    return jax.ShapeDtypeStruct(
        tuple(shape), dtype, sharding=sharding, manual_axis_type=like.manual_axis_type
    )


@cache
def _has_manual_axis_type() -> bool:
    parameters = inspect.signature(jax.ShapeDtypeStruct.__init__).parameters
    return "manual_axis_type" in parameters
