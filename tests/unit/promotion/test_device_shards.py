"""Splitting of tests into shards, and storage of their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.digests import sha256_of
from core.errors import GateError, RequestError
from promotion.evidence.signing import Signer
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.device.shards import (
    Shard,
    ShardResult,
    collect_shards,
    digest_of_tests,
    join_results,
    parse_shard,
    upload_shard,
)
from promotion.storage.object_keys import StagedSet
from tests.support.device_results import BINARY, result
from tests.support.memory_bucket import MemoryBucket
from tests.support.signing_key import signing_key


@pytest.mark.parametrize("text", ["0/4", "5/4", "a/b"])
def test_parse_shard_refuses_invalid_shard(text: str) -> None:
    with pytest.raises(RequestError):
        parse_shard(text)


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


SIGNER = Signer(signing_key().encode(), origin="tests")


def stored(*shards: ShardResult, signer: Signer | None = SIGNER) -> MemoryBucket:
    bucket = MemoryBucket()
    for shard in shards:
        upload_shard(bucket, STAGED, "device", shard, signer)
    return bucket


def collected(bucket: MemoryBucket, **settings: str) -> tuple[ShardResult, ...]:
    asked = {"suite": "s", "size": "large", **settings}
    return collect_shards(bucket, STAGED, "device", asked, ["gfx942"], SIGNER)


def test_collect_shards_returns_shards_in_order() -> None:
    second = shard_result(2, 2, result("b", V.PASSED))
    first = shard_result(1, 2, result("a", V.FAILED, BINARY.replace("\udcff", "")))
    assert collected(stored(second, first)) == (first, second)


def test_collect_shards_prefers_newest_attempt() -> None:
    first = shard_result(1, 1, result("a", V.FAILED), at="2026-01-01T00:00:00Z")
    second = shard_result(1, 1, result("a", V.PASSED), at="2026-01-02T00:00:00Z")
    assert collected(stored(second, first)) == (second,)


def test_collect_shards_names_missing_shards() -> None:
    bucket = stored(*(shard_result(number, 4) for number in (1, 3, 4)))
    with pytest.raises(GateError, match="lacks shard 2/4"):
        collected(bucket)
    with pytest.raises(RequestError, match="has no shard of device"):
        collected(bucket, suite="another")


@pytest.mark.parametrize(
    "other",
    [
        {"tests": digest_of_tests(["a", "c"])},
        {"settings": {**SETTINGS, "python": "3.11"}},
    ],
)
def test_collect_shards_does_not_mix_runs(other: dict[str, Any]) -> None:
    with pytest.raises(GateError, match="No run is complete"):
        collected(stored(shard_result(1, 2), shard_result(2, 2, **other)))


@pytest.mark.parametrize(
    ("asked", "python"),
    [
        ("", "3.11"),
        ("3.11", "3.11"),
        ("3.12", "3.12"),
    ],
)
def test_collect_shards_takes_machine_settings_from_shards(
    asked: str, python: str
) -> None:
    """The machine that joins shards may have no device and no Python of the set."""
    bucket = stored(
        *(
            shard_result(
                1, 1, settings={**SETTINGS, "python": python}, at=f"{day}T00:00:00Z"
            )
            for python, day in (("3.12", "2026-01-01"), ("3.11", "2026-01-02"))
        )
    )
    (found,) = collected(bucket, python=asked, passes="all")
    assert found.settings == {**SETTINGS, "python": python}


def test_collect_shards_refuses_unsigned_shard() -> None:
    with pytest.raises(GateError, match="not signed"):
        collected(stored(shard_result(1, 1), signer=None))


def test_collect_shards_refuses_signature_of_another_shard() -> None:
    bucket = MemoryBucket()
    other = MemoryBucket()
    key = upload_shard(bucket, STAGED, "device", shard_result(1, 1), None)
    signed = upload_shard(other, STAGED, "device", shard_result(2, 2), SIGNER)
    data = other.get(f"{signed}.sig")
    bucket.put_if_absent(f"{key}.sig", data, sha256=sha256_of(data))
    with pytest.raises(GateError, match="signed with another key"):
        collected(bucket)


def test_collect_shards_refuses_shard_of_another_set() -> None:
    bucket = MemoryBucket()
    other = StagedSet(index="multi-arch", digest="b" * 64)
    key = upload_shard(bucket, other, "device", shard_result(1, 1), SIGNER)
    for suffix in ("", ".sig"):
        data = bucket.get(key + suffix)
        bucket.put_if_absent(
            key.replace("b" * 64, "a" * 64) + suffix, data, sha256=sha256_of(data)
        )
    with pytest.raises(GateError, match="another set"):
        collected(bucket)


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
