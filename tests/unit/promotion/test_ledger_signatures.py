"""Signed ledgers: forged, edited, cut and unsigned entries, and expired keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from core.digests import sha256_of
from core.errors import BucketError, RequestError
from core.number_ranges import NumberRanges
from promotion.evidence.signing import Signer, load_signer, new_key
from promotion.index.audit import verify
from promotion.index.authority import Authority, LedgerKey, PolicySource
from promotion.index.ledger import LedgerEntry, read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply
from promotion.policy.promotion_policy import Policy
from promotion.promote import promote
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import (
    NOW,
    POLICY,
    RELEASED,
    objects,
    staged_releases,
)

CLEAN = PolicySource(commit="c" * 40, ref="refs/heads/main", clean=True)


class Signed:
    """An index of signed sets, and what its operators have.

    A policy with a key, the key, and a third staged set.
    """

    third: StagedSet

    def __init__(self, folder: Path) -> None:
        self.bucket = DirBucket(folder / "bucket")
        self.signer = load_signer(folder / "key")
        self.thief = load_signer(folder / "other")
        keys = {"ci": LedgerKey(key=self.signer.key)}
        self.policy: Policy = replace(
            POLICY,
            channel="nightly",
            ledger_keys=keys,
            protected_refs=("refs/heads/main",),
        )

    @property
    def authority(self) -> Authority:
        return self.policy.authority(self.signer, CLEAN)

    def promote(self, staged: StagedSet) -> None:
        promote(
            self.bucket,
            staged,
            self.policy,
            now=lambda: NOW,
            signer=self.signer,
            source=CLEAN,
        )

    def mark(self, kind: EntryKind, day: int = 0) -> None:
        now = NOW + timedelta(days=day)
        mark(
            self.bucket,
            RELEASED,
            kind,
            ["2"],
            reason="slow",
            actor="me",
            now=lambda: now,
            authority=self.authority,
        )

    def problems(self) -> list[str]:
        return [*verify(self.bucket, RELEASED, authority=self.policy.authority())]

    def append(self, entry: LedgerEntry, signer: Signer | None = None) -> None:
        """Write an entry as an attacker who may write objects does."""
        data = entry.dump(signer)
        self.bucket.put_if_absent(
            RELEASED.ledger_entry(entry.number), data, sha256=sha256_of(data)
        )

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.bucket.path(key).unlink()

    def forged(self) -> LedgerEntry:
        """Return a chained entry that says of the last set that it was tested on devices."""
        ledger = read_ledger(self.bucket, RELEASED)
        last = ledger.entries[-1]
        assert last.promoted is not None
        promoted = replace(
            last.promoted, tiers={"gfx942": "device", "gfx950": "device"}
        )
        numbers = NumberRanges.of(range(1, last.number + 2))
        state = replace(last.state, held=numbers, offered=numbers)
        number = last.number + 1
        return replace(
            last,
            number=number,
            previous=ledger.digests[-1],
            sets=(number,),
            promoted=promoted,
            state=state,
        )

    def changes(self) -> dict[str, Callable[[], object]]:
        """Return every way in which an operator continues or publishes the ledger."""
        bucket = self.bucket
        authority = self.authority
        return {
            "promote": lambda: self.promote(self.third),
            "publish": lambda: publish(bucket, RELEASED, authority=authority),
            "everything": lambda: publish(
                bucket, RELEASED, everything=True, authority=authority
            ),
            "yank": lambda: self.mark(EntryKind.YANK),
            "rollback": lambda: rollback(
                bucket, RELEASED, to=1, reason="bad", actor="me", authority=authority
            ),
            "retention": lambda: apply(
                bucket, RELEASED, RetentionRule(days=0), actor="me", authority=authority
            ),
        }

    def name_newest_entry(self) -> None:
        """Edit status.json, which is not signed, so that it names the newest entry."""
        ledger = read_ledger(self.bucket, RELEASED)
        path = self.bucket.path(RELEASED.status)
        body = {"entries": len(ledger.entries), "ledger_sha256": ledger.digests[-1]}
        path.write_text(json.dumps(json.loads(path.read_bytes()) | body))

    def refuses_older_entry(self, reason: str) -> None:
        """Commands that start at the entry of status.json do not read older ones."""
        self.name_newest_entry()
        self.refuses(reason, "everything")
        self.remove(RELEASED.status)
        self.refuses(reason)

    def refuses(self, reason: str, *names: str) -> None:
        before = objects(self.bucket)
        for name, change in self.changes().items():
            if names and name not in names:
                continue
            with pytest.raises(BucketError, match=reason):
                change()
            assert objects(self.bucket) == before, name


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StagedSet]:
    """Return a folder with two promoted sets and a third staged set, which each test copies."""
    folder = tmp_path_factory.mktemp("signed")
    new_key(folder / "key")
    new_key(folder / "other")
    made = Signed(folder)
    staged = staged_releases(made.bucket, folder, 2, 3, 4)
    for one in staged[:2]:
        made.promote(one)
    return folder, staged[2]


@pytest.fixture
def index(tmp_path: Path, template: tuple[Path, StagedSet]) -> Signed:
    folder, third = template
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    made = Signed(tmp_path)
    made.bucket.identity = str(folder / "bucket")
    made.third = third
    return made


# Entries


def test_entries_are_signed_and_name_their_policy(index: Signed) -> None:
    index.mark(EntryKind.YANK)
    rollback(
        index.bucket,
        RELEASED,
        to=1,
        reason="bad",
        actor="me",
        now=lambda: NOW,
        authority=index.authority,
    )
    apply(
        index.bucket,
        RELEASED,
        RetentionRule(days=0, keep_newest=0),
        actor="me",
        authority=index.authority,
    )
    entries = read_ledger(index.bucket, RELEASED).entries
    kinds = [entry.kind for entry in entries]
    assert kinds == [
        EntryKind.PROMOTE,
        EntryKind.PROMOTE,
        EntryKind.YANK,
        EntryKind.ROLLBACK,
        EntryKind.RETIRE,
    ]
    for entry in entries:
        assert (entry.key, entry.index, entry.channel) == (
            index.signer.key,
            "multi-arch",
            "nightly",
        )
        assert (entry.policy, entry.source) == (POLICY.text, CLEAN)
    assert index.problems() == []


# Attacks


@pytest.mark.parametrize(
    ("signed", "status"),
    [(False, "older"), (True, "named"), (False, "named"), (False, "removed")],
)
def test_forged_entry_is_neither_published_nor_continued(
    index: Signed, signed: bool, status: str
) -> None:
    index.append(index.forged(), index.thief if signed else None)
    if status == "named":
        index.name_newest_entry()
    if status == "removed":
        index.remove(RELEASED.status)
    reason = "is signed by ssh-ed25519 .*does not list" if signed else "is not signed"
    index.refuses(f"00000003.json {reason}")
    assert any(
        f"00000003.json {reason.partition(' by')[0]}" in problem
        for problem in index.problems()
    )


def test_unsigned_entry_below_signed_one_is_refused(index: Signed) -> None:
    index.append(index.forged())
    index.append(index.forged(), index.signer)
    index.refuses_older_entry("00000003.json is not signed")


@pytest.mark.parametrize("status", ["removed", "older"])
def test_cut_ledger_is_refused(index: Signed, status: str) -> None:
    """Attack D4.

    Yank, unyank, remove the newest entry and status.json (or restore an older one),
    change again.
    """
    index.mark(EntryKind.YANK)
    older = index.bucket.get(RELEASED.status)
    index.mark(EntryKind.UNYANK)
    index.remove(RELEASED.ledger_entry(4), RELEASED.status)
    if status == "older":
        index.bucket.path(RELEASED.status).write_bytes(older)
    for change in index.changes().values():
        with pytest.raises(
            BucketError, match=r"was cut: it ends with entry 3, its pages show entry 4"
        ):
            change()
    assert any(
        "was cut: it ends with entry 3" in problem for problem in index.problems()
    )


def test_cut_promotion_is_noticed_on_project_pages(index: Signed) -> None:
    """The overview page, which names the newest entry, is removed too."""
    index.remove(RELEASED.ledger_entry(2), RELEASED.status, RELEASED.overview)
    with pytest.raises(
        BucketError, match=r"was cut: it ends with entry 1, its pages show entry 2"
    ):
        index.promote(index.third)


# Keys


def test_sweep_without_key_removes_nothing(index: Signed) -> None:
    rule = RetentionRule(days=0, keep_newest=0, grace_days=0.5)
    apply(
        index.bucket,
        RELEASED,
        rule,
        actor="me",
        now=lambda: NOW + timedelta(days=1),
        authority=index.authority,
    )
    before = objects(index.bucket)
    keyless = index.policy.authority()
    with pytest.raises(RequestError, match="the new entry is not signed"):
        apply(
            index.bucket,
            RELEASED,
            rule,
            actor="me",
            now=lambda: NOW + timedelta(days=3),
            authority=keyless,
        )
    assert objects(index.bucket) == before


def test_expired_key_signs_no_new_entry_and_its_older_ones_stay_valid(
    index: Signed,
) -> None:
    key = LedgerKey(key=index.signer.key, expires=date(2026, 1, 3))
    index.policy = replace(index.policy, ledger_keys={"ci": key})
    assert index.problems() == []
    with pytest.raises(RequestError, match="is signed by the key ci after it expired"):
        index.mark(EntryKind.YANK, day=1)
