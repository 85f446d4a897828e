"""Check of a wheel's package with its kernels: every module loads, and programs for AMD GPUs call it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax_aiter
import pytest
from jax_aiter._loader import loader
from jax_aiter._table import CK_RMS_NORM, MHA_BWD, MHA_FWD, OPERATIONS, TARGETS
from jax_aiter.gemm import gemm

from tests.jax_aiter.check_choice import ATTENTION, NORMS, XLA_ONLY
from tests.jax_aiter.check_lowering import CASES, calls, lowered

BOTH = dict.fromkeys(ATTENTION, "aiter")
SERVED = {
    "gfx942": {**XLA_ONLY, **NORMS, **BOTH, **dict.fromkeys(["gemm_i8", "flatmm_fp8"], "aiter")},
    "gfx950": {**XLA_ONLY, **NORMS, **BOTH, **dict.fromkeys(["gemm_fp8_mi350", "gemm_fp4"], "aiter")},
    "gfx1100": {**XLA_ONLY, **NORMS},
}


@pytest.mark.parametrize("gfx", SERVED)
def check_each_target_is_served_as_the_wheel_promises(gfx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    told: dict[str, Any] = jax_aiter.info()
    assert told["problem"] is None
    assert told["version"] == jax_aiter.__version__
    assert told["version"].partition("+")[2] == "gfx942.gfx950.gfx1100"
    assert sorted(told["targets"]) == sorted(SERVED)
    assert {name: told["operations"][name]["backend"] for name in OPERATIONS} == SERVED[gfx]


# A wheel built without a ROCm lacks the modules that a ROCm compiles.
WITH_ROCM = {CK_RMS_NORM.name, MHA_FWD.name, MHA_BWD.name}
CALLED = [
    name
    for name, case in CASES.items()
    if "halves" not in name and "AITER tuned" not in name and not WITH_ROCM & {call[0] for call in case[3]}
]
UNTUNED = {"kernel": '""', "splitk": "0 : i32"}


@pytest.mark.parametrize("name", CALLED)
def check_programs_call_kernels_that_load(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gfx, function, arguments, wanted = CASES[name]
    monkeypatch.setenv("JAX_AITER_TARGET", gfx if gfx in SERVED else "gfx1100")
    jax.clear_caches()
    # Without compute units, no table of the wheel has a row.
    plain = [(*call, attrs | {name: UNTUNED[name] for name in attrs if name in UNTUNED}) for *call, attrs in wanted]
    assert calls(lowered(function, *arguments)) == plain


def check_a_row_of_the_wheels_tables_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_COMPUTE_UNITS", "80")
    factors = [jax.ShapeDtypeStruct((rows, 5120), "bfloat16") for rows in (64, 256)]
    (call,) = calls(lowered(partial(gemm, out_dtype="float32"), *factors))
    assert call[3] == {"kernel": '"_ZN5aiter28bf16gemm_outf32_tn_32x64_pf3E"', "splitk": "10 : i32"}


def check_every_module_loads() -> None:
    kernels = loader()
    assert kernels.manifest is not None
    assert {handler.target for m in kernels.manifest.modules.values() for handler in m.handlers} == {
        *TARGETS
    } - WITH_ROCM
    for name in reversed(kernels.manifest.load_order):
        kernels.ensure(name)
    assert set(kernels.loaded) == set(kernels.manifest.modules)
