"""Parts of one run, each done by another runner: kept beside the set, signed, and found again."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from core.errors import GateError, RequestError
from promotion.evidence.evidence import ANY, TIME
from promotion.evidence.signing import SUFFIX, Signer, is_valid_signature, load_signature
from promotion.gates.device import evidence
from promotion.gates.device.results import TestResult, dump_results, load_results
from promotion.gates.device.shards import Shard, parse_shard
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import StagedSet

SCHEMA_VERSION = 1
SHARD_TYPE = "application/vnd.jax-rocm.gate-shard+json"
_NAME = "shard.json.gz"
_OF_THE_MACHINE = ("python", "passes")
"""Settings that follow from the machine that ran a part, where nobody said them."""

_Run = tuple[str, int, str, tuple[str, ...]]
"""What parts of one run have in common: target, how many there are, digest of all tests, settings of the machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one runner did.

    Attributes:
        tests: digest of the names of all tests that it collected, its own and the others'.
        run: details of its run, as evidence has them.
        at: when it ended.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """All parts of one run.

    Attributes:
        settings: what each of them was told.
    """

    target: str
    settings: Mapping[str, str]
    parts: tuple[Part, ...]


def digest_of_tests(collected: Sequence[str]) -> str:
    """SHA-256 over names of tests, whatever their order."""
    return hashlib.sha256("\n".join(sorted(collected)).encode()).hexdigest()


def keep(bucket: Bucket, staged: StagedSet, gate: str, part: Part, signer: Signer | None) -> str:
    """Put a part beside the set, with its signature first; returns its key."""
    body = {
        "schema": SCHEMA_VERSION,
        "set": staged.digest,
        "gate": gate,
        "target": part.target,
        "shard": str(part.shard),
        "settings": dict(part.settings),
        "tests": part.tests,
        "problems": part.problems,
        "notes": part.notes,
        "results": json.loads(dump_results(part.results)),
        "run": dict(part.run),
        "at": part.at,
    }
    data = evidence.pack(json.dumps(body, sort_keys=True).encode())
    sha256 = sha256_of(data)
    key = staged.evidence_more(gate, part.target, f"{sha256[:16]}.{_NAME}")
    if signer is not None:
        signature = signer.sign(data, SHARD_TYPE).dump()
        bucket.put_if_absent(key + SUFFIX, signature, sha256=sha256_of(signature))
    bucket.put_if_absent(key, data, sha256=sha256)
    return key


def now() -> str:
    """The time, as evidence writes it."""
    return datetime.now(UTC).strftime(TIME)


def collect(
    bucket: Bucket,
    staged: StagedSet,
    gate: str,
    settings: Mapping[str, str],
    targets: Sequence[str] | None,
    signer: Signer | None,
) -> Parts:
    """The newest complete set of parts for a run that was told the same.

    Args:
        gate: its name.
        settings: what it was told; which Python and which passes there were follows from the parts.
        signer: whose parts count; None takes unsigned ones too.
        targets: those that the parts may be about; None where the platform has none.

    Raises:
        GateError: parts are missing, damaged, not signed by the key that signs here, or of other tests.
        RequestError: there is none at all.
    """
    found = []
    for target in targets or (ANY,):
        folder = staged.evidence_more(gate, target, "")
        keys = [key for key in bucket.list(folder) if key.endswith(f".{_NAME}")]
        found += [_read(bucket, staged, key, gate, signer) for key in keys]
    asked = {k: v for k, v in settings.items() if k not in _OF_THE_MACHINE or (k == "python" and v)}
    alike = [part for part in found if all(part.settings.get(k) == v for k, v in asked.items())]
    if not alike:
        where = f"{gate} with {settings.get('suite')}"
        other = _otherwise(found, asked)
        raise RequestError(
            f"No shard of {where} lies beside the set{other}.", hint="Run `gate device --shard 1/N` and so on."
        )
    runs: dict[_Run, dict[int, Part]] = {}
    for part in sorted(alike, key=lambda part: part.at):
        own = tuple(part.settings.get(name, "") for name in _OF_THE_MACHINE)
        runs.setdefault((part.target, part.shard.count, part.tests, own), {})[part.shard.number] = part
    whole = [parts for (_, count, _, _), parts in runs.items() if len(parts) == count]
    if not whole:
        raise GateError(f"No run is complete: {'; '.join(_missing(runs))}.", hint="Run what is missing.")
    newest = max(whole, key=lambda parts: max(part.at for part in parts.values()))
    parts = tuple(newest[number] for number in sorted(newest))
    return Parts(target=parts[0].target, settings=parts[0].settings, parts=parts)


def _otherwise(found: Sequence[Part], asked: Mapping[str, str]) -> str:
    """In what the newest shard that is there differs, as a clause; empty where there is none."""
    if not found:
        return ""
    own = max(found, key=lambda part: part.at).settings
    differ = [f"{name} {own.get(name, '')!r}, not {value!r}" for name, value in asked.items() if own.get(name) != value]
    return f"; the newest was told {', '.join(differ)}"


def _missing(runs: Mapping[_Run, Mapping[int, Part]]) -> Iterator[str]:
    for (target, count, tests, (python, _)), parts in runs.items():
        left = [f"{number}/{count}" for number in range(1, count + 1) if number not in parts]
        yield f"of {target} with Python {python} and tests {tests[:12]} there is no {', '.join(left)}"


def _read(bucket: Bucket, staged: StagedSet, key: str, gate: str, signer: Signer | None) -> Part:
    data = bucket.get(key)
    if signer is not None:
        if bucket.head(key + SUFFIX) is None:
            raise GateError(f"{key} is not signed.", hint="Run the shard with --signing-key.")
        signature = load_signature(bucket.get(key + SUFFIX), key + SUFFIX)
        if signature.key != signer.key or not is_valid_signature(data, SHARD_TYPE, signature):
            raise GateError(f"{key} is not signed with the key that signs here.", hint="Use the runners' key.")
    try:
        body = json.loads(gzip.decompress(data))
        if (body["schema"], body["set"], body["gate"]) != (SCHEMA_VERSION, staged.digest, gate):
            raise ValueError("it is of another set, gate or schema")
        return Part(
            shard=parse_shard(body["shard"]),
            target=str(body["target"]),
            settings=dict(body["settings"]),
            tests=str(body["tests"]),
            problems=tuple(body["problems"]),
            notes=tuple(body["notes"]),
            results=load_results(json.dumps(body["results"]).encode(), key),
            run=dict(body["run"]),
            at=str(body["at"]),
        )
    except (OSError, EOFError, KeyError, TypeError, ValueError) as problem:
        raise GateError(f"{key} cannot be read: {problem!r}.", hint="Run the shard again.") from problem
