"""Attention of jax_aiter, exports, models and division between devices, with the real jax 0.10.2."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.tests.support.fake.lowered import Environment
from kernels.tests.support.jax_checks import run_checks

pytestmark = pytest.mark.network


@pytest.mark.parametrize(
    "module",
    [
        "check_mha.py",
        "check_export.py",
        "check_transformer.py",
        "check_devices.py",
    ],
)
def test_checks_pass(
    module: str,
    environment: Environment,
    tmp_path: Path,
) -> None:
    run_checks(environment("0.10.2"), tmp_path / "run", module)
