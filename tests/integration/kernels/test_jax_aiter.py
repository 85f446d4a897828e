"""The package jax_aiter with several versions of the real jax, on 8 virtual CPU devices.

The checks are in tests/jax_aiter, whose modules need jax; pytest runs them in a child process. The locks there come
from `uv pip compile --universal --generate-hashes --no-emit-index-url --no-annotate --no-header` of jax, jaxlib,
hypothesis and pytest, for each tested version of jax.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
import zipfile
from functools import cache
from pathlib import Path

import pytest

from tests.integration.conftest import succeed
from tests.integration.kernels.conftest import Environment
from tests.support.kernels_fake.lowered import CHECKS, FOREIGN, PACKAGE
from tests.support.machine import need

pytestmark = pytest.mark.network

FAST_COMPILER = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
"""Most programs run once, and on a few numbers: compiling them takes the time."""
FASTER_COMPILER = f"{FAST_COMPILER} --xla_cpu_use_fusion_emitters=false"
"""Options that save a third of the time of the checks of attention, and a quarter of all with jax 0.8.0.

jax 0.12.0 lacks the last one, and with it the XLA of jax 0.10.2 computes wrong numbers from float8_e4m3fnuz.
"""
MODULES = sorted(path.stem.removeprefix("check_") for path in CHECKS.glob("check_*.py"))
QUICK = ("choice", "loader", "tuned")
"""Modules that share a process, whose start takes as long as their checks."""
GROUPS = [QUICK, *((name,) for name in MODULES if name not in QUICK)]


@cache
def libraries() -> Path:
    """Return a folder for libraries that checks compile, which all runs of this process share."""
    folder = tempfile.TemporaryDirectory(prefix="checks-libraries-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def run(
    python: Path, folder: Path, *arguments: str, package: Path = PACKAGE, flags: str = FASTER_COMPILER
) -> dict[str, str]:
    """Run checks; return the result of each: "" for passed, else pytest's message."""
    (folder / "tests").mkdir()
    (folder / "tests" / "__init__.py").touch()
    shutil.copytree(CHECKS, folder / "tests" / "jax_aiter", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(package, folder / "jax_aiter", ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    env |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(folder), "XLA_FLAGS": flags}
    env["CHECKS_LIBRARIES"] = str(libraries())
    argv = [str(python), "-m", "pytest", "--quiet", "-W", "error", "-p", "no:cacheprovider"]
    argv += ["-p", "tests.jax_aiter.fixtures", "-o", "python_files=check_*.py", "-o", "python_functions=check_*"]
    argv += [f"--rootdir={folder}", "--junit-xml=results.xml", f"--basetemp={folder / 'temporary'}", *arguments]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (folder / "results.xml").exists(), done.stdout + done.stderr
    cases = ET.parse(folder / "results.xml").getroot().iter("testcase")
    found = {
        f"{case.get('classname')}.{case.get('name')}": "\n".join(ET.tostring(bad, "unicode") for bad in case)
        for case in cases
    }
    assert bool(done.returncode) == any(found.values()), done.stdout + done.stderr
    return found


@pytest.mark.parametrize(
    "group",
    [pytest.param(group, id="-".join(group), marks=() if group == QUICK else pytest.mark.heavy) for group in GROUPS],
)
def test_checks_pass_with_jax(group: tuple[str, ...], environment: Environment, tmp_path: Path) -> None:
    need("cc")
    files = (f"tests/jax_aiter/check_{module}.py" for module in group)
    found = run(environment("0.10.2"), tmp_path, *files)
    assert {name: bad for name, bad in found.items() if bad} == {}
    for module in group:
        assert any(name.startswith(f"tests.jax_aiter.check_{module}.") for name in found)


@pytest.mark.heavy
@pytest.mark.parametrize("jax", ["0.8.0", "0.12.0"])
def test_checks_pass_with_the_oldest_and_the_newest_jax(jax: str, environment: Environment, tmp_path: Path) -> None:
    """These cover transformations, registration and lowering; numerical results do not depend on the version."""
    files = [f"tests/jax_aiter/check_{module}.py" for module in MODULES]
    flags = FASTER_COMPILER if jax == "0.8.0" else FAST_COMPILER
    found = run(environment(jax), tmp_path, *files, "-m", "releases", flags=flags)
    assert {name: bad for name, bad in found.items() if bad} == {}


@pytest.fixture(scope="module")
def real_kernels(work_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the wheel for three targets; return it and its unpacked package."""
    folder = tmp_path_factory.mktemp("real-kernels")
    words = ["--targets=gfx942,gfx950,gfx1100", f"--cache-dir={work_cache}", f"--out={folder / 'out'}"]
    succeed("kernels", "build", *words)
    (wheel,) = (folder / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    return wheel, folder / "wheel" / "jax_aiter"


@pytest.mark.heavy
@pytest.mark.parametrize("jax", ["0.8.0", "0.10.2", "0.12.0"])
def test_real_wheel_loads_beside_every_jax(
    jax: str, environment: Environment, real_kernels: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel, package = real_kernels
    (tmp_path / "run").mkdir()
    python = environment(jax)
    installed = f"{sys.executable} -m pip --python={python} install --dry-run --no-index --no-input {wheel}".split()
    done = subprocess.run(installed, capture_output=True, text=True, check=False)
    assert f"Would install jax-aiter-{wheel.name.split('-')[1]}" in done.stdout, done.stdout + done.stderr
    # The wheel holds the files of this checkout.
    for path in {*PACKAGE.rglob("*.py")} - {PACKAGE / "version.py"}:
        assert (package / path.relative_to(PACKAGE)).read_bytes() == path.read_bytes()
    found = run(python, tmp_path / "run", "tests/jax_aiter/wheel.py", package=package, flags=FAST_COMPILER)
    assert {name: bad for name, bad in found.items() if bad} == {}
