"""Shards of a run.

Distributing tests over several runners, and storing and finding each runner's results.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core.digests import sha256_of
from core.errors import GateError, RequestError
from core.frozen import frozen
from core.model import to_json
from core.records import read_json
from promotion.evidence.evidence import ANY
from promotion.evidence.signing import (
    SUFFIX,
    Signer,
    is_valid_signature,
    load_signature,
)
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.device import device_evidence as evidence
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

SCHEMA_VERSION = 1
SHARD_TYPE = "application/vnd.jax-rocm.gate-shard+json"
SHARD_FILE = "shard.json.gz"
"""End of the names of stored shards."""
_MACHINE_SETTINGS = ("python", "passes")
"""Settings that depend on the runner's machine unless the user sets them."""

_WORST_FIRST = (
    TestVerdict.CRASHED,
    TestVerdict.FAILED,
    TestVerdict.ENVIRONMENT,
    TestVerdict.NOT_RUN,
    TestVerdict.FLAKY,
    TestVerdict.SKIPPED,
    TestVerdict.PASSED,
)

_RunKey = tuple[str, int, str, tuple[str, ...]]
"""Key of a run, common to its shards.

Target, number of shards, digest of all tests, machine settings.
"""


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


def parse_shard(text: str) -> Shard:
    """Parse a shard such as 2/4.

    Raises:
        RequestError: the text is not a valid shard.
    """
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise RequestError(
            f"--shard is invalid: {text!r}.",
            hint="Write it like 2/4 for the second of four shards.",
        )
    return Shard(number=int(match[1]), count=int(match[2]))


def digest_of_tests(collected: Sequence[str]) -> str:
    """Return the SHA-256 of test names, independent of their order."""
    return sha256_of("\n".join(sorted(collected)).encode())


def upload_shard(
    bucket: Bucket,
    staged: StagedSet,
    gate: str,
    result: ShardResult,
    signer: Signer | None,
) -> str:
    """Store a shard beside its set, the signature first; return the shard's key."""
    stored = _StoredShard(set=staged.digest, gate=gate, result=result)
    body = {"schema": SCHEMA_VERSION, **to_json(stored)}
    data = evidence.pack(json.dumps(body, sort_keys=True).encode())
    sha256 = sha256_of(data)
    key = staged.evidence_file(gate, result.target, f"{sha256[:16]}.{SHARD_FILE}")
    if signer is not None:
        signature = signer.sign(data, SHARD_TYPE).dump()
        bucket.put_if_absent(key + SUFFIX, signature, sha256=sha256_of(signature))
    bucket.put_if_absent(key, data, sha256=sha256)
    return key


def collect_shards(
    bucket: Bucket,
    staged: StagedSet,
    gate: str,
    settings: Mapping[str, str],
    targets: Sequence[str] | None,
    signer: Signer | None,
) -> tuple[ShardResult, ...]:
    """Return all shards of the newest complete run with these settings, in order.

    Args:
        gate: name of the gate.
        settings: settings of the run; the Python version and the passes may come from
            the shards.
        targets: targets that the shards may be for; None if the platform has none.
        signer: signer of the shards; None accepts unsigned shards too.

    Raises:
        GateError: shards are missing, damaged, of different tests, or not signed by the
            signer.
        RequestError: no shard has these settings.
    """
    stored = []
    for target in targets or (ANY,):
        folder = staged.evidence_file(gate, target, "")
        keys = [key for key in bucket.list(folder) if key.endswith(f".{SHARD_FILE}")]
        stored += [_read(bucket, staged, key, gate, signer) for key in keys]
    required = dict(settings)
    for name in _MACHINE_SETTINGS:
        if name != "python" or not required.get(name):
            required.pop(name, None)
    runs: dict[_RunKey, dict[int, ShardResult]] = {}
    for shard in sorted(stored, key=lambda shard: shard.at):
        own = shard.settings
        if all(own.get(name, "") == value for name, value in required.items()):
            machine = tuple(own.get(name, "") for name in _MACHINE_SETTINGS)
            key = (shard.target, shard.shard.count, shard.tests, machine)
            runs.setdefault(key, {})[shard.shard.number] = shard
    if not runs:
        raise RequestError(
            f"The set has no shard of {gate} with these settings of"
            f" {settings.get('suite')}.",
            hint="Run `gate device --shard 1/N` and so on.",
        )
    complete = [shards for key, shards in runs.items() if len(shards) == key[1]]
    if not complete:
        raise GateError(
            f"No run is complete: {'; '.join(_missing(runs))}.",
            hint="Run the missing shards.",
        )
    newest = max(complete, key=lambda shards: max(one.at for one in shards.values()))
    return tuple(newest[number] for number in sorted(newest))


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


def _missing(runs: Mapping[_RunKey, Mapping[int, ShardResult]]) -> Iterator[str]:
    for (target, count, tests, (python, _)), shards in runs.items():
        absent = sorted({*range(1, count + 1)} - shards.keys())
        missing = ", ".join(f"{number}/{count}" for number in absent)
        yield (
            f"{target} with Python {python} and tests {tests[:12]} lacks shard {missing}"
        )


def _read(
    bucket: Bucket, staged: StagedSet, key: str, gate: str, signer: Signer | None
) -> ShardResult:
    data = bucket.get(key)
    if signer is not None:
        if bucket.head(key + SUFFIX) is None:
            raise GateError(
                f"The shard is not signed: {key}.",
                hint="Run the shard with --signing-key.",
            )
        signature = load_signature(bucket.get(key + SUFFIX), key + SUFFIX)
        if signature.key != signer.key or not is_valid_signature(
            data, SHARD_TYPE, signature
        ):
            raise GateError(
                f"The shard is signed with another key: {key}.",
                hint="Pass the runners' key with --signing-key.",
            )
    return load_shard(data, key, staged, gate)


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
