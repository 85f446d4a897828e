"""Staged sets with complete evidence, visible content of an index, and failing buckets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from promotion.evidence.evidence import record
from promotion.policy.policy import load_policy
from promotion.promote import Promotion, promote
from promotion.stage import stage
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import ReleasedIndex, StagedSet
from tests.support.wheel_sets import SetWheel, make_set, passing_evidence, write_set

POLICY = load_policy("multi-arch")
RELEASED = ReleasedIndex(index="multi-arch")
TIER = "compiled"
"""What a set comes to with the evidence that the policy asks for."""
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def staged_in(bucket: Bucket, folder: Path, wheels: list[SetWheel], **changes: Any) -> StagedSet:
    """A staged set with all the evidence that it needs."""
    wheel_set = make_set(wheels, **changes)
    staged = stage(bucket, write_set(folder / wheel_set.digest, wheels, wheel_set))
    for evidence in passing_evidence(wheel_set):
        record(bucket, staged, evidence)
    return staged


def go(bucket: Bucket, staged: StagedSet) -> Promotion:
    return promote(bucket, staged, POLICY, now=lambda: NOW)


def objects(bucket: Bucket, prefix: str = "v2/") -> dict[str, bytes]:
    return {key: bucket.get(key) for key in bucket.list(prefix)}


def offered(bucket: Bucket) -> dict[str, dict[str, Any]]:
    """Return the visible wheels of the index: file name -> entry of the JSON page."""
    keys = [key for key in bucket.list(RELEASED.simple) if key.count("/") == 4 and key.endswith(".json")]
    return {file["filename"]: file for key in keys for file in json.loads(bucket.get(key))["files"]}


class DyingBucket(DirBucket):
    """Dies at one of its writes: before it, or after it."""

    def __init__(self, root: Path, *, at: int, after: bool) -> None:
        super().__init__(root)
        self._writes, self._at, self._after = count(), at, after

    def _dying(self, write: Callable[[], Any]) -> Any:
        mine = next(self._writes) == self._at
        if mine and not self._after:
            raise KeyboardInterrupt
        result = write()
        if mine:
            raise KeyboardInterrupt
        return result

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str) -> bool:
        return bool(self._dying(lambda: DirBucket.put_if_absent(self, key, data, sha256=sha256)))

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> Any:
        return self._dying(lambda: DirBucket.put_if_match(self, key, data, etag=etag))

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        return bool(self._dying(lambda: DirBucket.copy(self, source, target, sha256=sha256)))


def unsatisfied(seen: dict[str, dict[str, Any]], wheels: list[SetWheel]) -> Iterator[str]:
    """Requirements of offered wheels on projects of the set that no offered wheel meets."""
    known = {wheel.wheel.filename: wheel.wheel for wheel in wheels}
    visible = [known[name] for name in seen]
    projects = {wheel.name for wheel in known.values()}
    for wheel in visible:
        for requirement in map(Requirement, wheel.requires_dist):
            name = canonicalize_name(requirement.name)
            met = any(w.name == name and requirement.specifier.contains(w.version) for w in visible)
            if name in projects and not met:
                yield f"{wheel.filename}: {requirement}"
