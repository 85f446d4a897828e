"""The package jax_aiter with the oldest and the newest jax.

Transformations, registration and lowering; numerical results do not depend on the version.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.tests.support.fake.lowered import CHECKS, Environment
from kernels.tests.support.jax_checks import FAST_COMPILER, FASTER_COMPILER, run_checks

pytestmark = pytest.mark.network


@pytest.mark.parametrize(
    ("version", "flags"), [("0.8.0", FASTER_COMPILER), ("0.12.0", FAST_COMPILER)]
)
def test_checks_pass(
    environment: Environment,
    tmp_path: Path,
    version: str,
    flags: str,
) -> None:
    modules = sorted(path.name for path in CHECKS.glob("check_*.py"))
    options = (*modules, "-m", "releases")
    run_checks(environment(version), tmp_path / "run", *options, flags=flags)
