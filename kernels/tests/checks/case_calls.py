"""The custom calls of the programs of check_lowering.py, written as JSON.

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

from kernels.tests.checks.check_lowering import CASES, calls, lowered
from kernels.tests.checks.kernels import all_modules


def main(out: Path) -> None:
    """Write the target and the calls of each program."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        kernels = Loader(all_modules(Path(folder)))
        environment.setattr(_choice, "loader", lambda: kernels)
        environment.setattr(Loader, "ensure", lambda *_: None)
        environment.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
        for name, (gfx, function, arguments, _) in CASES.items():
            environment.setenv("JAX_AITER_TARGET", gfx)
            jax.clear_caches()
            rows.append({"name": name, "gfx": gfx, "calls": calls(lowered(function, *arguments))})
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
