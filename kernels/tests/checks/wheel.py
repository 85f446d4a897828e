"""Check of a wheel's package with its kernels.

Every module loads, and programs for AMD GPUs call it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax_aiter
import pytest
from jax_aiter._loader import loader
from jax_aiter._table import GEMM_BF16, OPERATIONS
from jax_aiter.gemm import gemm

from kernels.tests.checks.programs import PROGRAMS, calls, lowered, names

MANIFEST = loader().manifest
assert MANIFEST is not None
PRESENT: set[str] = set()
for _module in MANIFEST.modules.values():
    PRESENT |= {handler.target for handler in _module.handlers}
"""Custom calls of the wheel's modules."""


@pytest.mark.parametrize("gfx", MANIFEST.targets)
def check_each_target_is_served_by_the_modules_that_have_its_code(
    gfx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MANIFEST is not None
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    report: dict[str, Any] = jax_aiter.info()
    assert report["problem"] is None
    assert report["version"] == jax_aiter.__version__
    for name, targets in OPERATIONS.items():
        modules = (MANIFEST.module_of(target.name) for target in targets)
        served = any(module is not None and module.runs_on(gfx) for module in modules)
        # AITER's tables decide about gemm by its shape.
        assert (report["operations"][name]["backend"] != "xla") == (
            served and name != "gemm"
        ), name


PREFIX = "jax_aiter_"
CALLED = [
    name
    for name, program in PROGRAMS.items()
    if PRESENT.issuperset(map(PREFIX.__add__, program.calls))
]


@pytest.mark.parametrize("name", CALLED)
def check_programs_call_kernels_that_load(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MANIFEST is not None
    program = PROGRAMS[name]
    monkeypatch.setenv(
        "JAX_AITER_TARGET",
        program.gfx if program.gfx in MANIFEST.targets else "gfx1100",
    )
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    jax.clear_caches()
    assert names(lowered(program.function, *program.operands)) == program.calls


@pytest.mark.skipif(
    GEMM_BF16.name not in PRESENT, reason="the wheel has no such module"
)
def check_a_row_of_the_wheels_tables_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_COMPUTE_UNITS", "80")
    factors = [jax.ShapeDtypeStruct((rows, 5120), "bfloat16") for rows in (64, 256)]
    (call,) = calls(lowered(partial(gemm, out_dtype="float32"), *factors))
    assert call[3] == {
        "kernel": '"_ZN5aiter28bf16gemm_outf32_tn_32x64_pf3E"',
        "splitk": "10 : i32",
    }


def check_every_module_loads() -> None:
    assert MANIFEST is not None
    kernels = loader()
    for name in MANIFEST.modules:
        kernels.ensure(name)
    assert set(kernels.loaded) == set(MANIFEST.modules)
