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

Axes = Mapping[str, tuple[str, ...]]
"""Divided dimension -> axes of the mesh; dimensions that are not divided are missing."""
Local = Callable[..., tuple[Array, ...]]
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
        operands = (
            (name, *dims) if batched else dims
            for batched, dims in zip(is_batched, self.operands, strict=True)
        )
        return Rule(
            tuple(operands),
            tuple((name, *dims) for dims in self.results),
            {**self.parts, name: 1},
        )

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
        for names, spec in zip(self.operands + self.results, specs, strict=False):
            for name, entry in zip(names, spec, strict=False):
                base = name.rstrip("'")
                axes = entry or ()
                if not isinstance(axes, tuple):
                    axes = (axes,)
                if (
                    base not in self.parts
                    or base in found
                    or any({*axes} & {*used} for used in found.values())
                ):
                    continue
                while axes and not self._divides(
                    base, math.prod(mesh[axis] for axis in axes), sizes
                ):
                    axes = axes[:-1]
                if axes:
                    found[base] = axes
        return found

    def specs(self, axes: Axes) -> tuple[tuple[P, ...], tuple[P, ...]]:
        """Return the partition specs of the operands and those of the results."""

        def spec(names: Sequence[str]) -> P:
            return P(*(axes.get(name.rstrip("'")) for name in names))

        return tuple(map(spec, self.operands)), tuple(map(spec, self.results))

    def for_shardy(self) -> tuple[str, dict[str, Any]]:
        """Return the rule in Shardy's notation, with its arguments."""
        operands = ", ".join(map(" ".join, self.operands))
        results = ", ".join(map(" ".join, self.results))
        text = f"{operands} -> {results}".replace("'", "_too")
        # Shardy needs them in the order of their first appearance.
        names = dict.fromkeys(re.findall(r"\w+", text))
        whole = tuple(
            name for name in names if name.removesuffix("_too") not in self.parts
        )
        return text, {"need_replication_factors": whole}

    def _divides(self, base: str, count: int, sizes: Mapping[str, int]) -> bool:
        return (
            sizes[base] % (count * self.parts[base]) == 0
            and sizes.get(f"{base}'", count) % count == 0
        )


def partitioned(
    rule: Rule, function: Local, *operands: Array, by_rule: bool
) -> tuple[Array, ...]:
    """Return function(axes, *operands), divided between the devices of the mesh.

    Vmap adds a dimension to divide.

    Args:
        rule: dimensions of operands and results.
        function: computation on one device.
        operands: the arrays.
        by_rule: whether axes of the type Auto divide by the rule, as custom calls need;
            if not, XLA divides the function's own operations.
    """

    def plain(*operands: Array) -> tuple[Array, ...]:
        return _by_mesh(rule, function, operands, by_rule)

    def batched(
        _size: int, is_batched: Sequence[bool], *operands: Array
    ) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
        def inner(axes: Axes, *operands: Array) -> tuple[Array, ...]:
            mapped = jax.vmap(
                partial(function, axes),
                [0 if batched else None for batched in is_batched],
            )
            results: tuple[Array, ...] = mapped(*operands)
            return results

        out = partitioned(
            rule.with_batch(is_batched), inner, *operands, by_rule=by_rule
        )
        return out, (True,) * len(out)

    mapped = jax.custom_batching.custom_vmap(plain)
    mapped.def_vmap(batched)
    results: tuple[Array, ...] = mapped(*operands)
    return results


def by_rows(
    text: str,
    function: Callable[..., tuple[Array, ...]],
    *operands: Array,
    by_rule: bool,
    **parts: int,
) -> tuple[Array, ...]:
    """Return function(*operands) with leading dimensions merged, divided between devices.

    Args:
        text: rule such as "* n, n -> * n, n"; * is all dimensions of rows, of which the
            first operand has at least one.
        function: computation on one device, with [rows, n] instead of [..., n].
        operands: the arrays. Results without rows are summed over all devices.
        by_rule: as for `partitioned`.
        parts: other dimensions that may be divided, as in `Rule`.
    """
    first = text.split(",")[0].split("->")[0].split()
    names = [f"row{place}" for place in range(operands[0].ndim - len(first) + 1)]
    rule = Rule.parse(
        text.replace("*", " ".join(names)), **dict.fromkeys(names, 1), **parts
    )

    def local(axes: Axes, *operands: Array) -> tuple[Array, ...]:
        rows = operands[0].shape[: len(names)]
        flat = (
            (
                part.reshape(math.prod(rows), *part.shape[len(rows) :])
                if dims[:1] == ("row0",)
                else part
            )
            for part, dims in zip(operands, rule.operands, strict=True)
        )
        results = []
        for part, dims in zip(function(*flat), rule.results, strict=True):
            if dims[:1] == ("row0",):
                results.append(part.reshape(*rows, *part.shape[1:]))
            else:
                divided = [name for name in rule.parts if name not in dims]
                results.append(total(part, axes, *divided))
        return tuple(results)

    return partitioned(rule, local, *operands, by_rule=by_rule)


def _words(array: str) -> tuple[str, ...]:
    return tuple(array.split())


def _dimensions(side: str) -> tuple[tuple[str, ...], ...]:
    return tuple(map(_words, side.split(",")))


def _sharded(mesh: Any, specs: Sequence[P]) -> tuple[NamedSharding, ...]:
    return tuple(NamedSharding(mesh, spec) for spec in specs)


def total(array: Array, axes: Axes, *dims: str) -> Array:
    """Return the sum of the arrays of all devices that divide one of these dimensions."""
    between: tuple[str, ...] = sum((axes.get(name, ()) for name in dims), ())
    return jax.lax.psum(array, between) if between else array


def like(gradient: Array, operand: Array) -> Array:
    """Return the gradient with its operand's sharding, on meshes with explicit axes."""
    wanted = jax.typeof(operand).sharding
    if (
        AxisType.Explicit not in wanted.mesh.axis_types
        or jax.typeof(gradient).sharding == wanted
    ):
        return gradient
    return jax.sharding.reshard(gradient, wanted)


def _by_mesh(
    rule: Rule, function: Local, operands: Sequence[Array], by_rule: bool
) -> tuple[Array, ...]:
    # vmap hides the axes that divide its own dimension from the mesh of the types.
    meshes = (jax.typeof(operand).sharding.mesh for operand in operands)
    mesh = next(
        (mesh for mesh in meshes if not mesh.empty), jax.sharding.get_abstract_mesh()
    )
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if AxisType.Explicit in types.values():
        return _by_types(rule, function, operands, mesh)
    if AxisType.Manual in types.values() or not by_rule:
        return function({}, *operands)
    return _by_xla(rule, function, operands)


def _by_types(
    rule: Rule, function: Local, operands: Sequence[Array], mesh: Any
) -> tuple[Array, ...]:
    explicit = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Explicit
    }
    shapes = [operand.shape for operand in operands]
    axes = rule.assign(
        shapes, [jax.typeof(operand).sharding.spec for operand in operands], mesh.shape
    )
    in_specs, out_specs = rule.specs(axes)
    placed = (
        jax.sharding.reshard(operand, NamedSharding(mesh, spec))
        for operand, spec in zip(operands, in_specs, strict=True)
    )
    # Without names, shard_map takes all axes except those that vmap hides.
    names = explicit if len(explicit) < len(mesh.axis_names) else set()
    local = partial(function, axes)
    divided = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=names,
        check_vma=False,
    )
    results: tuple[Array, ...] = divided(*placed)
    return results


def _by_xla(
    rule: Rule, function: Local, operands: Sequence[Array]
) -> tuple[Array, ...]:
    def assigned(
        mesh: Any, parts: Sequence[Any]
    ) -> tuple[Axes, tuple[Any, ...], tuple[Any, ...]]:
        shapes = [part.shape for part in parts]
        specs = [part.sharding.spec for part in parts]
        axes = rule.assign(shapes[: len(operands)], specs, mesh.shape)
        in_specs, out_specs = rule.specs(axes)
        return axes, _sharded(mesh, in_specs), _sharded(mesh, out_specs)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        axes, in_specs, out_specs = assigned(mesh, (*arguments, *results))
        plain = AbstractMesh(
            mesh.axis_sizes,
            mesh.axis_names,
            axis_types=(AxisType.Auto,) * len(mesh.axis_names),
        )

        def local(*operands: Array) -> tuple[Array, ...]:
            # The parts of one device have no shardings, although the caller's mesh may
            # have explicit axes.
            with jax.sharding.use_abstract_mesh(plain):
                return function(axes, *operands)

        return mesh, local, out_specs, in_specs

    def infer(mesh: Any, arguments: Any, _results: Any) -> Any:
        # XLA's older partitioner, GSPMD, asks for this instead of the rule.
        return assigned(mesh, arguments)[2]

    # custom_partitioning refuses functions with constants, unless they are those of an
    # inner jit.
    divided = custom_partitioning(jax.jit(lambda *operands: function({}, *operands)))
    text, arguments = rule.for_shardy()
    divided.def_partition(partition, infer, sharding_rule=text, **arguments)
    results: tuple[Array, ...] = divided(*operands)
    return results
