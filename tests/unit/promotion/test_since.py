"""`index verify --since`.

An entry that a user recorded shows later that the ledger was cut or rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build import cli
from core.digests import sha256_of
from core.errors import BucketError, RequestError
from promotion.evidence.signing import Signer
from promotion.index.audit import repair, verify
from promotion.index.ledger import RecordedEntry, load_entry, read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.publish import publish
from promotion.promote import promote
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from tests.support.memory_bucket import MemoryBucket
from tests.support.promoting import NOW, POLICY, RELEASED, staged_in
from tests.support.signing_key import signing_key
from tests.support.wheel_sets import make_wheels

SIGNER = Signer(signing_key().encode(), origin="tests")
AUTHORITY = POLICY.authority(SIGNER)


def filled(bucket: Bucket, folder: Path) -> None:
    """Write a signed ledger of two entries."""
    staged = staged_in(
        bucket, folder / "sets", make_wheels(folder / "w", pythons=("3.12",))
    )
    promote(bucket, staged, POLICY, now=lambda: NOW, signer=SIGNER)
    change(bucket, EntryKind.YANK)


@pytest.fixture
def index(tmp_path: Path) -> MemoryBucket:
    bucket = MemoryBucket()
    filled(bucket, tmp_path)
    return bucket


def change(bucket: Bucket, kind: EntryKind) -> None:
    mark(
        bucket,
        RELEASED,
        kind,
        ["1"],
        reason="why",
        actor="tests",
        now=lambda: NOW,
        authority=AUTHORITY,
    )


def newest(bucket: Bucket) -> RecordedEntry:
    ledger = read_ledger(bucket, RELEASED)
    return RecordedEntry(number=len(ledger.entries), sha256=ledger.digests[-1])


def problems(bucket: Bucket, since: RecordedEntry | None) -> list[str]:
    return [*verify(bucket, RELEASED, authority=AUTHORITY, since=since)]


def cut(bucket: MemoryBucket) -> None:
    """Remove the newest entry, and write the pages from the entries before it."""
    bucket.damage(RELEASED.ledger_entry(newest(bucket).number), None)
    for key in (RELEASED.status, RELEASED.overview):
        bucket.damage(key, None)
    publish(bucket, RELEASED, authority=AUTHORITY)


def rewrite(bucket: MemoryBucket) -> None:
    """Write all entries again with another actor, as the holder of the key can."""
    previous = ""
    for number in range(1, newest(bucket).number + 1):
        key = RELEASED.ledger_entry(number)
        entry = replace(
            load_entry(bucket.get(key), key), previous=previous, actor="nobody"
        )
        data = entry.dump(SIGNER)
        bucket.damage(key, data)
        previous = sha256_of(data)
    bucket.damage(RELEASED.status, None)
    publish(bucket, RELEASED, authority=AUTHORITY)


def test_since_accepts_continued_ledger(index: MemoryBucket) -> None:
    recorded = newest(index)
    change(index, EntryKind.UNYANK)
    assert newest(index).number == 3
    assert problems(index, recorded) == []


@pytest.mark.parametrize("attack", [cut, rewrite])
def test_since_reports_cut_or_rewritten_ledger(
    index: MemoryBucket, attack: Callable[[MemoryBucket], None]
) -> None:
    recorded = newest(index)
    attack(index)
    assert problems(index, None) == [], "without the recorded entry, nothing shows it"
    (problem,) = problems(index, recorded)
    assert "was cut" in problem or "was rewritten" in problem


def test_repair_since_changes_nothing_in_other_ledger(index: MemoryBucket) -> None:
    recorded = newest(index)
    cut(index)
    before = index.everything()
    with pytest.raises(BucketError, match="was cut"):
        repair(index, RELEASED, authority=AUTHORITY, since=recorded)
    assert index.everything() == before


def test_verify_prints_entry_that_since_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    filled(bucket, tmp_path)
    words = ["index", "verify", "multi-arch", "--bucket", str(bucket.root)]
    assert cli.run(words) == 0
    recorded = capsys.readouterr().err.split()[-1]
    assert recorded == str(newest(bucket))
    assert cli.run([*words, "--since", recorded]) == 0
    number, _, digest = recorded.partition(":")
    assert (
        cli.run([*words, "--since", f"{number}:{digest[::-1]}"])
        == BucketError.exit_code
    )
    assert "was rewritten" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2", "0:" + "0" * 64, "2:" + "0" * 63])
def test_verify_refuses_malformed_since(tmp_path: Path, text: str) -> None:
    words = [
        "index",
        "verify",
        "multi-arch",
        "--bucket",
        str(tmp_path),
        "--since",
        text,
    ]
    assert cli.run(words) == RequestError.exit_code
