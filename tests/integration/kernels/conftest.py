"""Environments with the real jax, for tests of the package jax_aiter."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from platformdirs import user_cache_path

from tests.conftest import find_pythons
from tests.support.kernels_fake.lowered import CHECKS
from tests.support.machine import uv_environment

Environment = Callable[[str], Path]


@pytest.fixture(scope="session")
def environment() -> Environment:
    """Return `environment(jax) -> interpreter` of a cached environment with the packages of that lock."""

    def find(jax: str) -> Path:
        pythons = find_pythons()
        lock = CHECKS / f"jax-{jax}.lock"
        oldest = (3, 12) if jax.startswith("0.12") else (3, 11)
        version = min(
            (v for v in pythons if oldest <= tuple(map(int, v.split("."))) < (3, 14)), default=None, key=_minor
        )
        if version is None:
            pytest.skip(f"jax {jax} needs Python {oldest[0]}.{oldest[1]} or newer, and this machine has none")
        # Clones share it, although each has another `.venv` on the same interpreter.
        python = os.path.realpath(pythons[version])
        key = hashlib.sha256(lock.read_bytes() + python.encode()).hexdigest()[:16]
        folder = user_cache_path("jax-rocm-release") / "test-jax" / f"{jax}-{version}-{key}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "ready").exists():
                shutil.rmtree(folder, ignore_errors=True)
                # uv links the files of its cache, in which the gates' environments have most of them.
                uv = [sys.executable, "-m", "uv"]
                subprocess.run([*uv, "venv", "--quiet", f"--python={python}", str(folder)], check=True)
                argv = [*uv, "pip", "install", "--quiet", f"--python={folder / 'bin' / 'python'}", "--no-deps"]
                argv += ["--only-binary=:all:", "--require-hashes", f"--requirement={lock}"]
                env = {**os.environ, **uv_environment()}
                done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
                if done.returncode:
                    assert "Hash mismatch" not in done.stderr, done.stderr
                    pytest.skip(f"package index not reachable for jax {jax}: {done.stderr.strip().splitlines()[-1]}")
                (folder / "ready").touch()
        return folder / "bin" / "python"

    return find


def _minor(version: str) -> int:
    return int(version.split(".")[1])
