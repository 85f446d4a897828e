"""Records of nights: their inputs have the digest in their name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.errors import BucketError
from promotion.nights import read_night, record_night
from promotion.storage.object_keys import StagedSet
from tests.support.memory_bucket import MemoryBucket


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lock": {"jax": "0.10.3"}}, "has other inputs"),
        ({"schema": 99}, "schema: expected 1, got 99"),
    ],
)
def test_record_with_other_inputs_is_refused(
    change: dict[str, Any], reason: str
) -> None:
    bucket = MemoryBucket()
    night = record_night(
        bucket,
        StagedSet(index="multi-arch", digest="a" * 64),
        {"jax": "0.10.2"},
        version="1",
    )
    record = json.loads(bucket.get(night.key))
    assert read_night(bucket, night)["lock"] == record["lock"]
    bucket.damage(night.key, json.dumps(record | change).encode())
    with pytest.raises(BucketError, match=reason):
        read_night(bucket, night)
