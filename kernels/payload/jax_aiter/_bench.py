"""python -m jax_aiter bench: measure the kernels of operations and XLA on this machine's GPU.

Each kernel's result is compared with XLA's first; a kernel with another result is reported and never chosen. The
choice table gets the fastest kernel only where it is faster than XLA by more than the measured noise.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _limits, _measured
from jax_aiter._bench_cases import CASES, NAMED, PRODUCT, Case
from jax_aiter._choice import OPTION, Choice, observed, places
from jax_aiter._errors import BackendError, JaxAiterError
from jax_aiter._evidence import Problem
from jax_aiter._loader import Loader, loader
from jax_aiter._measured import Row
from jax_aiter._table import AITER, BACKENDS, OPERATIONS, XLA

CALLS = 16
"""Calls of one program; the time of its start is shared by all of them."""
ROUNDS = 9
_ANY = "the handler's choice"
Times = dict[str, list[float]]
"""Backend -> sorted microseconds."""


def timed(run: Callable[..., Any], operands: tuple[Array, ...]) -> list[float]:
    """Return the microseconds of one call in each of ROUNDS rounds, sorted.

    A program makes CALLS calls, each after the one before: the barrier makes its first operand depend on that result.
    """

    def several(first: Array, *rest: Array) -> Any:
        out = run(first, *rest)
        for _ in range(CALLS - 1):
            first, out = jax.lax.optimization_barrier((first, out))
            out = run(first, *rest)
        return out

    program = jax.jit(several)
    for _ in range(2):
        jax.block_until_ready(program(*operands))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(program(*operands))
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return sorted(times)


def kernels_of(kernels: Loader, call: str, gfx: str) -> tuple[str, ...]:
    """Return the names of the kernels among which a handler chooses; empty if its module has no table."""
    module = kernels.manifest.module_of(call) if kernels.manifest else None
    files = [name for name in (module.objects if module else ()) if name.endswith(".csv") and "/tuned/" not in name]
    rows = [
        row
        for name in files
        if name.split("/", 1)[0] == gfx
        for row in csv.DictReader((kernels.root / "hsa" / name).read_text(encoding="utf-8").splitlines())
    ]
    return tuple(row["knl_name"] for row in rows)


def candidates(operation: str, case: Case, kernels: Loader, gfx: str) -> Iterator[Choice]:
    """Yield AITER's choices for a product: the handler's own, and each kernel with each number of parts of K."""
    (target,) = OPERATIONS[operation]
    yield Choice(operation, AITER, target.name, forced=True)
    for name in kernels_of(kernels, target.name, gfx):
        for split in case.splits:
            yield Choice(operation, AITER, target.name, kernel=name, splitk=split, forced=True)


def measure(operation: str, case: Case, sizes: Sequence[int], gfx: str, units: int) -> tuple[Row, list[str]]:
    """Measure XLA and the kernels of an operation.

    Returns:
        The row for the choice table, and one line of text for each kernel that was refused or has a wrong result.

    Raises:
        JaxAiterError: the operation has no kernels for this GPU and these sizes.
    """
    operands = case.operands(*sizes)
    if case.sizes == PRODUCT:
        m, n, k = sizes
        problem = Problem(m, n, k, case.out)
        times, chosen, notes = _kernels(operation, case, operands, gfx)
    else:
        problem = _problem(operation, case, operands)
        times, notes = _backends(operation, case, operands)
        chosen = Choice(operation, XLA)
    fastest = min((name for name in times if name != XLA), key=lambda name: statistics.median(times[name]), default=XLA)
    backend = fastest if fastest != XLA and times[fastest][-2] < times[XLA][1] else XLA
    row = Row(
        operation=operation,
        gfx=gfx,
        compute_units=units,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        out=problem.out,
        backend=backend,
        kernel=chosen.kernel if backend == AITER else "",
        splitk=chosen.splitk if backend == AITER else 0,
        microseconds={name: round(statistics.median(some), 2) for name, some in times.items()},
    )
    return row, notes


def _kernels(operation: str, case: Case, operands: tuple[Array, ...], gfx: str) -> tuple[Times, Choice, list[str]]:
    # Times of XLA and of AITER's fastest kernel of a product, the choice of that kernel, and notes.
    plain = Choice(operation, XLA)
    wanted = jax.device_get(case.run(plain, *operands))
    times, chosen, notes = {XLA: timed(_bound(case, plain), operands)}, plain, []
    for choice in candidates(operation, case, loader(), gfx):
        name = f"{choice.kernel or _ANY}, splitk={choice.splitk}"
        try:
            found = case.run(choice, *operands)
        except jax.errors.JaxRuntimeError as error:
            notes.append(f"  refused: {name}: {str(error).splitlines()[0]}")
            continue
        if wrong := _difference(found, wanted, case.error):
            notes.append(f"  wrong: {name}: {wrong}")
            continue
        some = timed(_bound(case, choice), operands)
        if AITER not in times or statistics.median(some) < statistics.median(times[AITER]):
            times[AITER], chosen = some, choice
    return times, chosen, notes


def _backends(operation: str, case: Case, operands: tuple[Array, ...]) -> tuple[Times, list[str]]:
    # Times of each backend of an operation, and notes.
    times: Times = {}
    notes, wanted = [], None
    mine = {call.backend for call in OPERATIONS[operation]}
    for backend in (XLA, *(one for one in BACKENDS if one in mine)):
        with _forced(operation, backend):
            try:
                found = jax.jit(lambda *arrays: case.run(*arrays))(*operands)
            except (BackendError, jax.errors.JaxRuntimeError) as error:
                notes.append(f"  refused: {backend}: {str(error).splitlines()[0]}")
                continue
            if backend == XLA:
                wanted = jax.device_get(found)
            elif wrong := _difference(found, wanted, case.error):
                notes.append(f"  wrong: {backend}: {wrong}")
                continue
            times[backend] = timed(case.run, operands)
    if set(times) == {XLA}:
        raise JaxAiterError("; ".join(notes).strip())
    return times, notes


def _problem(operation: str, case: Case, operands: tuple[Array, ...]) -> Problem:
    # The sizes by which the operation looks for rows.
    found: list[Problem] = []

    def note(choice: Choice, _module: str, problem: Problem | None) -> None:
        if choice.operation == operation and problem is not None:
            found.append(problem)

    with observed(note), _forced(operation, XLA):
        jax.eval_shape(lambda *arrays: case.run(*arrays), *operands)
    return found[0]


@contextmanager
def _forced(operation: str, backend: str) -> Iterator[None]:
    name = f"{OPTION}_{operation.upper()}"
    before = os.environ.get(name)
    os.environ[name] = backend
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _difference(found: Any, wanted: Any, error: float) -> str:
    # Text about results that differ by more than roundings; empty if there are none.
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        right = np.asarray(other, np.float32)
        limit = error * max(float(np.abs(right).max(initial=0)), 1e-6)
        difference = float(np.abs(np.asarray(one.astype(jnp.float32)) - right).max(initial=0))
        if not difference <= limit:
            return f"differs from XLA's result by {difference:.3g}, more than {limit:.3g}"
    return ""


def _bound(case: Case, choice: Choice) -> Callable[..., Array]:
    return lambda *operands: case.run(choice, *operands)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m jax_aiter bench", description=__doc__)
    kinds = dict.fromkeys(case.sizes for cases in CASES.values() for case in cases)
    parser.add_argument(
        "--shape", action="append", required=True, metavar="SIZE,…",
        help=f"Sizes to measure, repeatable: {'; '.join(','.join(kind) for kind in kinds)}.",
    )  # fmt: skip
    parser.add_argument(
        "--operation", action="append", choices=sorted(CASES),
        help=f"[default: those with such sizes and kernels here, except {' and '.join(sorted(NAMED))}]",
    )  # fmt: skip
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="Choice table. [default: JAX_AITER_CHOICES or cache]"
    )
    parsed = parser.parse_args(arguments)
    try:
        shapes = [_shape(text, {len(kind) for kind in kinds}) for text in parsed.shape]
        gfx, units = _gpu()
        names = tuple(_modules(parsed.operation, shapes, gfx))
        return _bench(names, shapes, gfx, units, parsed.table or _measured.place())
    except (JaxAiterError, OSError, ValueError) as error:
        sys.stderr.write(f"python -m jax_aiter bench: {error}\n")
        return 2


def _bench(names: Sequence[str], shapes: Sequence[tuple[int, ...]], gfx: str, units: int, table: Path) -> int:
    manifest = loader().manifest
    assert manifest is not None
    rows = []
    for name in names:
        for case, sizes in ((case, sizes) for case in CASES[name] for sizes in shapes if len(sizes) == len(case.sizes)):
            told = ", ".join(f"{one}={size}" for one, size in zip(case.sizes, sizes, strict=True))
            told += f", {case.out}" if case.out else ""
            try:
                if why := _unsupported(name, case, sizes):
                    raise JaxAiterError(why)
                row, notes = measure(name, case, sizes, gfx, units)
            except (JaxAiterError, ValueError) as error:
                sys.stdout.write(f"{name} {told}: skipped, {error}\n")
                continue
            rows.append(row)
            kernel = f" with {row.kernel or _ANY}, splitk={row.splitk}" if case.splits and row.backend == AITER else ""
            sys.stdout.write("\n".join([f"{name} {told}: {row.backend}{kernel} ({row.text})", *notes, ""]))
            sys.stdout.flush()
    if not rows:
        raise JaxAiterError("Nothing was measured, so no choice table was written.")
    _measured.write(table, manifest.version, rows)
    sys.stdout.write(f"{len(rows)} rows written to {table}.\n")
    return 0


def _unsupported(name: str, case: Case, sizes: Sequence[int]) -> str:
    if case.sizes != PRODUCT:
        return ""  # the operation says itself
    m, n, k = sizes
    (target,) = OPERATIONS[name]
    return _limits.obstacle(target, m=m, n=n, k=k, dtype="bfloat16")


def _shape(text: str, counts: set[int]) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) not in counts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        known = ", ".join(map(str, sorted(counts)))
        raise ValueError(f"--shape={text} is not {known} positive numbers, such as M,N,K.")
    return tuple(map(int, parts))


def _gpu() -> tuple[str, int]:
    found = places()
    if len(found) != 1:
        kinds = ", ".join(f"{gfx} with {units} compute units" for gfx, units in found) or "none"
        raise BackendError(f"bench needs AMD GPUs of one kind, but finds {kinds}. Set HIP_VISIBLE_DEVICES to choose.")
    return found[0]


def _modules(names: Sequence[str] | None, shapes: Sequence[tuple[int, ...]], gfx: str) -> Mapping[str, list[str]]:
    # Operation -> modules with kernels for the GPU, which are loaded.
    manifest, found, counts = loader().manifest, {}, {len(sizes) for sizes in shapes}
    for name in names or [name for name in CASES if name not in NAMED]:
        fits = {len(case.sizes) for case in CASES[name]} & counts
        if not fits:
            if names:
                raise ValueError(f"No --shape has the sizes of {name}: {','.join(CASES[name][0].sizes)}.")
            continue
        modules = [manifest.module_of(call.name) for call in OPERATIONS[name]] if manifest else []
        mine = [module.name for module in modules if module is not None and module.runs_on(gfx)]
        if names and not mine:
            raise BackendError(f"This package has no kernels of {name} for {gfx}.")
        for module in mine:
            loader().ensure(module)
        if mine:
            found[name] = mine
    return found
