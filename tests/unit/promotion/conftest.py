"""Small indexes: each test may change a copy."""

from __future__ import annotations

import shutil

import pytest

from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import Scene, go, staged_releases


@pytest.fixture(scope="session")
def template_of_two_sets(tmp_path_factory: pytest.TempPathFactory) -> DirBucket:
    folder = tmp_path_factory.mktemp("two-sets")
    made = DirBucket(folder / "bucket")
    for staged in staged_releases(made, folder, 2, 3):
        go(made, staged)
    return made


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def two_sets(bucket: DirBucket, template_of_two_sets: DirBucket) -> DirBucket:
    """Return a bucket with an index of two sets, for ROCm 7.2 and 7.3."""
    shutil.copytree(template_of_two_sets.root, bucket.root)
    return bucket
