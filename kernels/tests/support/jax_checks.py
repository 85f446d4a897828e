"""Runs of `kernels/tests/checks` in an environment with the real jax, on 8 virtual CPU devices."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from kernels.tests.support.fake.lowered import FOREIGN, PACKAGE, copy_checks

FAST_COMPILER = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
"""Most programs run once, and on a few numbers: compiling them takes the time."""
FASTER_COMPILER = f"{FAST_COMPILER} --xla_cpu_use_fusion_emitters=false"
"""Options that save a part of the time of the checks.

jax 0.12.0 lacks the last one, and with it the XLA of jax 0.10.2 computes wrong numbers
from float8_e4m3fnuz.
"""
REFUSALS = (
    "check_choice.py",
    "check_compat.py",
    "check_loader.py",
    "check_refusals.py",
    "check_tuned.py",
)
"""Modules that the change tier runs: what jax_aiter refuses, and its choice of a backend."""


def run_checks(
    python: Path,
    folder: Path,
    *arguments: str,
    package: Path = PACKAGE,
    flags: str = FASTER_COMPILER,
) -> list[str]:
    """Run checks in an empty folder, fail if any fails, and return the names of all.

    Args:
        python: interpreter of the environment.
        arguments: names of modules, such as check_gemm.py, and options of pytest.
        package: the package jax_aiter that is checked.
    """
    copy_checks(folder, package)
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN)
    }
    env |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "PYTHONPATH": str(folder),
        "XLA_FLAGS": flags,
    }
    argv = [
        str(python),
        "-m",
        "pytest",
        "--quiet",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
    ]
    argv += [
        "-p",
        "kernels.tests.checks.fixtures",
        "-o",
        "python_files=*.py",
        "-o",
        "python_functions=check_*",
    ]
    argv += [
        f"--rootdir={folder}",
        "--junit-xml=results.xml",
        f"--basetemp={folder / 'temporary'}",
    ]
    argv += [
        f"kernels/tests/checks/{word}" if word.endswith(".py") else word
        for word in arguments
    ]
    done = subprocess.run(
        argv,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = ET.parse(folder / "results.xml").getroot().iter("testcase")
    return [f"{case.get('classname')}.{case.get('name')}" for case in cases]
