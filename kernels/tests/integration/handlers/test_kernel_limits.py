"""Every lowered call is one that the real handler accepts, and every limit in Python is one of the handler."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kernels.tests.support.fake.calls import FakeMachine
from kernels.tests.support.fake.lowered import MODULES, Environment, lowered_calls, refusal
from kernels.tests.support.fake.trees import KernelTree

pytestmark = pytest.mark.network

OPERATIONS = (
    "gemm",
    "gemm_i8",
    "gemm_fp4",
    "gemm_fp8_mi350",
    "flatmm_fp8",
    "attention",
    "attention_gradient",
    "rms_norm",
)
COUNT = 30
"""Random programs of each operation."""


def test_handlers_accept_exactly_what_python_lowers(
    kernel_tree: KernelTree, fake_machine: FakeMachine, environment: Environment, tmp_path: Path
) -> None:
    rows = lowered_calls(environment("0.10.2"), tmp_path, "random_calls", "20261123", str(COUNT), *OPERATIONS)
    seen: Counter[tuple[str, bool]] = Counter()
    for row in rows:
        calls = [call for call in row["calls"] if (kernel_tree.lib / MODULES[call[0]].library).is_file()]
        errors = [refusal(kernel_tree.library(MODULES[call[0]].name), fake_machine, row["gfx"], call) for call in calls]
        if row["refused"]:
            # The limit in Python is not stricter than the handler.
            assert any(errors), row
        else:
            assert not any(errors), (row, errors)
        seen[row["operation"], bool(row["refused"])] += bool(calls)
    for operation in OPERATIONS:
        assert seen[operation, False] >= 5, seen
        assert seen[operation, True] >= 2 or operation == "rms_norm", seen
