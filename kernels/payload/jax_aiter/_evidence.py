"""Measurements that decide between AITER's kernels and XLA: the user's own, then AITER's tuned tables.

AITER's tables are in the wheel, beside the code objects, as `<module>/tuned/*.csv`. They are searched as AITER's Python
does (aiter/tuned_gemm.py, aiter/ops/gemm_op_a8w8.py, gemm_op_a4w4.py): by compute units, N, K, and M or M rounded up
(csrc/py_itfs_cu/gemm_common.cu, getPaddedM). The user's table is written by `python -m jax_aiter bench`.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from jax_aiter._errors import ModuleLoadError
from jax_aiter._manifest import Module
from jax_aiter._measured import Measured
from jax_aiter._table import AITER, XLA

Places = tuple[tuple[str, int], ...]
"""Processor and compute units of each kind of GPU."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A product out[m,n] = a[m,k] @ b[n,k].T, or the sizes of another operation.

    Attributes:
        m, n, k: sizes; of other operations rows (queries of attention, tokens), their length, and 0 or a third size.
        out: name of the result's dtype; with "+bias" if a bias is added that the kernels do not add. Of other
            operations, the dtype and all else that decides about speed.
    """

    m: int
    n: int
    k: int = 0
    out: str = ""

    def __str__(self) -> str:
        """Return the sizes and the dtype as text."""
        sizes = f"M={self.m}, N={self.n}" + (f", K={self.k}" if self.k else "")
        return sizes + (f", {self.out}" if self.out else "")


@dataclass(frozen=True, slots=True)
class Advice:
    """Backend that measurements or a default suggest.

    Attributes:
        backend: AITER or XLA.
        kernel: symbol of AITER's kernel; empty for the handler's choice.
        splitk: number of parts of K; 0 for the handler's choice.
        why: reason.
    """

    backend: str
    why: str
    kernel: str = ""
    splitk: int = 0


@dataclass(frozen=True, slots=True)
class _Rule:
    # fits: whether a row of AITER's table is about the problem. padded: whether M may be rounded up. split: number of
    # parts that a row's splitK means. default: backend without a row.
    fits: Callable[[Mapping[str, str], Problem], bool]
    padded: bool
    split: Callable[[int, int], int]
    default: str


def _float32(row: Mapping[str, str], problem: Problem) -> bool:
    return (row["bias"], row["dtype"], f"torch.{problem.out}") == ("False", "torch.bfloat16", row["outdtype"])


def _whole_parts(split: int, k: int) -> int:
    # Parts of K are multiples of 128, so there may be fewer of them (asm_gemm_a8w8.cu).
    part = math.ceil(math.ceil(k / max(1, split)) / 128) * 128
    return math.ceil(k / part)


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        # Tiles of at most 96 x 64 and a float32 result: for small products only.
        "gemm": _Rule(_float32, True, lambda split, _k: split, XLA),
        "gemm_i8": _Rule(lambda row, _problem: row["q_dtype_w"] == "torch.int8", False, _whole_parts, AITER),
        "gemm_fp4": _Rule(lambda _row, _problem: True, True, lambda split, _k: 1 << split, AITER),
        "gemm_fp8_mi350": _Rule(lambda _row, _problem: True, True, lambda split, _k: split, AITER),
        "flatmm_fp8": _Rule(lambda _row, _problem: True, True, lambda split, _k: split, AITER),
    }
)


def advise(
    operation: str,
    backend: str,
    module: Module,
    hsa: Path,
    places: Places,
    problem: Problem | None,
    measured: Measured,
) -> Advice:
    """Return the backend that measurements suggest; without them, the default of a product, else the asking backend.

    Args:
        operation: name in OPERATIONS.
        backend: AITER or PORTABLE, whose kernels could be used.
        module: module with these kernels.
        hsa: folder of the code objects.
        places: processor and compute units of each kind of GPU; empty if they are unknown.
        problem: the product or the sizes; None if they are unknown.
        measured: the user's measurements.

    Raises:
        ModuleLoadError: a table differs from the built one.
    """
    sizes = () if problem is None else tuple((m, problem.n, problem.k, problem.out) for m in _sizes(problem))
    if places and (own := measured.find(operation, places, sizes)):
        return Advice(own.backend, f"measured here: {own.text}", own.kernel, own.splitk)
    rule = _RULES.get(operation)
    if rule is None:
        return Advice(backend, "")
    tables = _tables(module, hsa, places)
    if problem is None:
        rows = sum(len(rows) for rows in tables.values())
        kind = "XLA's GEMM is" if rule.default == XLA else "AITER's kernels are"
        return Advice(rule.default, f"{kind} the default; a row for the shape decides ({rows} rows of AITER's tables)")
    if not places:
        return _default(rule, problem, "the number of compute units is unknown")
    units = places[0][1]
    if any(number != units for _, number in places):
        return _default(rule, problem, "the GPUs differ in compute units")
    for m in _sizes(problem) if rule.padded else (problem.m,):
        for row in tables.get((units, m, problem.n, problem.k), ()):
            if rule.fits(row, problem):
                return _of_row(rule, row, problem, _kernels(module, hsa, places))
    return _default(rule, problem, f"AITER's tables have no row for {problem} with {units} compute units")


def _of_row(rule: _Rule, row: Mapping[str, str], problem: Problem, kernels: Mapping[str, int]) -> Advice:
    name, place = row["kernelName"], f"AITER's table for M={row['M']}, N={row['N']}, K={row['K']}"
    if name not in kernels:
        return _default(rule, problem, f"{place} names a kernel that this package does not have")
    if problem.n % kernels[name]:
        return _default(rule, problem, f"{place} names a kernel for N as a multiple of {kernels[name]}")
    split = rule.split(int(row["splitK"]), problem.k)
    return Advice(AITER, f"{place}: {row['us'].strip()} us on {row['cu_num']} compute units", name, split)


def _default(rule: _Rule, problem: Problem, why: str) -> Advice:
    if rule.default == XLA:
        return Advice(XLA, f"{why}, and XLA's GEMM is the default for {problem}")
    return Advice(AITER, f"{why}; the handler chooses the kernel")


def _sizes(problem: Problem) -> tuple[int, ...]:
    # M, then M rounded up: finely, and to a power of two.
    m = problem.m
    step = next((step for most, step in ((256, 16), (1024, 32), (4096, 64)) if m <= most), 128)
    coarse = 8192 if m > 8192 and problem.n > 4096 else 1 << max(0, m - 1).bit_length()
    return tuple(dict.fromkeys((m, m + -m % step, coarse)))


Rows = Mapping[tuple[int, int, int, int], tuple[Mapping[str, str], ...]]
"""Compute units, M, N, K -> rows of AITER's tables."""


def _tables(module: Module, hsa: Path, places: Places) -> Rows:
    files = [name for name in module.objects if name.endswith(".csv") and "/tuned/" in name]
    known = {gfx for gfx, _ in places}
    mine = sorted(name for name in files if not known or name.split("/", 1)[0] in known)
    return _read_tables(hsa, tuple((name, module.objects[name]) for name in mine))


@cache
def _read_tables(hsa: Path, files: tuple[tuple[str, str], ...]) -> Rows:
    found: dict[tuple[int, int, int, int], tuple[Mapping[str, str], ...]] = {}
    for row in dict.fromkeys(tuple(row.items()) for name, digest in files for row in _rows(hsa / name, digest)):
        fields = dict(row)
        key = (int(fields["cu_num"]), int(fields["M"]), int(fields["N"]), int(fields["K"]))
        found[key] = (*found.get(key, ()), fields)
    return found


def _kernels(module: Module, hsa: Path, places: Places) -> Mapping[str, int]:
    # Kernels that each of the GPUs has, with the columns of their tiles.
    files = [name for name in module.objects if name.endswith(".csv") and "/tuned/" not in name]
    sets = []
    for gfx in {gfx for gfx, _ in places}:
        names = tuple((name, module.objects[name]) for name in files if name.split("/", 1)[0] == gfx)
        sets.append(_read_kernels(hsa, names))
    return {name: tile for name, tile in sets[0].items() if all(name in one for one in sets)}


@cache
def _read_kernels(hsa: Path, files: tuple[tuple[str, str], ...]) -> Mapping[str, int]:
    rows = (row for name, digest in files for row in _rows(hsa / name, digest))
    return {row["knl_name"]: int(row.get("tileN") or row["tile_n"]) for row in rows}


def _rows(path: Path, digest: str) -> Iterator[dict[str, str]]:
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise ModuleLoadError(f"{path} cannot be read: {problem.strerror}.") from problem
    if hashlib.sha256(data).hexdigest() != digest:
        raise ModuleLoadError(f"{path} was changed after the build. Install the wheel again.")
    yield from csv.DictReader(data.decode().splitlines())
