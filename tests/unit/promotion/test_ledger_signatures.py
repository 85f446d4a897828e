"""Signed ledgers: what every command refuses, and expired keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from core.errors import BucketError, RequestError
from promotion.index.authority import Authority, LedgerKey, PolicySource
from promotion.index.ledger import read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import rollback
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply
from tests.support.attacked_index import KEEPER, POLICY, STRANGER, World
from tests.support.promoting import NOW, RELEASED, objects

CLEAN = PolicySource(commit="c" * 40, ref="refs/heads/main", clean=True)
AUTHORITY = POLICY.authority(KEEPER, CLEAN)
RULE = RetentionRule(days=0, keep_newest=0, grace_days=0.5)


def roll_back(world: World) -> None:
    rollback(
        world.bucket,
        RELEASED,
        to=1,
        reason="bad",
        now=lambda: NOW,
        authority=AUTHORITY,
    )


def retain(world: World, days: int, authority: Authority = AUTHORITY) -> None:
    """Remove old sets some days after the promotions."""
    now = NOW + timedelta(days=days)
    apply(
        world.bucket,
        RELEASED,
        RULE,
        now=lambda: now,
        authority=authority,
    )


def changes(world: World) -> dict[str, Callable[[], object]]:
    """Return every way in which an operator continues or publishes the ledger."""
    third = world.stage(tools={"tests": "3"})

    def pages(*, everything: bool) -> None:
        publish(world.bucket, RELEASED, everything=everything, authority=AUTHORITY)

    return {
        "promote": lambda: world.promote(third),
        "publish": lambda: pages(everything=False),
        "everything": lambda: pages(everything=True),
        "yank": lambda: world.mark(EntryKind.YANK),
        "rollback": lambda: roll_back(world),
        "retention": lambda: retain(world, 0),
    }


def every_command_refuses(world: World, reason: str, *names: str) -> None:
    """Run every command, or those with these names."""
    before = objects(world.bucket)
    for name, change in changes(world).items():
        if not names or name in names:
            with pytest.raises(BucketError, match=reason):
                change()
            assert objects(world.bucket) == before, name


def name_newest_entry(world: World) -> None:
    """Edit status.json, which is not signed, so that it names the newest entry."""
    newest = world.newest()
    status = json.loads(world.bucket.get(RELEASED.status))
    status |= {"entries": newest.number, "ledger_sha256": newest.sha256}
    world.put(RELEASED.status, json.dumps(status).encode())


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("signed"))
    for tools in ("1", "2"):
        world.promote(world.stage(tools={"tests": tools}))
    return world


@pytest.fixture
def world(template: World, tmp_path: Path) -> World:
    return template.copied(tmp_path)


def test_entries_are_signed_and_name_their_policy(world: World) -> None:
    world.mark(EntryKind.YANK)
    roll_back(world)
    retain(world, 1)
    entries = read_ledger(world.bucket, RELEASED).entries
    kinds = ["promote", "promote", "yank", "rollback", "retire"]
    assert [entry.kind for entry in entries] == kinds
    for entry in entries:
        assert (entry.key, entry.index) == (KEEPER.key, "multi-arch")
        assert (entry.channel, entry.policy) == ("local", POLICY.text)
    assert entries[-1].source == CLEAN


# Attacks


@pytest.mark.parametrize(
    ("signed", "status"),
    [(False, "older"), (True, "named"), (False, "named"), (False, "removed")],
)
def test_forged_entry_is_neither_published_nor_continued(
    world: World, signed: bool, status: str
) -> None:
    world.forge(STRANGER if signed else None)
    if status == "named":
        name_newest_entry(world)
    if status == "removed":
        world.put(RELEASED.status, None)
    reason = "is signed by ssh-ed25519 .*does not list" if signed else "is not signed"
    every_command_refuses(world, f"00000003.json {reason}")


def test_unsigned_entry_below_signed_one_is_refused(world: World) -> None:
    """Commands that start at the entry of status.json do not read older ones."""
    world.forge(None)
    world.forge()
    name_newest_entry(world)
    reason = "00000003.json is not signed"
    every_command_refuses(world, reason, "everything")
    world.put(RELEASED.status, None)
    every_command_refuses(world, reason)


@pytest.mark.parametrize("status", ["removed", "older"])
def test_cut_ledger_is_refused(world: World, status: str) -> None:
    """Whoever cuts the ledger also removes status.json, or restores an older one."""
    world.mark(EntryKind.YANK)
    older = world.bucket.get(RELEASED.status)
    world.mark(EntryKind.UNYANK)
    world.put(RELEASED.ledger_entry(4), None)
    world.put(RELEASED.status, older if status == "older" else None)
    reason = "was cut: it ends with entry 3, its pages show entry 4"
    every_command_refuses(world, reason)


def test_cut_promotion_is_noticed_on_project_pages(world: World) -> None:
    """The overview page, which names the newest entry, is removed too."""
    for key in (RELEASED.ledger_entry(2), RELEASED.status, RELEASED.overview):
        world.put(key, None)
    every_command_refuses(world, "entry 1, its pages show entry 2", "promote")


# Keys


def test_sweep_without_key_removes_nothing(world: World) -> None:
    retain(world, 1)
    before = objects(world.bucket)
    with pytest.raises(RequestError, match="the new entry is not signed"):
        retain(world, 3, POLICY.authority())
    assert objects(world.bucket) == before


def test_expired_key_signs_no_new_entry_and_its_older_ones_stay_valid(
    world: World,
) -> None:
    key = LedgerKey(key=KEEPER.key, expires=date(2026, 1, 3))
    policy = replace(POLICY, ledger_keys={"ci": key})
    world.verify(policy)
    with pytest.raises(RequestError, match="is signed by the key ci after it expired"):
        retain(world, 1, policy.authority(KEEPER))
