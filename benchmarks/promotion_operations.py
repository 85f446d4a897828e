"""Requests and bytes of operations on a synthetic index."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from unittest.mock import patch

from benchmarks.counting import Traffic, counted
from benchmarks.made_index import BEGIN, MadeIndex
from promotion.index.audit import verify
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import Change, change_ledger, mark, rollback
from promotion.index.publish import publish, read_head
from promotion.index.retention import RetentionRule, apply
from promotion.storage.bucket import Bucket

Prepare = Callable[[Bucket, MadeIndex], Callable[[Bucket], object]]
"""Function that prepares an operation, which the returned function does."""


def _publish(bucket: Bucket, index: MadeIndex) -> Callable[[Bucket], object]:
    promoted = index.store_set(bucket)
    time_ = index.time()

    def act(counting: Bucket) -> None:
        change_ledger(
            counting,
            index.released,
            lambda head, _: Change(
                kind=EntryKind.PROMOTE, sets=(head.number + 1,), promoted=promoted
            ),
            actor="me",
            now=lambda: time_,
        )
        publish(counting, index.released)

    return act


def _mark(kind: EntryKind) -> Prepare:
    def prepare(_: Bucket, index: MadeIndex) -> Callable[[Bucket], object]:
        digest = index.wheel_set().digest
        return lambda counting: mark(
            counting,
            index.released,
            kind,
            [digest[:12]],
            reason="slow",
            actor="me",
            now=index.time,
        )

    return prepare


def _rollback(bucket: Bucket, index: MadeIndex) -> Callable[[Bucket], object]:
    before = max(read_head(bucket, index.released)[0].state.visible) - 1
    return lambda counting: rollback(
        counting, index.released, to=before, reason="bad", actor="me", now=index.time
    )


def _retention(days_later: int) -> Prepare:
    def prepare(_: Bucket, index: MadeIndex) -> Callable[[Bucket], object]:
        def now() -> datetime:
            return index.time() + timedelta(days=days_later)

        rule = RetentionRule(days=(index.time() - BEGIN).days + days_later - 0.5)
        return lambda counting: apply(
            counting, index.released, rule, actor="me", now=now
        )

    return prepare


def _verify(_: Bucket, index: MadeIndex) -> Callable[[Bucket], object]:
    def act(counting: Bucket) -> None:
        if problems := [*verify(counting, index.released)]:
            raise SystemExit("\n".join(problems[:10]))

    return act


OPERATIONS: Mapping[str, Prepare] = {
    "publish a set": _publish,
    "yank": _mark(EntryKind.YANK),
    "quarantine": _mark(EntryKind.QUARANTINE),
    "unquarantine": _mark(EntryKind.FREE),
    "rollback": _rollback,
    "retention: hide a night": _retention(0),
    "retention: remove a night": _retention(8),
    "verify": _verify,
}
"""Operation -> its preparation; each changes the index for the next one."""


def measure_operation(bucket: Bucket, index: MadeIndex, name: str) -> Traffic:
    """Do an operation and return its requests and bytes."""
    with patch.object(os, "fsync", lambda _: None):
        act = OPERATIONS[name](bucket, index)
        counting, traffic = counted(bucket)
        act(counting)
    return traffic
