"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from promotion.storage.directory_bucket import DirBucket


@pytest.fixture(scope="module")
def clean_main() -> Iterator[None]:
    """Let the policy come from a clean checkout of main.

    Unit tests start no processes, such as git.
    """
    status = f"# branch.oid {'c' * 40}\n# branch.head main\n"
    with pytest.MonkeyPatch.context() as patch:
        authority = "ci_build.release.index_authority"
        patch.setattr(f"{authority}._git_status", lambda _: status)
        patch.setattr(f"{authority}._git_history", lambda _: "")
        yield


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket")
