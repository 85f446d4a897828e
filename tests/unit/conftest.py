"""Fixtures of the unit tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from promotion.storage.directory_bucket import DirBucket
from tests.support.hypothesis_profile import load_profile

load_profile()
SHARED_MEMORY = Path("/dev/shm")
LEAST = 1 << 30
"""Bytes of free memory from which folders are in memory."""
PREFIX = "jax-rocm-release-unit-tests"


@pytest.fixture(scope="session")
def memory() -> Iterator[Path | None]:
    """Provide a folder in memory, which takes a third of the time of a disk for small files; None without space."""
    usable = os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= LEAST
    # Containers often mount it without the right to run programs, which tests write too.
    if not usable or os.statvfs(SHARED_MEMORY).f_flag & os.ST_NOEXEC:
        yield None
        return
    for old in SHARED_MEMORY.glob(f"{PREFIX}-*-*"):
        if not Path("/proc", old.name.split("-")[-2]).exists():
            shutil.rmtree(old, ignore_errors=True)  # of a killed run
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-{os.getpid()}-", dir=SHARED_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(tmp_path: Path, memory: Path | None) -> Iterator[Path]:
    """Provide an empty folder, in memory if possible."""
    if memory is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, since power failures are not tested here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket")


@pytest.fixture(autouse=True)
def clean_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy come from a clean checkout of main, since unit tests start no processes."""
    status = f"# branch.oid {'c' * 40}\n# branch.head main\n"
    monkeypatch.setattr("ci_build.release.authority._git_status", lambda _: status)
