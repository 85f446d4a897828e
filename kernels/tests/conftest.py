"""Fixtures of the kernels' tests.

Built kernels, stand-ins for GPUs, and environments with the real jax.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from core.store import hold_lock
from kernels.tests.support.fake import building, trees
from kernels.tests.support.fake.calls import FakeMachine
from kernels.tests.support.fake.lowered import CHECKS, Environment
from tests.support.machine import uv_environment

HIP_HEADERS = "triton/backends/amd/include/"


@pytest.fixture(scope="session")
def hip_include(
    real_wheel: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a folder with HIP's own headers, from a wheel of Triton."""
    folder = tmp_path_factory.mktemp("hip")
    with zipfile.ZipFile(real_wheel("triton", "3.6.0")) as archive:
        archive.extractall(
            folder,
            [
                name
                for name in archive.namelist()
                if name.startswith(f"{HIP_HEADERS}hip/")
            ],
        )
    return folder / HIP_HEADERS


@pytest.fixture(scope="session")
def stand_ins(
    work_cache: Path,
    shared_folder: Path,
    hip_include: Path,
) -> Path:
    """Compile FakeHip and the other stand-ins for a GPU once."""
    folder = shared_folder / "stand-ins"
    with hold_lock(Path(f"{folder}.lock")):
        if not (folder / "made").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            building.stand_ins(work_cache / "kernels", folder, hip_include)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def kernel_tree(
    work_cache: Path,
    shared_folder: Path,
    stand_ins: Path,
    fake_machine: FakeMachine,
    tmp_path_factory: pytest.TempPathFactory,
) -> trees.KernelTree:
    """Build kernels with the toolchain of the package index, laid out as in the wheel."""
    folder = shared_folder / "kernel-tree"
    told = shared_folder / "kernel-tree.source"
    with hold_lock(Path(f"{folder}.lock")):
        if not told.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            told.write_text(str(building.build(work_cache / "kernels", folder)))
    source = Path(told.read_text())
    return trees.KernelTree(
        folder / "lib",
        folder / "hsa",
        source,
        stand_ins,
        tmp_path_factory.mktemp("kernels"),
        fake_machine,
    )


@pytest.fixture(scope="session")
def fake_machine(stand_ins: Path) -> FakeMachine:
    """Return fake GPUs, with one HIP for the whole process."""
    return trees.start(stand_ins)


@pytest.fixture(scope="session")
def environment(pythons: dict[str, Path]) -> Environment:
    """Return `environment(jax) -> interpreter` of a cached, locked environment."""

    def find(jax: str) -> Path:
        lock = CHECKS / f"jax-{jax}.lock"
        oldest = (3, 12) if jax.startswith("0.12") else (3, 11)
        version = min(
            (v for v in pythons if oldest <= tuple(map(int, v.split("."))) < (3, 14)),
            default=None,
            key=_minor,
        )
        if version is None:
            pytest.skip(
                f"jax {jax} needs Python {oldest[0]}.{oldest[1]} or newer, and this"
                " machine has none"
            )
        # Clones share it, although each has another `.venv` on the same interpreter.
        python = os.path.realpath(pythons[version])
        key = hashlib.sha256(lock.read_bytes() + python.encode()).hexdigest()[:16]
        folder = (
            user_cache_path("jax-rocm-release") / "test-jax" / f"{jax}-{version}-{key}"
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(Path(f"{folder}.lock")):
            if not (folder / "ready").exists():
                shutil.rmtree(folder, ignore_errors=True)
                # uv links the files of its cache, in which the gates' environments have
                # most of them.
                uv = [sys.executable, "-m", "uv"]
                subprocess.run(
                    [*uv, "venv", "--quiet", f"--python={python}", str(folder)],
                    check=True,
                )
                argv = [
                    *uv,
                    "pip",
                    "install",
                    "--quiet",
                    f"--python={folder / 'bin' / 'python'}",
                    "--no-deps",
                ]
                argv += [
                    "--only-binary=:all:",
                    "--require-hashes",
                    f"--requirement={lock}",
                ]
                env = {**os.environ, **uv_environment()}
                done = subprocess.run(
                    argv,
                    capture_output=True,
                    text=True,
                    check=False,
                    env=env,
                )
                if done.returncode:
                    assert "Hash mismatch" not in done.stderr, done.stderr
                    pytest.skip(
                        f"package index not reachable for jax {jax}:"
                        f" {done.stderr.strip().splitlines()[-1]}"
                    )
                (folder / "ready").touch()
        return folder / "bin" / "python"

    return find


def _minor(version: str) -> int:
    return int(version.split(".")[1])
