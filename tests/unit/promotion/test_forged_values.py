"""Forged values in files of an index that nobody signed.

Status.json, and ledger entries of the channel local.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import BucketError, RequestError
from promotion.evidence.evidence import load_evidence
from promotion.evidence.signing import load_signature
from promotion.index.audit import verify
from promotion.index.ledger import load_entry
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback
from promotion.index.publish import publish, published_entry
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import (
    NOW,
    RELEASED,
    go,
    objects,
    offered,
    staged_releases,
)

DEEP = b"[" * 100_000
"""JSON that is nested too deeply for Python's parser."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an unsigned index of two sets, the second promoted twice."""
    folder = tmp_path_factory.mktemp("forged")
    bucket = DirBucket(folder / "bucket")
    for staged in staged_releases(bucket, folder, 2, 3):
        go(bucket, staged)
    rollback(bucket, RELEASED, to=1, reason="slow", actor="me", now=lambda: NOW)
    go(bucket, staged)
    return folder


@pytest.fixture
def index(tmp_path: Path, template: Path) -> DirBucket:
    shutil.copytree(template / "bucket", tmp_path / "bucket")
    return DirBucket(tmp_path / "bucket")


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
    index: DirBucket, name: str, value: object
) -> None:
    def change(status: Any) -> None:
        (status if name == "sets" else status["sets"][0])[name] = value

    before = objects(index)
    forge(index, RELEASED.status, change)
    assert published_entry(index, RELEASED) == (0, "")
    publish(index, RELEASED)
    assert objects(index) == before


def test_json_that_is_nested_too_deeply_is_damaged(index: DirBucket) -> None:
    index.path(RELEASED.status).write_bytes(DEEP)
    assert published_entry(index, RELEASED) == (0, "")
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
        ("state.offered", "2,1"),
        ("state.yanked", {"1": 2}),
        ("promoted.tiers", ["device"]),
        ("promoted.policy.attested", ["x"]),
        ("source", {"clean": "yes"}),
    ],
)
def test_entry_with_wrong_type_is_refused(
    template: Path, path: str, value: object
) -> None:
    entry = part = json.loads(
        (template / "bucket" / RELEASED.ledger_entry(2)).read_bytes()
    )
    *parents, name = path.split(".")
    for parent in parents:
        part = part[parent]
    part[name] = value
    with pytest.raises(
        BucketError,
        match=r"^entry(: schema| is not)",
    ):
        load_entry(json.dumps(entry).encode(), "entry")


def test_text_that_is_not_utf8_is_refused(index: DirBucket) -> None:
    before = objects(index)
    with pytest.raises(RequestError, match="is not UTF-8"):
        mark(index, RELEASED, EntryKind.YANK, ["1"], reason="bad\udcff", actor="me")
    assert objects(index) == before


# Sets with several entries


@pytest.mark.parametrize("name", ["2", "4"])
def test_rollback_does_not_restore_set_that_another_entry_quarantined(
    index: DirBucket, name: str
) -> None:
    mark(index, RELEASED, EntryKind.QUARANTINE, [name], reason="bad", actor="me")
    assert not any("rocm7.3" in file for file in offered(index))
    done = rollback(index, RELEASED, to=2, reason="slow", actor="me")
    assert [*done.withheld] == [2]
    assert any("rocm7.3" in file for file in offered(index)) is False
    mark(index, RELEASED, EntryKind.FREE, ["2"], reason="", actor="me")
    assert any("rocm7.3" in file for file in offered(index))
    assert [*verify(index, RELEASED)] == []
