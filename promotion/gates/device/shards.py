"""Shards of a run on a cluster, and the results that its workers return."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

from core.digests import sha256_of
from core.errors import GateError
from core.frozen import frozen
from core.model import to_json
from core.records import read_json
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.device import device_evidence as evidence
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

SCHEMA_VERSION = 1
SHARD_FILE = "shard.json.gz"
"""End of the names of stored shards."""
_WORST_FIRST = (
    TestVerdict.CRASHED,
    TestVerdict.FAILED,
    TestVerdict.ENVIRONMENT,
    TestVerdict.NOT_RUN,
    TestVerdict.FLAKY,
    TestVerdict.SKIPPED,
    TestVerdict.PASSED,
)


@frozen
class Shard:
    """Shard `number` of `count`, both counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@frozen
class ShardResult:
    """Results of one shard.

    Attributes:
        tests: digest of the names of all collected tests, including the tests of other
            shards.
        warnings: code and text of further findings.
        run: details of the run, as in evidence.
        at: time at which the shard ended.
    """

    shard: Shard
    target: str
    settings: Mapping[str, str]
    tests: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    results: tuple[TestResult, ...]
    run: Mapping[str, Any]
    at: str
    warnings: tuple[tuple[str, str], ...] = ()


@frozen
class _StoredShard:
    """Content of a stored shard: digest of its set, name of its gate, and results."""

    set: str
    gate: str
    result: ShardResult


def digest_of_tests(collected: Sequence[str]) -> str:
    """Return the SHA-256 of test names, independent of their order."""
    return sha256_of("\n".join(sorted(collected)).encode())


def upload_shard(
    bucket: Bucket,
    staged: StagedSet,
    gate: str,
    result: ShardResult,
) -> str:
    """Store a shard beside its set, and return its key."""
    stored = _StoredShard(set=staged.digest, gate=gate, result=result)
    body = {"schema": SCHEMA_VERSION, **to_json(stored)}
    data = evidence.pack(json.dumps(body, sort_keys=True).encode())
    sha256 = sha256_of(data)
    key = staged.evidence_file(gate, result.target, f"{sha256[:16]}.{SHARD_FILE}")
    bucket.put_if_absent(key, data, sha256=sha256)
    return key


def join_results(shards: Sequence[ShardResult]) -> tuple[TestResult, ...]:
    """Return the results of all shards.

    A file that several shards could not collect gets the worst verdict.

    Raises:
        GateError: two shards ran the same test, so they were split differently.
    """
    joined: dict[str, TestResult] = {}
    for shard in shards:
        for result in shard.results:
            other = joined.get(result.id)
            if other is not None and "::" in result.id:
                hint = "Run all shards again with the same version of the gate."
                raise GateError(f"{result.id} was run by two shards.", hint=hint)
            pair = (result, other or result)
            joined[result.id] = min(
                pair, key=lambda result: _WORST_FIRST.index(result.verdict)
            )
    return tuple(joined[test] for test in sorted(joined))


def load_shard(data: bytes, key: str, staged: StagedSet, gate: str) -> ShardResult:
    """Parse a stored shard.

    Raises:
        GateError: it cannot be read, or belongs to another set or gate.
        FormatError: it has another format.
    """
    hint = "Run the shard again."
    try:
        text = gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise GateError(f"{key} cannot be read: {error}.", hint=hint) from error
    stored = read_json(text, _StoredShard, key, schema=SCHEMA_VERSION, hint=hint)
    if (stored.set, stored.gate) != (staged.digest, gate):
        raise GateError(f"{key} is a shard of another set or gate.", hint=hint)
    return stored.result
