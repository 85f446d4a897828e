"""Staged sets with complete evidence, and the visible content of an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.model import PYLOCK, ROCM_LOCK
from promotion.evidence.evidence import record
from promotion.policy.promotion_policy import load_policy
from promotion.promote import Promotion, promote
from promotion.stage import stage
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet
from tests.support.memory_bucket import MemoryBucket
from tests.support.wheel_sets import (
    SetWheel,
    make_set,
    make_wheels,
    passing_evidence,
    write_set,
)

POLICY = load_policy("multi-arch")
RELEASED = ReleasedIndex(index="multi-arch")
NOW = datetime(
    2026,
    1,
    2,
    3,
    4,
    5,
    tzinfo=UTC,
)
"""Time of promotions."""
TIER = "compiled"
"""Tier of a set with all evidence that the policy requires."""


def staged_in(
    bucket: Bucket,
    folder: Path,
    wheels: list[SetWheel],
    *,
    lock: str = "",
    rocm_lock: bytes = b"",
    more: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> StagedSet:
    """Stage a set with all required evidence.

    Args:
        lock: text of its pylock.toml; empty for a set without one.
        rocm_lock: content of its rocm.lock; empty for a set without one.
        more: name -> content of further files.
        changes: fields of the set.
    """
    files = {PYLOCK: lock.encode(), ROCM_LOCK: rocm_lock, **(more or {})}
    files = {name: data for name, data in files.items() if data}
    wheel_set = make_set(wheels, files, **changes)
    staged = stage(
        bucket, write_set(folder / wheel_set.digest, wheels, wheel_set, files)
    )
    for evidence in passing_evidence(wheel_set):
        record(bucket, staged, evidence)
    return staged


def staged_releases(bucket: Bucket, folder: Path, *minors: int) -> list[StagedSet]:
    """Stage a set for each ROCm 7.MINOR; they share a jaxlib."""
    staged = []
    for minor in minors:
        wheels = make_wheels(
            folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",)
        )
        staged.append(staged_in(bucket, folder / "sets", wheels))
    return staged


def go(bucket: Bucket, staged: StagedSet) -> Promotion:
    """Promote a set, in any order of versions."""
    return promote(bucket, staged, POLICY, now=lambda: NOW, allow_lower=True)


class Scene:
    """An index of one set in memory, and two staged sets that share its jaxlib."""

    def __init__(self, folder: Path) -> None:
        self.start = MemoryBucket()
        self.sets = staged_releases(self.start, folder, 2, 3, 4)
        self.promote(self.start, 0)

    def promote(
        self,
        bucket: Bucket,
        number: int,
        now: datetime = NOW,
    ) -> None:
        promote(bucket, self.sets[number], POLICY, now=lambda: now, allow_lower=True)


def objects(bucket: Bucket) -> dict[str, bytes]:
    """Return the stored objects, without reservations."""
    return {
        key: bucket.get(key) for key in bucket.list("v2/") if not key.startswith("v2/_")
    }


def offered(bucket: Bucket) -> dict[str, dict[str, Any]]:
    """Return the visible wheels of the index: file name -> entry of the JSON page."""
    keys = [
        key
        for key in bucket.list(RELEASED.simple)
        if key.count("/") == 4 and key.endswith(".json")
    ]
    result = {}
    for key in keys:
        for file in json.loads(bucket.get(key))["files"]:
            result[file["filename"]] = file
    return result
