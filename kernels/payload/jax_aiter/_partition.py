"""Division of an operation between the devices of a mesh.

A `Rule` names the dimensions that may be divided. Each device then runs the operation
on its part, so that custom calls see local shapes and no operand is gathered. For axes
of the type Explicit, `jax.shard_map` divides the operation by the shardings in the
types of the operands; for axes of the type Auto, XLA's partitioner does by a rule of
Shardy. Inside of `jax.shard_map`, the caller has divided the operands already.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_aiter._native import Arrays

Axes = Mapping[str, tuple[str, ...]]
"""Divided dimension -> axes of the mesh; dimensions that are not divided are missing."""
Local = Callable[..., Arrays]
"""function(axes, *operands): compute the results of one device, complete sums included."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Dimensions of an operation.

    A name with a prime, such as h', is divided together with the name without one, and
    has another size.

    Attributes:
        operands: names of the dimensions of each operand.
        results: names of the dimensions of each result.
        parts: dimensions that may be divided -> number that the size of each part must
            be a multiple of.
    """

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    parts: Mapping[str, int]

    @staticmethod
    def parse(text: str, **parts: int) -> Rule:
        """Return the rule of a text such as "m k, n k -> m n" and of `parts`."""
        operands, results = text.split("->")
        return Rule(_dimensions(operands), _dimensions(results), parts)

    def with_batch(self, is_batched: Sequence[bool]) -> Rule:
        """Return the rule with a new first dimension of these operands and of all results."""
        name = f"batch{len(self.parts)}"
        operands = []
        for batched, dims in zip(is_batched, self.operands, strict=True):
            operands.append((name, *dims) if batched else dims)
        results = tuple((name, *dims) for dims in self.results)
        return Rule(tuple(operands), results, {**self.parts, name: 1})

    def assign(
        self,
        shapes: Sequence[Sequence[int]],
        specs: Iterable[Any],
        mesh: Mapping[str, int],
    ) -> Axes:
        """Return the axes that divide each dimension; the first array decides if several differ.

        Args:
            shapes: shapes of the operands.
            specs: partition specs of the operands, and possibly of the results.
            mesh: axis -> number of devices.
        """
        sizes: dict[str, int] = {}
        for names, shape in zip(self.operands, shapes, strict=True):
            sizes |= zip(names, shape, strict=True)
        found: dict[str, tuple[str, ...]] = {}
        used: set[str] = set()
        for names, spec in zip(self.operands + self.results, specs, strict=False):
            for name, entry in zip(names, spec, strict=False):
                base = name.rstrip("'")
                axes = entry or ()
                if not isinstance(axes, tuple):
                    axes = (axes,)
                if base not in self.parts or base in found or used.intersection(axes):
                    continue
                # Fewer axes may divide a dimension that all of them do not.
                while axes and not self._divides(base, axes, sizes, mesh):
                    axes = axes[:-1]
                if axes:
                    found[base] = axes
                    used.update(axes)
        return found

    def specs(self, axes: Axes) -> tuple[tuple[P, ...], tuple[P, ...]]:
        """Return the partition specs of the operands and those of the results."""

        def spec(names: Sequence[str]) -> P:
            return P(*(axes.get(name.rstrip("'")) for name in names))

        return tuple(map(spec, self.operands)), tuple(map(spec, self.results))

    def for_shardy(self) -> tuple[str, tuple[str, ...]]:
        """Return the rule in Shardy's notation, and the dimensions that it must not divide."""
        operands = ", ".join(map(" ".join, self.operands))
        results = ", ".join(map(" ".join, self.results))
        text = f"{operands} -> {results}".replace("'", "_too")
        # Shardy needs them in the order of their first appearance.
        names = dict.fromkeys(re.findall(r"\w+", text))
        whole = [name for name in names if name.removesuffix("_too") not in self.parts]
        return text, tuple(whole)

    def _divides(
        self,
        base: str,
        axes: Sequence[str],
        sizes: Mapping[str, int],
        mesh: Mapping[str, int],
    ) -> bool:
        count = math.prod(mesh[axis] for axis in axes)
        too = sizes.get(f"{base}'", count)
        return sizes[base] % (count * self.parts[base]) == 0 and too % count == 0


def partitioned(
    rule: Rule,
    function: Local,
    *operands: Array,
    by_rule: bool,
) -> Arrays:
    """Return function(axes, *operands), divided between the devices of the mesh.

    Vmap adds a dimension to divide.

    Args:
        rule: dimensions of operands and results.
        function: computation on one device.
        operands: the arrays.
        by_rule: whether axes of the type Auto divide by the rule, as custom calls need;
            if not, XLA divides the function's own operations.
    """

    def plain(*operands: Array) -> Arrays:
        return _by_mesh(rule, function, operands, by_rule)

    def batched(
        _size: int,
        is_batched: Sequence[bool],
        *operands: Array,
    ) -> tuple[Arrays, tuple[bool, ...]]:
        in_axes = [0 if batched else None for batched in is_batched]

        def inner(axes: Axes, *operands: Array) -> Arrays:
            return tuple(jax.vmap(partial(function, axes), in_axes)(*operands))

        own = rule.with_batch(is_batched)
        out = partitioned(own, inner, *operands, by_rule=by_rule)
        return out, (True,) * len(out)

    mapped = jax.custom_batching.custom_vmap(plain)
    mapped.def_vmap(batched)
    return tuple(mapped(*operands))


def by_rows(
    text: str,
    function: Callable[..., Arrays],
    *operands: Array,
    by_rule: bool,
) -> Arrays:
    """Return function(*operands) with leading dimensions merged, divided between devices.

    Args:
        text: rule such as "* n, n -> * n, n"; * is all dimensions of rows, of which the
            first operand has at least one.
        function: computation on one device, with [rows, n] instead of [..., n].
        operands: the arrays. Results without rows are summed over all devices.
        by_rule: as for `partitioned`.
    """
    # The first operand has a word for each dimension, but * for its rows.
    words = len(re.split("[,-]", text, maxsplit=1)[0].split())
    names = [f"row{place}" for place in range(operands[0].ndim - words + 1)]
    parts = dict.fromkeys(names, 1)
    rule = Rule.parse(text.replace("*", " ".join(names)), **parts)

    def local(axes: Axes, *operands: Array) -> Arrays:
        rows = operands[0].shape[: len(names)]
        flat = []
        for part, dims in zip(operands, rule.operands, strict=True):
            if "row0" in dims:
                part = part.reshape(math.prod(rows), *part.shape[len(rows) :])
            flat.append(part)
        results = []
        for part, dims in zip(function(*flat), rule.results, strict=True):
            if "row0" in dims:
                part = part.reshape(*rows, *part.shape[1:])
            else:
                part = total(part, axes, *names)
            results.append(part)
        return tuple(results)

    return partitioned(rule, local, *operands, by_rule=by_rule)


def _dimensions(side: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(array.split()) for array in side.split(","))


def _sharded(mesh: Any, specs: Sequence[P]) -> tuple[NamedSharding, ...]:
    return tuple(NamedSharding(mesh, spec) for spec in specs)


def total(
    array: Array,
    axes: Axes,
    *dims: str,
) -> Array:
    """Return the sum of the arrays of all devices that divide one of these dimensions."""
    between: list[str] = []
    for name in dims:
        between += axes.get(name, ())
    return jax.lax.psum(array, tuple(between)) if between else array


def like(gradient: Array, operand: Array) -> Array:
    """Return the gradient with its operand's sharding, on meshes with explicit axes."""
    wanted = jax.typeof(operand).sharding
    if AxisType.Explicit not in wanted.mesh.axis_types:
        return gradient
    if jax.typeof(gradient).sharding == wanted:
        return gradient
    return jax.sharding.reshard(gradient, wanted)


def _by_mesh(
    rule: Rule,
    function: Local,
    operands: Sequence[Array],
    by_rule: bool,
) -> Arrays:
    # vmap hides the axes that divide its own dimension from the mesh of the types.
    meshes = (jax.typeof(operand).sharding.mesh for operand in operands)
    own = (mesh for mesh in meshes if not mesh.empty)
    mesh = next(own, jax.sharding.get_abstract_mesh())
    if AxisType.Explicit in mesh.axis_types:
        return _by_types(rule, function, operands, mesh)
    if AxisType.Manual in mesh.axis_types or not by_rule:
        return function({}, *operands)
    return _by_xla(rule, function, operands)


def _by_types(
    rule: Rule,
    function: Local,
    operands: Sequence[Array],
    mesh: Any,
) -> Arrays:
    shapes = [operand.shape for operand in operands]
    specs = [jax.typeof(operand).sharding.spec for operand in operands]
    axes = rule.assign(shapes, specs, mesh.shape)
    in_specs, out_specs = rule.specs(axes)
    shardings = _sharded(mesh, in_specs)
    placed = map(jax.sharding.reshard, operands, shardings)
    # Without names, shard_map takes all axes except those that vmap hides.
    names: set[str] = set()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    if set(mesh.axis_types) != {AxisType.Explicit}:
        names = {name for name, kind in kinds if kind == AxisType.Explicit}
    divided = jax.shard_map(
        partial(function, axes),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=names,
        check_vma=False,
    )
    return tuple(divided(*placed))


def _by_xla(
    rule: Rule,
    function: Local,
    operands: Sequence[Array],
) -> Arrays:
    def assigned(mesh: Any, parts: Sequence[Any]) -> tuple[Axes, Any, Any]:
        shapes = [part.shape for part in parts[: len(operands)]]
        specs = [part.sharding.spec for part in parts]
        axes = rule.assign(shapes, specs, mesh.shape)
        in_specs, out_specs = rule.specs(axes)
        return axes, _sharded(mesh, in_specs), _sharded(mesh, out_specs)

    def partition(
        mesh: Any,
        arguments: Any,
        results: Any,
    ) -> Any:
        axes, in_specs, out_specs = assigned(mesh, (*arguments, *results))
        automatic = (AxisType.Auto,) * len(mesh.axis_names)
        plain = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=automatic)

        def local(*operands: Array) -> Arrays:
            # The parts of one device have no shardings, although the caller's mesh may
            # have explicit axes.
            with jax.sharding.use_abstract_mesh(plain):
                return function(axes, *operands)

        return mesh, local, out_specs, in_specs

    def infer(
        mesh: Any,
        arguments: Any,
        _results: Any,
    ) -> Any:
        # XLA's older partitioner, GSPMD, asks for this instead of the rule.
        return assigned(mesh, arguments)[2]

    # custom_partitioning refuses functions with constants, unless they are those of an
    # inner jit.
    divided = custom_partitioning(jax.jit(lambda *operands: function({}, *operands)))
    text, whole = rule.for_shardy()
    divided.def_partition(
        partition, infer, sharding_rule=text, need_replication_factors=whole
    )
    return tuple(divided(*operands))
