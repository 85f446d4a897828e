"""Nights: the exact inputs for which a set was staged, recorded beside the staged sets.

The name of a record has the time, the digest of the inputs and the digest of the set,
so that a listing answers which inputs were done. Records are never replaced. The state
of a night follows from the ledger and the evidence of its set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypedDict

from core.digests import sha256_of
from core.errors import BucketError
from core.frozen import frozen
from core.model import WHEELS_JSON, to_json
from promotion.index.operations import utc_now
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.object_keys import StagedSet, nights_folder
from promotion.storage.stored_records import dump_record, stored_record

SCHEMA = 1
_TIME = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"(\d{8}T\d{12}Z)_([0-9a-f]{64})_([0-9a-f]{64})(\.checked)?\.json")


@frozen
class Night:
    """A recorded night.

    Attributes:
        time: start in UTC, such as 20261123T020000000000Z; sorting these texts sorts
            the times.
        lock: digest of the exact inputs, see `lock_digest`.
        staged: the set of the night.
        checked: whether the released index was checked after the promotion of the set.
    """

    time: str
    lock: str
    staged: StagedSet
    checked: bool = False

    @property
    def key(self) -> str:
        """The key of the record."""
        name = f"{self.time}_{self.lock}_{self.staged.digest}.json"
        return nights_folder(self.staged.index) + name


def lock_digest(lock: Mapping[str, Any]) -> str:
    """Return the SHA-256 of exact inputs, given as JSON values."""
    text = json.dumps(
        to_json(lock), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return sha256_of(text.encode())


def list_nights(bucket: Bucket, index: str) -> tuple[Night, ...]:
    """Return the nights of an index, oldest first; no record is read."""
    folder = nights_folder(index)
    found: dict[str, Night] = {}
    checked: set[str] = set()  # also of nights whose record was removed
    for key in bucket.list(folder):
        if match := _NAME.fullmatch(key.removeprefix(folder)):
            night = Night(
                time=match[1],
                lock=match[2],
                staged=StagedSet(index=index, digest=match[3]),
            )
            if match[4]:
                checked.add(night.key)
            else:
                found[night.key] = night
    nights = sorted(found.values(), key=lambda night: (night.time, night.key))
    return tuple(replace(night, checked=night.key in checked) for night in nights)


def record_night(
    bucket: Bucket,
    staged: StagedSet,
    lock: Mapping[str, Any],
    *,
    version: str,
) -> Night:
    """Record that a set was staged for exact inputs.

    Args:
        version: version of the set's pjrt and plugin wheels.
    """
    night = Night(
        time=utc_now().strftime(_TIME),
        lock=lock_digest(lock),
        staged=staged,
    )
    body = {
        "time": night.time,
        "set": str(staged),
        "version": version,
        "lock": to_json(lock),
    }
    _put(bucket, night.key, body)
    return night


class NightRecord(TypedDict):
    """The record of a night: time, staged set, version of its wheels, and inputs."""

    time: str
    set: str
    version: str
    lock: Mapping[str, Any]


def read_night(bucket: Bucket, night: Night) -> NightRecord:
    """Return the record of a night.

    Raises:
        BucketError: the record is damaged, or its inputs have another digest than its
            name.
    """
    hint = "Remove the record; the night is then done again."
    data = bucket.get(night.key)
    record = stored_record(data, NightRecord, night.key, schema=SCHEMA, hint=hint)
    if lock_digest(record["lock"]) != night.lock:
        raise BucketError(
            f"{night.key} has other inputs than its name says.", hint=hint
        )
    return record


def record_check(bucket: Bucket, night: Night, checks: Mapping[str, str]) -> None:
    """Record that the checks of a released set passed; a record of an earlier check stays.

    Args:
        checks: name of each check -> its outcome.
    """
    body = {"set": str(night.staged), "checks": dict(checks)}
    with suppress(ConflictError):
        _put(bucket, night.key.removesuffix(".json") + ".checked.json", body)


def is_staged(bucket: Bucket, staged: StagedSet) -> bool:
    """Return whether the bucket has a completely staged set."""
    return bucket.head(staged.file(WHEELS_JSON)) is not None


def _put(bucket: Bucket, key: str, body: Mapping[str, Any]) -> None:
    data = dump_record(body, schema=SCHEMA)
    bucket.put_if_absent(key, data, sha256=sha256_of(data))
