"""The products of AITER's tuned tables in a wheel's code objects, and the custom calls that they are lowered to.

`python -m kernels.tests.checks.tuned_calls OUT HSA`: the folder hsa of built kernels. Every row of gemm and gemm_i8 is
lowered, and 40 rows of gemm_fp4.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax_aiter import _choice
from jax_aiter._loader import Loader
from jax_aiter.gemm import gemm
from jax_aiter.gemm_fp4 import gemm_fp4
from jax_aiter.gemm_i8 import gemm_i8

from kernels.tests.checks.check_lowering import calls, lowered
from kernels.tests.checks.kernels import MODULES, Kernels, sha256

S = jax.ShapeDtypeStruct
BF16, F32, I8, U8 = jnp.bfloat16, jnp.float32, jnp.int8, jnp.uint8
FEW = 40


def rows(hsa: Path, gfx: str, module: str) -> list[dict[str, str]]:
    """Return the rows of a tuned table that name a kernel of AITER's assembly."""
    (path,) = (hsa / gfx / module / "tuned").iterdir()
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["kernelName"].startswith("_ZN5aiter")]


def tile(row: dict[str, str]) -> int:
    """Return the columns of a kernel's tile, with which its name ends."""
    return int(row["kernelName"].rpartition("x")[2].removesuffix("E"))


def programs(hsa: Path) -> Iterator[tuple[str, str, dict[str, str], Any, list[Any]]]:
    """Yield operation, target, row, function and arguments."""
    for row in rows(hsa, "gfx942", "gemm_bf16"):
        m, n, k = (int(row[name]) for name in "MNK")
        yield "gemm", "gfx942", row, partial(gemm, out_dtype=F32), [S((m, k), BF16), S((n, k), BF16)]
    for row in rows(hsa, "gfx942", "gemm_i8"):
        m, n, k = (int(row[name]) for name in "MNK")
        scales = [S((m, 1), F32), S((1, n), F32), S((n,), F32)]
        yield "gemm_i8", "gfx942", row, gemm_i8, [S((m, k), I8), S((n, k), I8), *scales]
    # Kernels whose tile does not divide N are not used.
    fp4 = [row for row in rows(hsa, "gfx950", "gemm_fp4") if int(row["N"]) % tile(row) == 0]
    for row in fp4[:: len(fp4) // FEW][:FEW]:
        m, n, k = (int(row[name]) for name in "MNK")
        arguments = [S(shape, U8) for shape in ((m, k // 2), (n, k // 2), (m, k // 32), (n, k // 32))]
        yield "gemm_fp4", "gfx950", row, gemm_fp4, arguments


def main(out: Path, hsa: Path) -> None:
    """Write the calls as JSON."""
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        kernels = Kernels(Path(folder))
        for name in ("gemm_bf16", "gemm_i8", "gemm_fp4"):
            files = (path for gfx in MODULES[name][1] for path in sorted((hsa / gfx / name).rglob("*.csv")))
            tables = {str(path.relative_to(hsa)): sha256(path) for path in files}
            kernels.add(name, objects={"all": tables})
        loader = Loader(kernels.write())
        (Path(folder) / "hsa").rename(Path(folder) / "made")
        (Path(folder) / "hsa").symlink_to(hsa)
        environment.setattr(_choice, "loader", lambda: loader)
        environment.setattr(Loader, "ensure", lambda *_: None)
        for operation, gfx, row, function, arguments in programs(hsa):
            environment.setenv("JAX_AITER_TARGET", gfx)
            environment.setenv("JAX_AITER_COMPUTE_UNITS", row["cu_num"])
            found.append({
                "operation": operation, "gfx": gfx, "units": int(row["cu_num"]), "kernel": row["kernelName"],
                "sizes": [int(row[name]) for name in "MNK"], "split": int(row["splitK"]),
                "calls": calls(lowered(function, *arguments)),
            })  # fmt: skip
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
