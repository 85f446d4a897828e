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
from promotion.index.audit import repair
from promotion.index.ledger import load_entry
from promotion.index.ledger_state import EntryKind
from promotion.index.publish import publish
from promotion.storage.directory_bucket import DirBucket
from tests.support.attacked_index import KEEPER, POLICY, World
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels

AUTHORITY = POLICY.authority(KEEPER)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return an index with two entries."""
    world = World(tmp_path)
    world.promote(world.stage())
    return world.mark(EntryKind.YANK)


def cut(world: World) -> None:
    """Remove the newest entry, and write the pages from the entries before it."""
    newest = RELEASED.ledger_entry(world.newest().number)
    for key in (newest, RELEASED.status, RELEASED.overview):
        world.put(key, None)
    publish(world.bucket, RELEASED, authority=AUTHORITY)


def rewrite(world: World) -> None:
    """Write all entries again with another actor, as the holder of the key can."""
    previous = ""
    for number in range(1, world.newest().number + 1):
        key = RELEASED.ledger_entry(number)
        entry = load_entry(world.bucket.get(key), key)
        data = replace(entry, previous=previous, actor="nobody").dump(KEEPER)
        world.put(key, data)
        previous = sha256_of(data)
    world.put(RELEASED.status, None)
    publish(world.bucket, RELEASED, authority=AUTHORITY)


def test_since_accepts_continued_ledger(world: World) -> None:
    recorded = world.newest()
    world.mark(EntryKind.UNYANK)
    assert world.newest().number == 3
    world.verify(since=recorded)


@pytest.mark.parametrize("attack", [cut, rewrite])
def test_since_reports_cut_or_rewritten_ledger(
    world: World, attack: Callable[[World], None]
) -> None:
    recorded = world.newest()
    attack(world)
    world.verify()  # without the recorded entry, nothing shows it
    with pytest.raises(BucketError, match=r"was cut|was rewritten"):
        world.verify(since=recorded)


def test_repair_since_changes_nothing_in_other_ledger(world: World) -> None:
    recorded = world.newest()
    cut(world)
    before = world.bucket.everything()
    with pytest.raises(BucketError, match="was cut"):
        repair(world.bucket, RELEASED, authority=AUTHORITY, since=recorded)
    assert world.bucket.everything() == before


def test_verify_prints_entry_that_since_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    go(bucket, staged_in(bucket, tmp_path / "sets", wheels))
    words = ["index", "verify", "multi-arch", "--bucket", str(bucket.root)]
    assert cli.run(words) == 0
    recorded = capsys.readouterr().err.split()[-1]
    assert recorded == f"1:{sha256_of(bucket.get(RELEASED.ledger_entry(1)))}"
    assert cli.run([*words, "--since", recorded]) == 0
    number, _, digest = recorded.partition(":")
    other = f"{number}:{digest[::-1]}"
    assert cli.run([*words, "--since", other]) == BucketError.exit_code
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
