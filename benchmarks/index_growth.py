"""Requests and bytes of operations on a synthetic index, as years of nights make it.


"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import cast
from unittest.mock import patch

from core.digests import sha256_of
from core.model import WHEELS_JSON, Wheel, WheelSet
from core.wheels_json import dump_wheel_set
from promotion.evidence.evidence import TIME
from promotion.index.ledger import FIRST, LedgerEntry, PromotedSet
from promotion.index.ledger_state import EMPTY_STATE, Change, EntryKind, apply_change
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.operations import change_ledger, mark, rollback
from promotion.index.pages import metadata_name
from promotion.index.publish import publish, read_head
from promotion.index.retention import RetentionRule, apply
from promotion.storage.bucket import Bucket, size_of
from promotion.storage.object_keys import ReleasedIndex

PYTHONS = ("cp311", "cp312", "cp313", "cp314")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""The first night."""
_METADATA = b"metadata"
_TIERS = {"gfx942": "structure", "gfx950": "structure"}


class CountedBucket:
    """A bucket that counts requests and the bytes of their bodies."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.requests = 0
        self.sent = 0
        self.received = 0

    def __getattr__(self, name: str) -> object:
        """Return a method of the bucket that counts its calls."""
        method = getattr(self._bucket, name)

        def call(key: str, *more: object, **words: object) -> object:
            self.requests += 1
            if name.startswith("put_"):
                self.sent += size_of(cast("bytes", more[0]))
            result = method(key, *more, **words)
            if name == "list":  # one request for each 1,000 keys
                keys = list(result)
                self.requests += len(keys) // 1000
                return iter(keys)
            if isinstance(result, bytes):
                self.received += len(result)
            elif isinstance(result, tuple):
                self.received += len(result[0])
            return result

        return call


class MadeIndex:
    """A synthetic index.

    Each set has a pjrt and, for each Python, a plugin that pins the pjrt, and a jaxlib.

    Args:
        projects: number of projects; each set uses three of them, in turn, and a night
            promotes one set for each.
    """

    def __init__(self, bucket: Bucket, projects: int) -> None:
        self.bucket = bucket
        self.released = ReleasedIndex(index="growth")
        self.families = projects // 3
        self.sets = 0
        self._previous = FIRST
        self._state = EMPTY_STATE

    def fill(self, sets: int) -> None:
        """Add sets and their ledger entries, without pages."""
        for number in range(1, sets + 1):
            promoted = self.store_set()
            change = Change(kind=EntryKind.PROMOTE, number=number, sets=(number,))
            self._state = apply_change(self._state, change)
            entry = LedgerEntry(
                number=number,
                previous=self._previous,
                time=self.time().strftime(TIME),
                kind=change.kind,
                state=self._state,
                sets=change.sets,
                promoted=promoted,
                index=self.released.index,
                channel="local",
            )
            data = entry.dump()
            self._previous = sha256_of(data)
            self._put(self.released.ledger_entry(number), data)

    def _put(self, key: str, data: bytes) -> None:
        self.bucket.put_if_absent(key, data, sha256=sha256_of(data))

    def time(self) -> datetime:
        """Return the night of the newest set."""
        return BEGIN + timedelta(days=max(self.sets - 1, 0) // self.families)

    def store_set(self) -> PromotedSet:
        """Store the files of a further set, and return its record for the ledger."""
        self.sets += 1
        wheel_set = self.wheel_set()
        described = dump_wheel_set(wheel_set).encode()
        self._put(self.released.set_file(wheel_set.digest, WHEELS_JSON), described)
        wheels = []
        for wheel in wheel_set.wheels:
            key = self.released.wheel(wheel.name, wheel.filename)
            self._put(key, wheel.filename.encode())
            self._put(metadata_name(key), _METADATA)
            wheels.append(LedgerWheel.of(wheel, metadata_sha256=sha256_of(_METADATA)))
        return PromotedSet(
            set_digest=wheel_set.digest,
            rocm_version=wheel_set.rocm_version,
            jax_version=wheel_set.jax_version,
            python_versions=wheel_set.python_versions,
            tier="structure",
            tiers=_TIERS,
            policy={"channel": "local"},
            wheels=tuple(wheels),
            files={WHEELS_JSON: sha256_of(described)},
        )

    def wheel_set(self) -> WheelSet:
        """Return the newest set."""
        family = self.sets % self.families
        version = f"0.10.2+rocm7.2.0.{self.sets}"
        pjrt = f"jax-rocm{family}-pjrt"
        wheels = [_wheel(pjrt, version, "py3-none")]
        for python in PYTHONS:
            tag = f"{python}-{python}"
            plugin = f"jax-rocm{family}-plugin"
            wheels.append(_wheel(plugin, version, tag, f"{pjrt}=={version}"))
            wheels.append(_wheel(f"jaxlib-rocm{family}", version, tag))
        return WheelSet(
            index=self.released.index,
            targets=tuple(_TIERS),
            rocm_version="7.2.0",
            jax_version="0.10.2",
            python_versions=("3.11", "3.12", "3.13", "3.14"),
            request={},
            inputs=(),
            tools={},
            pins={},
            wheels=tuple(wheels),
        )


def _wheel(project: str, version: str, tag: str, *requires: str) -> Wheel:
    tag = f"{tag}-manylinux_2_28_x86_64"
    filename = f"{project.replace('-', '_')}-{version}-{tag}.whl"
    return Wheel(
        filename=filename,
        name=project,
        version=version,
        tags=(tag,),
        size=len(filename),
        sha256=sha256_of(filename.encode()),
        requires_python=">=3.11",
        requires_dist=requires,
        members=(),
        source_sha256="",
        source_size=0,
    )


Prepare = Callable[[MadeIndex], Callable[[Bucket], object]]
"""Function that prepares an operation, which the returned function does."""


def _publish(index: MadeIndex) -> Callable[[Bucket], object]:
    promoted = index.store_set()

    def act(counting: Bucket) -> None:
        change_ledger(
            counting,
            index.released,
            lambda head, _: Change(
                kind=EntryKind.PROMOTE, number=head.number + 1, sets=(head.number + 1,)
            ),
            actor="me",
            now=index.time,
            promoted=promoted,
        )
        publish(counting, index.released)

    return act


def _mark(kind: EntryKind) -> Prepare:
    def prepare(index: MadeIndex) -> Callable[[Bucket], object]:
        names = [index.wheel_set().digest[:12]]
        return lambda counting: mark(
            counting,
            index.released,
            kind,
            names,
            reason="slow",
            actor="me",
            now=index.time,
        )

    return prepare


def _rollback(index: MadeIndex) -> Callable[[Bucket], object]:
    before = max(read_head(index.bucket, index.released)[0].state.visible) - 1
    return lambda counting: rollback(
        counting, index.released, to=before, reason="bad", actor="me", now=index.time
    )


def _retention(days_later: int) -> Prepare:
    def prepare(index: MadeIndex) -> Callable[[Bucket], object]:
        now = index.time() + timedelta(days=days_later)
        rule = RetentionRule(days=(now - BEGIN).days - 0.5)
        return lambda counting: apply(
            counting, index.released, rule, actor="me", now=lambda: now
        )

    return prepare


OPERATIONS: Mapping[str, Prepare] = {
    "publish a set": _publish,
    "yank": _mark(EntryKind.YANK),
    "quarantine": _mark(EntryKind.QUARANTINE),
    "unquarantine": _mark(EntryKind.FREE),
    "rollback": _rollback,
    "retention: hide a night": _retention(0),
    "retention: remove a night": _retention(8),
}
"""Operation -> its preparation; each changes the index for the next one."""


def measure_operation(index: MadeIndex, name: str) -> CountedBucket:
    """Do an operation on a bucket that counts its requests."""
    with patch.object(os, "fsync", lambda _: None):
        act = OPERATIONS[name](index)
        counting = CountedBucket(index.bucket)
        act(cast("Bucket", counting))
    return counting
