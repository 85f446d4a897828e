"""The real handlers accept the calls that the package's programs are lowered to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.tests.support.fake.lowered import MODULES, Environment, refusal
from kernels.tests.support.fake.trees import KernelTree
from kernels.tests.support.jax_checks import run_checks

pytestmark = pytest.mark.network


def test_handlers_accept_what_python_lowers(
    kernel_tree: KernelTree,
    environment: Environment,
    tmp_path: Path,
) -> None:
    accepted = set()
    run_checks(environment("0.10.2"), tmp_path / "run", "case_calls.py")
    for row in json.loads((tmp_path / "run" / "calls.json").read_text()):
        for call in row["calls"]:
            module = MODULES[call[0]]
            if (kernel_tree.lib / module.library).is_file():
                library = kernel_tree.library(module.name)
                assert refusal(library, row["gfx"], call) == "", row
                accepted.add(call[0].removeprefix("jax_aiter_"))
    assert accepted == {
        "gemm_bf16",
        "gemm_i8",
        "gemm_fp8_mi350",
        "gemm_fp4",
        "flatmm_fp8",
        "mha_fwd_asm",
        "mha_bwd_asm",
        "rms_norm",
        "rms_norm_with_add",
        "rms_norm_bwd",
    }
