"""python -m jax_aiter bench: measure AITER's kernels and XLA for products on this machine's GPU.

Each kernel's result is compared with XLA's first; a kernel with another result is reported and never chosen. The
choice table gets AITER's fastest kernel only where it is faster than XLA by more than the measured noise.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _limits, _measured, flatmm_fp8, gemm, gemm_fp4, gemm_fp8, gemm_i8
from jax_aiter._choice import Choice, places
from jax_aiter._errors import BackendError, JaxAiterError
from jax_aiter._evidence import Problem
from jax_aiter._loader import Loader, loader
from jax_aiter._measured import Row
from jax_aiter._table import AITER, OPERATIONS, XLA
from jax_aiter.layouts import shuffle_scale, shuffle_weight

CALLS = 16
"""Calls of one program; the time of its start is shared by all of them."""
ROUNDS = 9
_ANY = "the handler's choice"
_ERROR = 0.02
"""Largest difference of a kernel's result from XLA's, relative to the largest number of the result."""


@dataclass(frozen=True, slots=True)
class _Case:
    # Operands for m, n, k; the operation's jit-compiled function of a choice and them; the parts of K to try.
    operands: Callable[[int, int, int], tuple[Array, ...]]
    run: Callable[..., Array]
    splits: tuple[int, ...]
    out: str = ""


def _random(seed: int, shape: tuple[int, ...], dtype: Any) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(numbers).astype(dtype)


def _bytes(seed: int, shape: tuple[int, ...], low: int, high: int, dtype: Any) -> Array:
    return jnp.asarray(np.random.default_rng(seed).integers(low, high, shape, dtype))


def _for_gemm(m: int, n: int, k: int) -> tuple[Array, ...]:
    return _random(1, (m, k), jnp.bfloat16), _random(2, (n, k), jnp.bfloat16)


def _for_i8(m: int, n: int, k: int) -> tuple[Array, ...]:
    scales = (abs(_random(3, (m, 1), jnp.float32)), abs(_random(4, (1, n), jnp.float32)))
    factors = (_bytes(1, (m, k), -128, 128, np.int8), _bytes(2, (n, k), -128, 128, np.int8))
    return *factors, *scales, _random(5, (n,), jnp.float32)


def _for_fp4(m: int, n: int, k: int) -> tuple[Array, ...]:
    factors = [_bytes(seed, (rows, k // 2), 0, 256, np.uint8) for seed, rows in ((1, m), (2, n))]
    scales = [_bytes(seed, (rows, k // 32), 120, 130, np.uint8) for seed, rows in ((3, m), (4, n))]
    # Reordered as a weight is once, so that its reordering is not measured.
    weight = shuffle_weight(factors[1], gemm_fp4.LAYOUT)
    return factors[0], weight, *(shuffle_scale(scale) for scale in scales)


def _for_blocks(m: int, n: int, k: int) -> tuple[Array, ...]:
    # Random numbers in any order are in the kernels' order too.
    factors = (_random(1, (m, k), jnp.float8_e4m3fn), _random(2, (n, k), jnp.float8_e4m3fn))
    scales = (_random(3, (k // 128, m), jnp.float32), _random(4, (k // 128, n // 128), jnp.float32))
    return *factors, *map(abs, scales)


def _gemm(dtype: Any) -> Callable[..., Array]:
    def run(choice: Choice, a: Array, b: Array) -> Array:
        return gemm.jit_product(a, b, None, jnp.dtype(dtype), choice, gemm.written(jnp.dtype(dtype), None))

    return run


CASES: Mapping[str, tuple[_Case, ...]] = MappingProxyType(
    {
        "gemm": (
            _Case(_for_gemm, _gemm(jnp.bfloat16), (1, 2, 4, 5, 8, 10, 16), "bfloat16"),
            _Case(_for_gemm, _gemm(jnp.float32), (1, 2, 4, 5, 8, 10, 16), "float32"),
        ),
        "gemm_i8": (_Case(_for_i8, gemm_i8.shuffled_product, (1, 2, 3, 4, 6, 8, 16)),),
        "gemm_fp4": (_Case(_for_fp4, gemm_fp4.shuffled_product, (1, 2, 4)),),
        "gemm_fp8_mi350": (_Case(_for_blocks, gemm_fp8.shuffled_product, (0,)),),
        "flatmm_fp8": (_Case(_for_blocks, flatmm_fp8.shuffled_product, (0,)),),
    }
)
"""Operation -> what is measured of it."""


def timed(run: Callable[..., Array], operands: tuple[Array, ...]) -> list[float]:
    """Return the microseconds of one call in each of ROUNDS rounds, sorted.

    A program makes CALLS calls, each after the one before: the barrier makes its first operand depend on that result.
    """

    def several(first: Array, *rest: Array) -> Array:
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


def candidates(operation: str, case: _Case, kernels: Loader, gfx: str) -> Iterator[Choice]:
    """Yield AITER's choices for a product: the handler's own, and each kernel with each number of parts of K."""
    (target,) = OPERATIONS[operation]
    yield Choice(operation, AITER, target.name, forced=True)
    for name in kernels_of(kernels, target.name, gfx):
        for split in case.splits:
            yield Choice(operation, AITER, target.name, kernel=name, splitk=split, forced=True)


def measure(operation: str, case: _Case, sizes: tuple[int, int, int], gfx: str, units: int) -> tuple[Row, list[str]]:
    """Measure XLA and AITER's kernels for a product.

    Returns:
        The row for the choice table, and one line of text for each kernel that was refused or has a wrong result.

    Raises:
        JaxAiterError: the operation has no kernels for this GPU.
    """
    operands, kernels, problem = case.operands(*sizes), loader(), Problem(*sizes, case.out)
    plain = Choice(operation, XLA)
    wanted = np.asarray(case.run(plain, *operands).astype(jnp.float32))
    limit = _ERROR * max(float(np.abs(wanted).max(initial=0)), 1e-6)
    best: dict[str, tuple[list[float], Choice]] = {XLA: (timed(_bound(case, plain), operands), plain)}
    notes = []
    for choice in candidates(operation, case, kernels, gfx):
        name = f"{choice.kernel or _ANY}, splitk={choice.splitk}"
        try:
            found = np.asarray(case.run(choice, *operands).astype(jnp.float32))
        except jax.errors.JaxRuntimeError as error:
            notes.append(f"  refused: {name}: {str(error).splitlines()[0]}")
            continue
        difference = float(np.abs(found - wanted).max(initial=0))
        if not difference <= limit:
            notes.append(f"  wrong: {name}: differs from XLA's result by {difference:.3g}, more than {limit:.3g}")
            continue
        times = timed(_bound(case, choice), operands)
        if AITER not in best or statistics.median(times) < statistics.median(best[AITER][0]):
            best[AITER] = times, choice
    backend = AITER if AITER in best and best[AITER][0][-2] < best[XLA][0][1] else XLA
    chosen = best[backend][1]
    row = Row(
        operation=operation,
        gfx=gfx,
        compute_units=units,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        out=case.out,
        backend=backend,
        kernel=chosen.kernel,
        splitk=chosen.splitk,
        microseconds={name: round(statistics.median(times), 2) for name, (times, _) in best.items()},
    )
    return row, notes


def _bound(case: _Case, choice: Choice) -> Callable[..., Array]:
    return lambda *operands: case.run(choice, *operands)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m jax_aiter bench", description=__doc__)
    parser.add_argument(
        "--shape", action="append", required=True, metavar="M,N,K", help="Product to measure; repeatable."
    )
    parser.add_argument(
        "--operation", action="append", choices=sorted(CASES), help="[default: those with kernels here]"
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="Choice table. [default: JAX_AITER_CHOICES or cache]"
    )
    parsed = parser.parse_args(arguments)
    try:
        shapes = [_shape(text) for text in parsed.shape]
        gfx, units = _gpu()
        names = tuple(_modules(parsed.operation, gfx))
        return _bench(names, shapes, gfx, units, parsed.table or _measured.place())
    except (JaxAiterError, OSError, ValueError) as error:
        sys.stderr.write(f"python -m jax_aiter bench: {error}\n")
        return 2


def _bench(names: Sequence[str], shapes: Sequence[tuple[int, int, int]], gfx: str, units: int, table: Path) -> int:
    manifest = loader().manifest
    assert manifest is not None
    rows = []
    for name in names:
        for case, sizes in ((case, sizes) for case in CASES[name] for sizes in shapes):
            problem = Problem(*sizes, case.out)
            if why := _unsupported(name, sizes):
                sys.stdout.write(f"{name} {problem}: skipped, {why}\n")
                continue
            row, notes = measure(name, case, sizes, gfx, units)
            rows.append(row)
            kernel = f" with {row.kernel or _ANY}, splitk={row.splitk}" if row.backend == AITER else ""
            sys.stdout.write("\n".join([f"{name} {problem}: {row.backend}{kernel} ({row.text})", *notes, ""]))
            sys.stdout.flush()
    if not rows:
        raise JaxAiterError("No product was measured, so no choice table was written.")
    _measured.write(table, manifest.version, rows)
    sys.stdout.write(f"{len(rows)} rows written to {table}.\n")
    return 0


def _unsupported(name: str, sizes: tuple[int, int, int]) -> str:
    m, n, k = sizes
    (target,) = OPERATIONS[name]
    return _limits.obstacle(target, m=m, n=n, k=k, dtype="bfloat16")


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--shape={text} is not three positive numbers M,N,K.")
    m, n, k = map(int, parts)
    return m, n, k


def _gpu() -> tuple[str, int]:
    found = places()
    if len(found) != 1:
        kinds = ", ".join(f"{gfx} with {units} compute units" for gfx, units in found) or "none"
        raise BackendError(f"bench needs AMD GPUs of one kind, but finds {kinds}. Set HIP_VISIBLE_DEVICES to choose.")
    return found[0]


def _modules(names: Sequence[str] | None, gfx: str) -> dict[str, str]:
    # Operation -> module with kernels for the GPU, which is loaded.
    manifest, found = loader().manifest, {}
    for name in names or CASES:
        (target,) = OPERATIONS[name]
        module = manifest.module_of(target.name) if manifest else None
        if module is not None and module.runs_on(gfx):
            loader().ensure(module.name)
            found[name] = module.name
        elif names:
            raise BackendError(f"This package has no kernels of {name} for {gfx}.")
    return found
