"""Environments with the real jax, for tests of the package jax_aiter."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from platformdirs import user_cache_path

from tests.support.kernels_fake.lowered import CHECKS

Environment = Callable[[str], Path]


@pytest.fixture(scope="session")
def environment(pythons: dict[str, Path]) -> Environment:
    """Return `environment(jax) -> interpreter` of a cached environment with the packages of that lock."""

    def find(jax: str) -> Path:
        lock = CHECKS / f"jax-{jax}.lock"
        oldest = (3, 12) if jax.startswith("0.12") else (3, 11)
        version = min(
            (v for v in pythons if oldest <= tuple(map(int, v.split("."))) < (3, 14)), default=None, key=_minor
        )
        if version is None:
            pytest.skip(f"jax {jax} needs Python {oldest[0]}.{oldest[1]} or newer, and this machine has none")
        key = hashlib.sha256(lock.read_bytes() + str(pythons[version]).encode()).hexdigest()[:16]
        folder = user_cache_path("jax-rocm-release") / "test-jax" / f"{jax}-{version}-{key}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "ready").exists():
                shutil.rmtree(folder, ignore_errors=True)
                subprocess.run([pythons[version], "-m", "venv", folder], check=True)
                argv = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
                argv += ["--disable-pip-version-check", "--only-binary=:all:", "--require-hashes"]
                argv += ["--requirement", str(lock)]
                done = subprocess.run(argv, capture_output=True, text=True, check=False)
                if done.returncode:
                    assert "DO NOT MATCH THE HASHES" not in done.stderr, done.stderr
                    pytest.skip(f"package index not reachable for jax {jax}: {done.stderr.strip().splitlines()[-1]}")
                (folder / "ready").touch()
        return folder / "bin" / "python"

    return find


def _minor(version: str) -> int:
    return int(version.split(".")[1])
