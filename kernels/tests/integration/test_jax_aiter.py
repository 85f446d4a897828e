"""The package jax_aiter with the real jax 0.10.2, without attention, division and refusals.

The locks in `kernels/tests/checks` come from `uv pip compile --universal
--generate-hashes --no-emit-index-url --no-annotate --no-header` of jax, jaxlib,
hypothesis and pytest, for each tested version of jax.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.tests.support.fake.lowered import CHECKS, Environment
from kernels.tests.support.jax_checks import REFUSALS, run_checks
from tests.support.machine import need

pytestmark = pytest.mark.network
ELSEWHERE = {
    "check_mha.py",
    "check_export.py",
    "check_transformer.py",
    "check_devices.py",
    *REFUSALS,
}
"""Modules that other files run."""


def test_checks_pass(environment: Environment, tmp_path: Path) -> None:
    need("cc")
    modules = {path.name for path in CHECKS.glob("check_*.py")}
    assert modules > ELSEWHERE
    run_checks(environment("0.10.2"), tmp_path / "run", *sorted(modules - ELSEWHERE))
