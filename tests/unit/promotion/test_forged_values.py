"""Forged values in files of an index that nobody signed.

Status.json, and ledger entries of the channel local.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from core.errors import BucketError, RequestError
from promotion.evidence.evidence import load_evidence
from promotion.evidence.signing import load_signature
from promotion.index.audit import verify
from promotion.index.ledger import load_entry, read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback
from promotion.index.publish import publish, published_entry
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import (
    NOW,
    RELEASED,
    go,
    objects,
    offered,
)

DEEP = b"[" * 100_000
"""JSON that is nested too deeply for Python's parser."""


def forge(bucket: DirBucket, key: str, change: Callable[[Any], object]) -> bytes:
    """Change a JSON object as an attacker who may write it does; return the new bytes."""
    path = bucket.path(key)
    body = json.loads(path.read_bytes())
    change(body)
    path.chmod(0o644)
    path.write_text(json.dumps(body))
    return path.read_bytes()


# status.json


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sets", [{"entry": 2}]),
        ("policy", {"stale_days": "x"}),
        ("tiers", {"a": 1}),
    ],
)
def test_status_with_wrong_types_is_rebuilt(
    two_sets: DirBucket, name: str, value: object
) -> None:
    def change(status: Any) -> None:
        (status if name == "sets" else status["sets"][0])[name] = value

    before = objects(two_sets)
    forge(two_sets, RELEASED.status, change)
    assert published_entry(two_sets, RELEASED) == (0, "")
    publish(two_sets, RELEASED)
    assert objects(two_sets) == before


def test_json_that_is_nested_too_deeply_is_damaged(two_sets: DirBucket) -> None:
    two_sets.path(RELEASED.status).write_bytes(DEEP)
    assert published_entry(two_sets, RELEASED) == (0, "")
    for load in (load_entry, load_evidence):
        with pytest.raises(BucketError, match="is not JSON"):
            load(DEEP, "file")
    with pytest.raises(RequestError):
        load_signature(DEEP, "signature")


# Ledger entries


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 99),
        ("time", None),
        ("time", "2026-01-01T00:00:00"),
        ("number", True),
        ("sets", "12"),
        ("reason", "\udcff"),
        ("state.held", ["x"]),
        ("state.offered.bounds", [2, 1]),
        ("state.yanked", {"1": 2}),
        ("promoted.tiers", ["device"]),
        ("promoted.policy.attested", ["x"]),
        ("source", {"clean": "yes"}),
    ],
)
def test_entry_with_wrong_type_is_refused(
    two_sets: DirBucket, path: str, value: object
) -> None:
    entry = part = json.loads(two_sets.get(RELEASED.ledger_entry(2)))
    *parents, name = path.split(".")
    for parent in parents:
        part = part[parent]
    part[name] = value
    with pytest.raises(
        BucketError,
        match=r"^entry(: schema| is not)",
    ):
        load_entry(json.dumps(entry).encode(), "entry")


def test_text_that_is_not_utf8_is_refused(two_sets: DirBucket) -> None:
    before = objects(two_sets)
    with pytest.raises(RequestError, match="is not UTF-8"):
        mark(two_sets, RELEASED, EntryKind.YANK, ["1"], reason="bad\udcff")
    assert objects(two_sets) == before


# Sets with several entries


@pytest.mark.parametrize("name", ["2", "4"])
def test_rollback_does_not_restore_set_that_another_entry_quarantined(
    two_sets: DirBucket, name: str
) -> None:
    """Entries 2 and 4 promote the same set."""
    promoted = read_ledger(two_sets, RELEASED).entries[1].promoted
    assert promoted is not None
    rollback(two_sets, RELEASED, to=1, reason="slow", now=lambda: NOW)
    go(two_sets, StagedSet(index=RELEASED.index, digest=promoted.set_digest))
    mark(two_sets, RELEASED, EntryKind.QUARANTINE, [name], reason="bad")
    assert not any("rocm7.3" in file for file in offered(two_sets))
    done = rollback(two_sets, RELEASED, to=2, reason="slow")
    assert [*done.withheld] == [2]
    assert any("rocm7.3" in file for file in offered(two_sets)) is False
    mark(two_sets, RELEASED, EntryKind.FREE, ["2"], reason="")
    assert any("rocm7.3" in file for file in offered(two_sets))
    assert [*verify(two_sets, RELEASED)] == []
