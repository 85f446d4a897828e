"""Signed ledgers: forged, edited, cut and unsigned entries, expired keys, and the origin of the policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from core.errors import BucketError, PromotionBlockedError, RequestError
from core.number_ranges import NumberRanges
from promotion.evidence.signing import Signer, load_signer, new_key
from promotion.index.audit import verify
from promotion.index.authority import Authority, LedgerKey, PolicySource
from promotion.index.ledger import SCHEMA_VERSION, LedgerEntry, load_entry, read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback, sign
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply
from promotion.policy.policy import Policy
from promotion.promote import promote
from promotion.storage.bucket import sha256_of
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.promoting import NOW, POLICY, RELEASED, objects, staged_in
from tests.support.wheel_sets import make_wheels

CLEAN = PolicySource(commit="c" * 40, ref="refs/heads/main", clean=True)


class Signed:
    """An index of signed sets, and what its operators have: a policy with a key, and the key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bucket = folder, DirBucket(folder / "bucket")
        self.signer, self.thief = load_signer(folder / "key"), load_signer(folder / "other")
        keys = {"ci": LedgerKey(key=self.signer.key)}
        self.policy: Policy = replace(POLICY, channel="nightly", ledger_keys=keys, protected_refs=("refs/heads/main",))

    @property
    def authority(self) -> Authority:
        return self.policy.authority(self.signer, CLEAN)

    def staged(self, minor: int) -> StagedSet:
        if not (self.folder / str(minor)).exists():
            wheels = make_wheels(self.folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))
            (self.folder / str(minor)).write_text(staged_in(self.bucket, self.folder / "sets", wheels).digest)
        return StagedSet(index="multi-arch", digest=(self.folder / str(minor)).read_text())

    def promote(self, minor: int, signer: Signer | None = None, source: PolicySource | None = CLEAN) -> None:
        key = signer or self.signer
        staged = self.staged(minor)
        promote(self.bucket, staged, self.policy, now=lambda: NOW, signer=key, source=source)

    def mark(self, kind: EntryKind, authority: Authority | None = None) -> None:
        authority = authority or self.authority
        mark(self.bucket, RELEASED, kind, ["2"], reason="slow", actor="me", now=lambda: NOW, authority=authority)

    def problems(self) -> list[str]:
        return [*verify(self.bucket, RELEASED, authority=self.policy.authority())]

    def append(self, entry: LedgerEntry, signer: Signer | None = None) -> None:
        """Write an entry as an attacker who may write objects does."""
        data = entry.dump(signer)
        self.bucket.put_if_absent(RELEASED.ledger_entry(entry.number), data, sha256=sha256_of(data))

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.bucket.path(key).unlink()

    def forged(self) -> LedgerEntry:
        """Return a chained entry that says of the last set that it was tested on devices."""
        ledger = read_ledger(self.bucket, RELEASED)
        last = ledger.entries[-1]
        assert last.promoted is not None
        promoted = replace(last.promoted, tier="device", tiers={"gfx942": "device", "gfx950": "device"})
        numbers = NumberRanges.of(range(1, last.number + 2))
        state = replace(last.state, held=numbers, offered=numbers)
        number = last.number + 1
        return replace(last, number=number, previous=ledger.head, sets=(number,), promoted=promoted, state=state)

    def changes(self) -> dict[str, Callable[[], object]]:
        """Return every way in which an operator continues or publishes the ledger."""
        bucket, authority = self.bucket, self.authority
        return {
            "promote": lambda: self.promote(5),
            "publish": lambda: publish(bucket, RELEASED, authority=authority),
            "everything": lambda: publish(bucket, RELEASED, everything=True, authority=authority),
            "yank": lambda: self.mark(EntryKind.YANK),
            "rollback": lambda: rollback(bucket, RELEASED, to=1, reason="bad", actor="me", authority=authority),
            "retention": lambda: apply(bucket, RELEASED, RetentionRule(days=0), actor="me", authority=authority),
        }

    def name_newest_entry(self) -> None:
        """Edit status.json, which is not signed, so that it names the newest entry."""
        ledger, path = read_ledger(self.bucket, RELEASED), self.bucket.path(RELEASED.status)
        body = {"entries": len(ledger.entries), "ledger_sha256": ledger.head}
        path.write_text(json.dumps(json.loads(path.read_bytes()) | body))

    def refuses_every_change(self, reason: str) -> None:
        self.refuses(reason, self.changes())

    def refuses_publication_of_everything(self, reason: str) -> None:
        self.refuses(reason, {"everything": self.changes()["everything"]})

    def refuses(self, reason: str, changes: Mapping[str, Callable[[], object]]) -> None:
        for name, change in changes.items():
            self.staged(5)
            before = objects(self.bucket)
            with pytest.raises(BucketError, match=reason):
                change()
            assert objects(self.bucket) == before, name


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two promoted sets and two staged sets, which each test copies."""
    folder = tmp_path_factory.mktemp("signed")
    new_key(folder / "key")
    new_key(folder / "other")
    made = Signed(folder)
    made.promote(2)
    made.promote(3)
    made.staged(4)
    made.staged(5)
    return folder


@pytest.fixture
def index(tmp_path: Path, template: Path) -> Signed:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Signed(tmp_path)


# Entries


def test_entries_are_signed_and_name_their_policy(index: Signed) -> None:
    index.mark(EntryKind.YANK)
    rollback(index.bucket, RELEASED, to=1, reason="bad", actor="me", now=lambda: NOW, authority=index.authority)
    apply(index.bucket, RELEASED, RetentionRule(days=0, keep_newest=0), actor="me", authority=index.authority)
    entries = read_ledger(index.bucket, RELEASED).entries
    kinds = [entry.kind for entry in entries]
    assert kinds == [EntryKind.PROMOTE, EntryKind.PROMOTE, EntryKind.YANK, EntryKind.ROLLBACK, EntryKind.RETIRE]
    for entry in entries:
        assert (entry.key, entry.index, entry.channel) == (index.signer.key, "multi-arch", "nightly")
        assert (entry.policy, entry.source) == (POLICY.text, CLEAN)
    assert index.problems() == []


def test_verify_reports_policy_text_that_differs_from_its_digest(index: Signed) -> None:
    entry = replace(index.forged(), policy="schema = 1", state=index.forged().state)
    index.append(entry, index.signer)
    assert any("contains another policy" in problem for problem in index.problems())


def test_verify_reports_policy_text_without_digest(index: Signed) -> None:
    entry = index.forged()
    assert entry.promoted is not None
    promoted = replace(entry.promoted, policy={"channel": "nightly"})
    index.append(replace(entry, promoted=promoted), index.signer)
    assert any("contains another policy than the one that it names: none" in problem for problem in index.problems())


def test_status_omits_policy_text(index: Signed) -> None:
    assert "protected_refs" in POLICY.text
    assert b"protected_refs" not in index.bucket.get(RELEASED.status)


# Attacks


@pytest.mark.parametrize("who", ["nobody", "thief"])
def test_forged_entry_is_neither_published_nor_continued(index: Signed, who: str) -> None:
    index.append(index.forged(), index.thief if who == "thief" else None)
    reason = "00000003.json is not signed" if who == "nobody" else "00000003.json is signed by ssh-ed25519 .*does not"
    index.refuses_every_change(reason)
    assert any(reason.partition(" by")[0].split(".json ")[1] in problem for problem in index.problems())


@pytest.mark.parametrize("status", ["named", "removed"])
def test_forged_entry_is_refused_with_forged_status(index: Signed, status: str) -> None:
    entry = index.forged()
    index.append(entry)
    path = index.bucket.path(RELEASED.status)
    body = json.loads(path.read_bytes()) | {"entries": 3, "ledger_sha256": sha256_of(entry.dump())}
    path.write_text(json.dumps(body)) if status == "named" else path.unlink()
    index.refuses_every_change("00000003.json is not signed")


def test_unsigned_entry_below_signed_one_is_refused(index: Signed) -> None:
    """Commands that start at the entry of status.json do not read it."""
    index.append(index.forged())
    index.append(index.forged(), index.signer)
    index.name_newest_entry()
    index.refuses_publication_of_everything("00000003.json is not signed")
    index.remove(RELEASED.status)
    index.refuses_every_change("00000003.json is not signed")


def test_forged_channel_is_refused(index: Signed) -> None:
    index.append(replace(index.forged(), channel="local"))
    index.refuses_every_change("00000003.json is not signed")


def test_edited_entry_is_refused(index: Signed) -> None:
    path = index.bucket.path(RELEASED.ledger_entry(2))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'"compiled"', b'"device"'))
    index.remove(RELEASED.status)
    index.refuses_every_change("00000002.json was changed after it was signed")
    assert index.problems() == [f"{RELEASED.ledger_entry(2)} was changed after it was signed."]


def test_entry_with_other_encoding_of_same_values_is_refused(index: Signed) -> None:
    data = index.bucket.get(RELEASED.ledger_entry(2))
    with pytest.raises(BucketError, match="was changed after it was signed"):
        load_entry(json.dumps(json.loads(data)).encode(), "x")


def test_entry_of_other_index_is_refused(index: Signed) -> None:
    entry = replace(index.forged(), index="gfx94X-dcgpu")
    index.append(entry, index.signer)
    index.refuses_every_change("contains the wrong entry: gfx94X-dcgpu, 3")


@pytest.mark.parametrize("status", ["removed", "older"])
def test_cut_ledger_is_refused(index: Signed, status: str) -> None:
    """Attack D4: yank, unyank, remove the newest entry and status.json (or restore an older one), change again."""
    index.mark(EntryKind.YANK)
    older = index.bucket.get(RELEASED.status)
    index.mark(EntryKind.UNYANK)
    index.remove(RELEASED.ledger_entry(4), RELEASED.status)
    if status == "older":
        index.bucket.path(RELEASED.status).write_bytes(older)
    changes = index.changes()
    if status == "older":  # The pages agree with the older status.json, so that nothing is to be published.
        del changes["publish"]
    for change in changes.values():
        with pytest.raises(BucketError, match=r"was cut: it ends with entry 3, its pages show entry 4"):
            change()
    assert any("was cut: it ends with entry 3" in problem for problem in index.problems())


def test_cut_promotion_is_noticed_on_project_pages(index: Signed) -> None:
    """The overview page, which names the newest entry, is removed too."""
    index.remove(RELEASED.ledger_entry(2), RELEASED.status, RELEASED.overview)
    with pytest.raises(BucketError, match=r"was cut: it ends with entry 1, its pages show entry 2"):
        index.promote(4)


# Keys


def test_change_refuses_missing_and_unlisted_key(index: Signed) -> None:
    before = objects(index.bucket)
    for signer, reason in ((None, "the new entry is not signed"), (index.thief, "ledger_keys of channel nightly")):
        authority = index.policy.authority(signer, CLEAN)
        with pytest.raises(RequestError, match=reason):
            index.mark(EntryKind.YANK, authority)
        with pytest.raises(RequestError, match=reason):
            apply(index.bucket, RELEASED, RetentionRule(days=0), actor="me", authority=authority)
        with pytest.raises(RequestError, match=reason):
            promote(index.bucket, index.staged(4), index.policy, signer=signer, source=CLEAN)
    assert objects(index.bucket) == before


def test_sweep_without_key_leaves_no_tombstones(index: Signed) -> None:
    rule = RetentionRule(days=0, keep_newest=0, grace_days=0.5)
    apply(index.bucket, RELEASED, rule, actor="me", now=lambda: NOW + timedelta(days=1), authority=index.authority)
    before = objects(index.bucket)
    keyless = index.policy.authority()
    with pytest.raises(RequestError, match="the new entry is not signed"):
        apply(index.bucket, RELEASED, rule, actor="me", now=lambda: NOW + timedelta(days=3), authority=keyless)
    assert objects(index.bucket) == before


def test_expired_key_stays_valid_for_older_entries(index: Signed) -> None:
    """The first key expires; the new key signs; an entry of the first key with an older date is refused."""
    old, new = index.signer, index.thief
    keys = {"ci": LedgerKey(key=old.key, expires=date(2026, 1, 3)), "new": LedgerKey(key=new.key)}
    index.policy = replace(index.policy, ledger_keys=keys)
    assert index.problems() == []
    later = datetime(2026, 1, 3, tzinfo=UTC)

    def yank(signer: Signer, kind: EntryKind, now: datetime) -> None:
        authority = index.policy.authority(signer, CLEAN)
        mark(index.bucket, RELEASED, kind, ["2"], reason="slow", actor="me", now=lambda: now, authority=authority)

    with pytest.raises(RequestError, match="is signed by the key ci after it expired"):
        yank(old, EntryKind.YANK, later)
    yank(new, EntryKind.YANK, later)
    assert index.problems() == []
    ledger = read_ledger(index.bucket, RELEASED)
    last = ledger.entries[-1]
    forged = replace(last, number=4, previous=ledger.head, time="2026-01-02T00:00:00Z", kind=EntryKind.PIN)
    index.append(replace(forged, state=replace(last.state, pinned={2: "slow"})), old)
    assert index.problems()[0] == f"{RELEASED.ledger_entry(4)} is signed by the key ci after it expired."
    with pytest.raises(BucketError, match="after it expired"):
        yank(new, EntryKind.UNYANK, later)


def test_backdated_entry_of_expired_key_is_refused(index: Signed) -> None:
    """An attacker has an expired key, and edits or removes status.json."""
    old = LedgerKey(key=index.thief.key, expires=date(2026, 1, 1))
    index.policy = replace(index.policy, ledger_keys={**(index.policy.ledger_keys or {}), "old": old})
    index.append(replace(index.forged(), time="2025-12-01T00:00:00Z"), index.thief)
    index.name_newest_entry()
    index.refuses_publication_of_everything("00000003.json is signed by the key old after it expired")
    index.remove(RELEASED.status)
    index.refuses_every_change("00000003.json is signed by the key old after it expired")


def test_entry_of_revoked_key_is_refused(index: Signed) -> None:
    """A key leaks, signs an entry and is revoked after other keys continued the ledger."""
    keys = index.policy.ledger_keys or {}
    index.policy = replace(index.policy, ledger_keys={**keys, "leaked": LedgerKey(key=index.thief.key)})
    index.append(index.forged(), index.thief)
    index.mark(EntryKind.YANK)
    revoked = LedgerKey(key=index.thief.key, expires=date(2026, 1, 1))
    index.policy = replace(index.policy, ledger_keys={**keys, "leaked": revoked})
    reason = "00000003.json is signed by the key leaked after it expired"
    assert any(reason in problem for problem in index.problems())
    index.refuses_publication_of_everything(reason)
    index.remove(RELEASED.status)
    index.refuses_every_change(reason)


def test_unsigned_ledger_is_signed_once(tmp_path: Path) -> None:
    """A ledger without signatures is continued on a channel that requires them."""
    bucket = DirBucket(tmp_path / "bucket")
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    promote(bucket, staged_in(bucket, tmp_path / "sets", wheels), replace(POLICY, channel="nightly"), now=lambda: NOW)
    signer = new_key(tmp_path / "key")
    policy = replace(POLICY, channel="nightly", ledger_keys={"ci": LedgerKey(key=signer.key)})
    authority = policy.authority(signer, CLEAN)
    (problem,) = verify(bucket, RELEASED, authority=authority)
    assert problem == f"{RELEASED.ledger_entry(1)} is not signed; channel nightly requires it, see `index sign`."
    with pytest.raises(BucketError, match="channel nightly requires it, see `index sign`"):
        mark(bucket, RELEASED, EntryKind.YANK, ["1"], reason="slow", actor="me", authority=authority)
    with pytest.raises(RequestError, match="No key was given"):
        sign(bucket, RELEASED, reason="begin", actor="me", authority=policy.authority())
    with pytest.raises(RequestError, match="does not list"):
        sign(bucket, RELEASED, reason="begin", actor="me", authority=policy.authority(new_key(tmp_path / "other")))
    done = sign(bucket, RELEASED, reason="begin", actor="me", authority=authority)
    assert done.entry is not None
    assert (done.entry.kind, done.entry.key) == (EntryKind.SIGN, signer.key)
    assert [*verify(bucket, RELEASED, authority=authority)] == []
    mark(bucket, RELEASED, EntryKind.YANK, ["1"], reason="slow", actor="me", authority=authority)
    assert [*verify(bucket, RELEASED, authority=authority)] == []
    with pytest.raises(RequestError, match="has a signed entry: 2"):
        sign(bucket, RELEASED, reason="again", actor="me", authority=authority)


def test_sign_does_not_accept_forged_entry(index: Signed) -> None:
    index.append(index.forged())
    with pytest.raises(RequestError, match="has a signed entry: 1"):
        sign(index.bucket, RELEASED, reason="begin", actor="me", authority=index.authority)


def test_local_channel_accepts_signed_and_unsigned_entries(tmp_path: Path) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",)))
    promote(bucket, staged, POLICY, now=lambda: NOW, signer=new_key(tmp_path / "key"))
    mark(bucket, RELEASED, EntryKind.YANK, ["1"], reason="slow", actor="me")
    assert [*verify(bucket, RELEASED, authority=POLICY.authority())] == []
    assert [bool(entry.key) for entry in read_ledger(bucket, RELEASED).entries] == [True, False]
    assert SCHEMA_VERSION == 4


def test_entries_share_the_text_of_their_policy(index: Signed) -> None:
    first, second = (load_entry(index.bucket.get(RELEASED.ledger_entry(number)), "entry") for number in (1, 2))
    assert len(first.policy) > 1000
    assert first.policy is second.policy


# The checkout of the policy

SOURCES = [
    (PolicySource(), "does not come from a Git checkout"),
    (replace(CLEAN, clean=False), "has uncommitted or untracked files, at commit cccccccccccc"),
    (replace(CLEAN, ref="refs/heads/mine"), "comes from refs/heads/mine, not from a protected ref: refs/heads/main"),
    (replace(CLEAN, ref=""), "comes from a detached commit, not from a protected ref"),
]


@pytest.mark.parametrize(("source", "reason"), SOURCES)
def test_promote_refuses_unprotected_source_unless_permitted(index: Signed, source: PolicySource, reason: str) -> None:
    before = objects(index.bucket)
    with pytest.raises(PromotionBlockedError, match=f"{reason}.*--allow-unprotected OWNER REASON"):
        index.promote(4, source=source)
    assert objects(index.bucket) == before
    permitted = replace(source, owner="somebody", reason="the runner is broken")
    index.promote(4, source=permitted)
    assert read_ledger(index.bucket, RELEASED).entries[-1].source == permitted


def test_permission_is_not_recorded_unless_used(index: Signed) -> None:
    index.promote(4, source=replace(CLEAN, owner="somebody", reason="just in case"))
    assert read_ledger(index.bucket, RELEASED).entries[-1].source == CLEAN


def test_yank_accepts_unprotected_source(index: Signed) -> None:
    """Only promotions are refused: a bad set must be withdrawn from anywhere."""
    index.mark(EntryKind.YANK, index.policy.authority(index.signer, PolicySource()))
    assert index.problems() == []
