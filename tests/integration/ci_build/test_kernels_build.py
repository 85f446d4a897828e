"""One build of kernels for two targets, and what it promises.

Contents, repetition, and use by one JAX.

It has a module of AITER's code objects and one of this project's kernels, which every
other module resembles.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kernels.tests.support.fake.lowered import PACKAGE, Environment
from kernels.tests.support.jax_checks import FAST_COMPILER, REFUSALS, run_checks
from tests.integration.conftest import succeed
from tests.support.kernels_command import build
from tests.support.machine import need

pytestmark = pytest.mark.network
TARGETS = "gfx942,gfx1100"
MODULES = ("--kernel-modules=gemm_bf16,rms_norm", "--allow-partial")


@pytest.fixture(scope="module")
def built(work_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Build the wheel, and return the receipt."""
    return build(tmp_path_factory.mktemp("built"), work_cache, TARGETS, *MODULES)


def test_wheel_passes_inspection_as_a_partial_one(built: dict[str, Any]) -> None:
    done = succeed("inspect", built["wheel"], f"--targets={TARGETS}", "--json")
    findings = json.loads(done.stdout)["wheels"][0]["findings"]
    assert [found["code"] for found in findings if found["severity"] != "note"] == [
        "kernels-partial"
    ]


def test_second_build_compiles_nothing_and_gives_same_bytes(
    built: dict[str, Any], work_cache: Path, tmp_path: Path
) -> None:
    again = build(tmp_path, work_cache, TARGETS, *MODULES)
    assert again["steps"]["made"] == 0
    assert again["sha256"] == built["sha256"]


def test_wheel_installs_and_serves_jax(
    built: dict[str, Any], environment: Environment, tmp_path: Path
) -> None:
    wheel = Path(built["wheel"])
    python = environment("0.10.2")
    install = [
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "--dry-run",
        "--no-index",
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert f"Would install jax-aiter-{wheel.name.split('-')[1]}" in done.stdout, (
        done.stdout + done.stderr
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    package = tmp_path / "wheel" / "jax_aiter"
    for path in {*PACKAGE.rglob("*.py")} - {PACKAGE / "version.py"}:
        assert (package / path.relative_to(PACKAGE)).read_bytes() == path.read_bytes()
    need("cc")
    run_checks(
        python,
        tmp_path / "run",
        "wheel.py",
        *REFUSALS,
        package=package,
        flags=FAST_COMPILER,
    )
