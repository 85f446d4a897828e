"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from promotion.storage.directory_bucket import DirBucket


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
