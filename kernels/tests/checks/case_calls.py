"""The custom calls of the programs of programs.py, written as JSON.

`python -m kernels.tests.checks.case_calls OUT`. Without a number of compute units no row of a
tuned table applies, so handlers choose the kernels.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import jax
import pytest
from jax_aiter import _choice
from jax_aiter._loader import Loader

from kernels.tests.checks.kernels import all_modules
from kernels.tests.checks.programs import PROGRAMS, calls, lowered


def main(out: Path) -> None:
    """Write the target and the calls of each program."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        kernels = Loader(all_modules(Path(folder)))
        environment.setattr(_choice, "loader", lambda: kernels)
        environment.setattr(Loader, "ensure", lambda *_: None)
        environment.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
        for name, program in PROGRAMS.items():
            environment.setenv("JAX_AITER_TARGET", program.gfx)
            jax.clear_caches()
            text = lowered(program.function, *program.operands)
            rows.append({"name": name, "gfx": program.gfx, "calls": calls(text)})
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
