"""AITER's attention kernels: their limits, and their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, export

from jax_aiter import _limits
from jax_aiter._check import proven
from jax_aiter._choice import Choice, choose, has_objects
from jax_aiter._limits import INT
from jax_aiter._loader import loader
from jax_aiter._native import Arrays, empty, ffi, int32, rowwise
from jax_aiter._table import (
    AITER,
    MHA_BWD,
    MHA_BWD_ASM,
    MHA_FWD,
    MHA_FWD_ASM,
    XLA,
    FfiTarget,
)
from jax_aiter.mha._blocks import Config
from jax_aiter.mha._operands import Given, Operands, Pair

_FEW_QUERIES = 128
"""Number of queries in a batch up to which Composable Kernel is preferred, as in AITER."""


@dataclass(frozen=True, slots=True)
class Task:
    """Attention request without its arrays.

    Attributes:
        config: scale, dropout.
        window: (left, right) keys that a query sees around its diagonal; -1 for all.
        packed: whether sequences lie one after the other, in a batch of one.
        longest: lengths of the longest packed sequence of queries and of keys; 0 for
            unknown.
        sequences: number of packed sequences.
        padded: whether sequences of the batch have individual lengths.
        complete: whether each query of each sequence is known to see a key. If this is
            unknown, packed sequences are looked at when the program runs.
        deterministic: whether gradients must be summed in a fixed order.
        returns_lse: whether lse may have a cotangent.
    """

    config: Config
    window: tuple[int, int]
    packed: bool = False
    longest: tuple[int, int] = (0, 0)
    sequences: int = 0
    padded: bool = False
    complete: bool = False
    deterministic: bool = True
    returns_lse: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A task with its choice for the forward direction; equal plans lower to the same code."""

    task: Task
    forward: Choice


def make_plan(task: Task, operands: Operands) -> Plan:
    """Choose the implementation of a task and load its module.

    Raises:
        BackendError: an option forces a backend that does not support the task.
    """
    queries = operands.q.shape[1]
    few = not task.packed and proven(lambda: queries <= _FEW_QUERIES)
    targets = (MHA_FWD, MHA_FWD_ASM) if few else (MHA_FWD_ASM, MHA_FWD)
    obstacles = _obstacles(targets, facts(task, operands))
    if task.config.dropout and not obstacles[MHA_FWD.name]:
        # Both directions must drop the same probabilities.
        backward = _choose_backward(facts(task, operands))
        if backward.backend == XLA:
            obstacles[MHA_FWD.name] = (
                "the gradient is computed by XLA, whose dropout differs:"
                f" {backward.why}"
            )
    return Plan(task, choose("flash_attn", targets, obstacles=obstacles))


def needs_keys(plan: Plan) -> bool:
    """Return whether the chosen kernel can run only if each query sees a key."""
    return (
        plan.forward.call == MHA_FWD_ASM.name
        and plan.task.packed
        and not plan.task.complete
    )


def choose_backward(
    plan: Plan,
    operands: Operands,
    *,
    dbias: bool,
    dslopes: bool,
    dlse: bool,
) -> Choice:
    """Choose the implementation of the gradient and load its module.

    Args:
        plan: plan of the forward direction.
        operands: operands of the forward direction.
        dbias, dslopes: whether these gradients are requested.
        dlse: whether lse has a cotangent.

    Raises:
        BackendError: an option forces a backend that does not support the gradient.
    """
    requested = {"dbias": dbias, "dslopes": dslopes, "dlse": dlse}
    known = facts(plan.task, operands, forward=plan.forward.backend, **requested)
    return _choose_backward(known)


def _choose_backward(known: Mapping[str, Any]) -> Choice:
    return choose("flash_attn_bwd", obstacles=_obstacles((MHA_BWD_ASM, MHA_BWD), known))


def _obstacles(
    targets: Iterable[FfiTarget], known: Mapping[str, Any]
) -> dict[str, str]:
    # By custom call.
    return {target.name: _limits.obstacle(target, **known) for target in targets}


def unpacked(task: Task, *arrays: Array) -> Arrays:
    """Return arrays without the batch of one that packed sequences have."""
    return tuple(part[0] for part in arrays) if task.packed else arrays


def forward(
    plan: Plan,
    operands: Operands,
    given: Given,
) -> Pair:
    """Compute attention with a kernel.

    Returns:
        out: [B, queries, H, Dv] of the dtype of q.
        lse: [B, H, queries], float32.
    """
    task = plan.task
    q, k, v = unpacked(task, *operands[:3])
    if plan.forward.call == MHA_FWD_ASM.name:
        target = MHA_FWD_ASM
        arrays = (q, k, v, given.cu_q, given.cu_k)
        rows: tuple[bool, ...] = (True, True, True, False, False)
        causal = _window(task, operands)[1] == 0
        attrs = {"scale": np.float32(task.config.scale), "causal": causal}
    else:
        target = MHA_FWD
        arrays = (q, k, v, *extras(task, operands, given))
        rows = (True, True, True, *rows_of_extras(operands))
        attrs = attributes(task, operands)

    def call(*batch: int) -> Callable[..., Arrays]:
        queries, heads = q.shape[-3:-1]
        out = (*batch, queries, heads, v.shape[-1])
        lse = (*batch, heads, queries)
        return ffi(target, [(out, q.dtype), (lse, jnp.float32)], **attrs)

    out, lse = called(task, call, rows, arrays)
    if task.packed:
        out = out[None]
        lse = lse[None]
    if task.packed or not task.complete:
        # Kernels never write positions outside of packed sequences.
        sees = given.rows.end > given.rows.start
        out = jnp.where(sees[:, None, None], out, jnp.zeros((), out.dtype))
        lse = jnp.where(sees, lse, -jnp.inf)
    return out, lse


def called(
    task: Task,
    call: Callable[..., Callable[..., Arrays]],
    rows: tuple[bool, ...],
    arrays: Arrays,
    fits: Callable[[int], bool] = lambda _batch: True,
) -> Arrays:
    """Return the results of a call.

    Vmap enlarges the batch, except with dropout, which depends on the index in it.

    Args:
        task: the request.
        call: function that returns the call for a batch, which packed sequences lack.
        rows: for each operand, whether its first dimension is the batch.
        arrays: operands.
        fits: whether the handler accepts a batch.
    """
    if task.packed:
        return call()(*arrays)
    if task.config.dropout:
        return call(arrays[0].shape[0])(*arrays)
    return rowwise(call, rows, fits)(*arrays)


def extras(
    task: Task,
    operands: Operands,
    given: Given,
) -> Arrays:
    """Return the operands bias, slopes, cu_q, cu_k and seed of MHA_FWD and MHA_BWD."""
    bias, slopes = operands.bias, operands.slopes
    if bias is None:
        bias = empty(operands.q.dtype)
    if slopes is None:
        slopes = empty(jnp.float32)
    elif task.packed:
        slopes = jnp.broadcast_to(slopes, (given.cu_q.shape[0] - 1, slopes.shape[1]))
    seed = empty(jnp.uint32)
    if task.config.dropout:
        # The two words of the seed, and two of an offset.
        seed = jnp.concatenate([given.seed, jnp.zeros_like(given.seed)])
    return bias, slopes.astype(jnp.float32), given.cu_q, given.cu_k, seed


def rows_of_extras(operands: Operands) -> tuple[bool, ...]:
    """Return which of the `extras` have the batch as their first dimension."""
    return False, operands.slopes is not None, False, False, False


def attributes(task: Task, operands: Operands) -> dict[str, Any]:
    """Return the attributes of MHA_FWD and MHA_BWD."""
    left, right = _window(task, operands)
    queries, keys = _longest(task, operands)
    return {
        "scale": np.float32(task.config.scale),
        "dropout": np.float32(task.config.dropout),
        "window_left": int32(left),
        "window_right": int32(right),
        "longest_query": int32(queries),
        "longest_key": int32(keys),
    }


def _longest(task: Task, operands: Operands) -> tuple[int, int]:
    # Upper bounds of the lengths of packed sequences; 0 for none.
    found = []
    for bound, array in zip(task.longest, (operands.q, operands.k), strict=True):
        places = array.shape[1]
        if not export.is_symbolic_dim(places):
            bound = min(bound or INT, places)
        found.append(bound if task.packed else 0)
    return found[0], found[1]


def _window(task: Task, operands: Operands) -> tuple[int, int]:
    # A window that reaches all keys has no effect, so it becomes -1.
    keys = operands.k.shape[1]
    reached = [proven(partial(_reaches, size, keys)) for size in task.window]
    left, right = task.window
    return (-1 if reached[0] else left), (-1 if reached[1] else right)


def _reaches(size: int, keys: int) -> bool:
    return size >= keys > 0


def facts(
    task: Task,
    operands: Operands,
    **requested: Any,
) -> dict[str, Any]:
    """Return the facts of a task that the limits of attention kernels are about.

    Args:
        task, operands: the task.
        requested: facts about a gradient: the backend of the forward direction
            (forward), and whether there is a gradient of a bias (dbias) or of slopes
            (dslopes), or a cotangent of lse (dlse).
    """
    q, k, v, bias, slopes = operands
    batch, queries, heads, depth = q.shape
    window = _window(task, operands)
    kind = "bf16" if q.dtype == jnp.bfloat16 else "fp16"
    diagonal = proven(lambda: window[1] == 0)
    causal = "causal_br_" if diagonal else ""
    manifest = loader().manifest
    return {
        "dtype": q.dtype.name,
        "unequal": has_objects(MHA_FWD_ASM, "fwd_hd192*"),
        "unequal_gradient": has_objects(
            MHA_BWD_ASM, f"bwd_hd192_*128_{kind}_{causal}a32_pssk.co"
        ),
        "batch": batch,
        "queries": queries,
        "keys": k.shape[1],
        "heads": heads,
        "key_heads": k.shape[2],
        "depth": depth,
        "value_depth": v.shape[-1],
        "sequences": task.sequences,
        "packed": task.packed,
        "longest": _longest(task, operands),
        "window": window,
        "complete": task.complete,
        "bias": "" if bias is None else bias.dtype.name,
        "slopes": slopes is not None,
        "dropout": task.config.dropout,
        "returns_lse": task.returns_lse,
        "padded": task.padded,
        "deterministic": task.deterministic,
        "forward": AITER,
        "dbias": False,
        "dslopes": False,
        "dlse": False,
        **requested,
        "attention": manifest.attention if manifest else "asm",
    }
