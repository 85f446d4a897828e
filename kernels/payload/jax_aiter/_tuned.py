"""AITER's tuned tables, which choose between AITER's kernels and XLA for products.

The tables are in the wheel, beside the code objects, as `<module>/tuned/*.csv`. They
are searched as AITER's Python does (aiter/tuned_gemm.py, aiter/ops/gemm_op_a8w8.py,
gemm_op_a4w4.py): by compute units, N, K, and M or M rounded up
(csrc/py_itfs_cu/gemm_common.cu, getPaddedM).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from jax import export

from jax_aiter._errors import ModuleLoadError
from jax_aiter._manifest import Module
from jax_aiter._table import AITER, XLA

Places = tuple[tuple[str, int], ...]
"""Processor and compute units of each kind of GPU."""
Row = Mapping[str, str]
Tables = Mapping[tuple[int, int, int, int], tuple[Row, ...]]
"""Compute units, M, N, K -> rows of AITER's tables."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product out[m,n] = a[m,k] @ b[n,k].T.

    Attributes:
        m, n, k: sizes.
        out: name of the result's dtype; with "+bias" if a bias is added.
    """

    m: int
    n: int
    k: int
    out: str = ""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes m, n and k."""
        return self.m, self.n, self.k

    def __str__(self) -> str:
        """Return the sizes and the dtype as text."""
        sizes = f"M={self.m}, N={self.n}, K={self.k}"
        return f"{sizes}, {self.out}" if self.out else sizes


@dataclass(frozen=True, slots=True)
class Advice:
    """Backend that a table or a default suggests.

    Attributes:
        backend: AITER or XLA.
        why: reason.
        kernel: symbol of AITER's kernel; empty for the handler's choice.
        splitk: number of parts of K; 0 for the handler's choice.
    """

    backend: str
    why: str
    kernel: str = ""
    splitk: int = 0


@dataclass(frozen=True, slots=True)
class _Rule:
    # fits: whether a row of AITER's table is about the product. padded: whether M may
    # be rounded up. split: number of parts that a row's splitK means. default: backend
    # without a row.
    fits: Callable[[Row, Product], bool]
    padded: bool
    split: Callable[[int, int], int]
    default: str


def _same_dtypes(row: Row, product: Product) -> bool:
    out, _, bias = product.out.partition("+")
    kinds = (row["bias"], row["dtype"], row["outdtype"])
    return kinds == (str(bool(bias)), "torch.bfloat16", f"torch.{out}")


def _whole_parts(split: int, k: int) -> int:
    # Parts of K are multiples of 128, so there may be fewer of them (asm_gemm_a8w8.cu).
    part = math.ceil(math.ceil(k / max(1, split)) / 128) * 128
    return math.ceil(k / part)


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        # Small tiles: for small products only.
        "gemm": _Rule(_same_dtypes, True, lambda split, _k: split, XLA),
        "gemm_i8": _Rule(
            lambda row, _product: row["q_dtype_w"] == "torch.int8",
            False,
            _whole_parts,
            AITER,
        ),
        "gemm_fp4": _Rule(
            lambda _row, _product: True, True, lambda split, _k: 1 << split, AITER
        ),
    }
)
"""Operation with a table -> how to read it.

Tables of the fp8 products name kernels of Composable Kernel only.
"""


def advise(
    operation: str,
    module: Module,
    hsa: Path,
    places: Places,
    product: Product | None,
) -> Advice | None:
    """Return the backend that AITER's table suggests; without a row, the operation's default.

    Args:
        operation: name in OPERATIONS.
        module: module with AITER's kernels.
        hsa: folder of the code objects.
        places: processor and compute units of each kind of GPU; empty if they are
            unknown.
        product: the product; None if it is unknown.

    Returns:
        The advice; None for an operation without a table.

    Raises:
        ModuleLoadError: a table cannot be read.
    """
    rule = _RULES.get(operation)
    if rule is None:
        return None
    tables = _tables(module, hsa, places)
    if product is None:
        count = sum(len(rows) for rows in tables.values())
        kind = "XLA's GEMM is" if rule.default == XLA else "AITER's kernels are"
        return Advice(
            rule.default,
            f"{kind} the default; a row for the shape decides ({count} rows of AITER's tables)",
        )
    if any(map(export.is_symbolic_dim, product.sizes)):
        return _default(rule, product, "the sizes are symbolic")
    if not places:
        return _default(rule, product, "the number of compute units is unknown")
    units = places[0][1]
    if any(number != units for _, number in places):
        return _default(rule, product, "the GPUs differ in compute units")
    for m in _rows_of(product) if rule.padded else (product.m,):
        for row in tables.get((units, m, product.n, product.k), ()):
            if rule.fits(row, product):
                return _of_row(rule, row, product, _kernels(module, hsa, places))
    return _default(
        rule,
        product,
        f"AITER's tables have no row for {product} with {units} compute units",
    )


def _of_row(
    rule: _Rule,
    row: Row,
    product: Product,
    kernels: Mapping[str, int],
) -> Advice:
    name = row["kernelName"]
    place = f"AITER's table for M={row['M']}, N={row['N']}, K={row['K']}"
    if name not in kernels:
        return _default(
            rule, product, f"{place} names a kernel that this package does not have"
        )
    if product.n % kernels[name]:
        return _default(
            rule,
            product,
            f"{place} names a kernel for N as a multiple of {kernels[name]}",
        )
    split = rule.split(int(row["splitK"]), product.k)
    return Advice(
        AITER,
        f"{place}: {row['us'].strip()} us on {row['cu_num']} compute units",
        name,
        split,
    )


def _default(
    rule: _Rule,
    product: Product,
    why: str,
) -> Advice:
    if rule.default == XLA:
        return Advice(XLA, f"{why}, and XLA's GEMM is the default for {product}")
    return Advice(AITER, f"{why}; the handler chooses the kernel")


def _rows_of(product: Product) -> tuple[int, ...]:
    # M, then M rounded up: finely, and to a power of two.
    m = product.m
    steps = ((256, 16), (1024, 32), (4096, 64), (m, 128))
    step = next(step for most, step in steps if m <= most)
    coarse = 1 << max(0, m - 1).bit_length()
    if m > 8192 and product.n > 4096:
        coarse = 8192
    return tuple(dict.fromkeys((m, m + -m % step, coarse)))


def _files(module: Module, *, tuned: bool) -> list[str]:
    # Tables of the module: AITER's measurements, or lists of kernels.
    tables = [name for name in module.objects if name.endswith(".csv")]
    return [name for name in tables if ("/tuned/" in name) == tuned]


def _tables(
    module: Module,
    hsa: Path,
    places: Places,
) -> Tables:
    known = {gfx for gfx, _ in places}
    mine = []
    for name in sorted(_files(module, tuned=True)):
        if not known or name.split("/", 1)[0] in known:
            mine.append(hsa / name)
    return _read_tables(tuple(mine))


@cache
def _read_tables(files: tuple[Path, ...]) -> Tables:
    found: dict[tuple[int, int, int, int], tuple[Row, ...]] = {}
    for file in files:
        for row in _rows(file):
            key = (int(row["cu_num"]), int(row["M"]), int(row["N"]), int(row["K"]))
            found[key] = (*found.get(key, ()), row)
    return found


def _kernels(
    module: Module,
    hsa: Path,
    places: Places,
) -> Mapping[str, int]:
    # Kernels that each of the GPUs has, with the columns of their tiles.
    sets = []
    for gfx in {gfx for gfx, _ in places}:
        files = []
        for name in _files(module, tuned=False):
            if name.split("/", 1)[0] == gfx:
                files.append(hsa / name)
        sets.append(_read_kernels(tuple(files)))
    everywhere = set(sets[0]).intersection(*sets[1:])
    return {name: sets[0][name] for name in everywhere}


@cache
def _read_kernels(files: tuple[Path, ...]) -> Mapping[str, int]:
    found = {}
    for file in files:
        for row in _rows(file):
            found[row["knl_name"]] = int(row.get("tileN") or row["tile_n"])
    return found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    # The loader compares the tables with their digests too, before a kernel is used.
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ModuleLoadError(
            f"{path} cannot be read: {problem.strerror}."
        ) from problem
    yield from csv.DictReader(text.splitlines())
