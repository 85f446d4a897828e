"""Splitting of tests into shards, and storage of their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.errors import GateError
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.device.shards import (
    Shard,
    ShardResult,
    digest_of_tests,
    join_results,
    load_shard,
    upload_shard,
)
from promotion.storage.object_keys import StagedSet
from tests.support.device_results import result
from tests.support.memory_bucket import MemoryBucket

V = TestVerdict
STAGED = StagedSet(index="multi-arch", digest="a" * 64)

SETTINGS = {
    "suite": "s",
    "size": "large",
    "python": "3.12",
    "passes": "single",
}


SHARD = ShardResult(
    shard=Shard(number=1, count=1),
    target="gfx942",
    settings=SETTINGS,
    tests=digest_of_tests(["a", "b"]),
    problems=(),
    notes=(),
    results=(),
    run={"devices": ["0"]},
    at="2026-01-01T00:00:01Z",
)


def shard_result(
    number: int, count: int, *results: TestResult, **changes: Any
) -> ShardResult:
    at = f"2026-01-01T00:00:0{number}Z"
    return replace(
        SHARD,
        **{
            "shard": Shard(number=number, count=count),
            "results": results,
            "at": at,
            **changes,
        },
    )


def test_stored_shard_is_read_again() -> None:
    bucket = MemoryBucket()
    shard = shard_result(
        1, 2, result("a", V.FAILED, "\x00\ufffe"), warnings=(("c", "t"),)
    )
    key = upload_shard(bucket, STAGED, "device", shard)
    assert load_shard(bucket.get(key), key, STAGED, "device") == shard
    for staged, gate in ((replace(STAGED, digest="b" * 64), "device"), (STAGED, "x")):
        with pytest.raises(GateError, match="another set or gate"):
            load_shard(bucket.get(key), key, staged, gate)
    with pytest.raises(GateError, match="cannot be read"):
        load_shard(b"no gzip", key, STAGED, "device")


def test_join_results_refuses_test_of_two_shards() -> None:
    file = TestResult(id="tests/x.py", verdict=V.FAILED)
    flaky = replace(file, verdict=V.FLAKY)
    assert join_results([shard_result(1, 2, flaky), shard_result(2, 2, file)]) == (
        file,
    )
    with pytest.raises(GateError, match="was run by two shards"):
        join_results(
            [
                shard_result(1, 2, result("a", V.PASSED)),
                shard_result(2, 2, result("a", V.PASSED)),
            ]
        )
