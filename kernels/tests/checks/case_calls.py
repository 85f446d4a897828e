"""The custom calls of the programs of programs.py, written to calls.json.

Without a number of compute units no row of a tuned table applies, so handlers choose
the kernels.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from kernels.tests.checks.programs import PROGRAMS, calls, lowered


@pytest.mark.usefixtures("installed")
def check_calls_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    rows = []
    for program in PROGRAMS.values():
        monkeypatch.setenv("JAX_AITER_TARGET", program.gfx)
        jax.clear_caches()
        text = lowered(program.function, *program.operands)
        rows.append({"gfx": program.gfx, "calls": calls(text)})
    Path("calls.json").write_text(json.dumps(rows))
