"""The package jax_aiter with the oldest jax: transformations, registration and lowering.

Numerical results do not depend on the version.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.tests.support.fake.lowered import CHECKS, Environment
from kernels.tests.support.jax_checks import FASTER_COMPILER, run_checks

pytestmark = pytest.mark.network


def test_checks_pass(environment: Environment, tmp_path: Path) -> None:
    modules = sorted(path.name for path in CHECKS.glob("check_*.py"))
    run_checks(
        environment("0.8.0"),
        tmp_path / "run",
        *modules,
        "-m",
        "releases",
        flags=FASTER_COMPILER,
    )
