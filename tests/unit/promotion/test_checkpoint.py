"""Checkpoints of a ledger: format, publication, and ledgers that were cut, forked, rewritten or signed again."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from core.errors import BucketError, BusyError, RequestError
from core.merkle import MerkleTree, leaf_hash
from core.number_ranges import NumberRanges
from promotion.evidence.signed_note import SignedNote, load_note, sign_note
from promotion.evidence.signing import Signer
from promotion.index.audit import verify
from promotion.index.authority import Authority, LedgerKey
from promotion.index.checkpoint import Checkpoint, origin_of, parse_checkpoint
from promotion.index.checkpoint_audit import CheckpointAudit
from promotion.index.ledger import load_entry, read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.publish import publish
from promotion.index.repair import repair
from promotion.promote import promote
from promotion.storage.bucket import sha256_of
from tests.support.memory_bucket import Fault, FaultyBucket, KilledError, MemoryBucket
from tests.support.promoting import NOW, POLICY, RELEASED, staged_in
from tests.support.wheel_sets import make_wheels

# Format


def test_parse_checkpoint_reads_example_of_specification() -> None:
    text = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
    read = parse_checkpoint(text)
    assert (read.origin, read.size) == ("example.com/behind-the-sofa", 20852163)
    assert read.root == base64.b64decode("CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=")
    assert read.dump() == text
    assert parse_checkpoint(f"{text}an extension\n") == read


ROOT = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "origin\n1\n",
        f"\n1\n{ROOT}\n",
        f"origin\n01\n{ROOT}\n",
        f"origin\n-1\n{ROOT}\n",
        f"origin\n\u0661\n{ROOT}\n",
        f"origin\n\n{ROOT}\n",
        f"origin\n1 \n{ROOT}\n",
        f"origin\n{'9' * 40}\n{ROOT}\n",
        f"origin\n1\n{ROOT[:-4]}\n",
        f"origin\n1\n{ROOT} \n",
        f"origin\n1\n{ROOT}\n\nextension\n",
        f"origin\n1\n{ROOT}\n\n",
        "\n",
    ],
)
def test_parse_checkpoint_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"it does not consist of|its root has|base64|padding"):
        parse_checkpoint(text)


# Publication


def signer_of(seed: int) -> Signer:
    key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    return Signer(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), origin="tests")


MINE, OTHER = signer_of(1), signer_of(2)
LISTED = Authority(channel="local", keys={"release": LedgerKey(key=MINE.key)}, signer=MINE)
"""Authority of a policy with one key."""


@dataclass
class Signed:
    """An index of two sets and a signed ledger in memory, and a copy of the checkpoint of its first state."""

    bucket: MemoryBucket
    kept: Path

    def change(self, kind: EntryKind = EntryKind.YANK, sets: str = "1", authority: Authority = LISTED) -> None:
        mark(self.bucket, RELEASED, kind, [sets], reason="why", actor="tests", now=lambda: NOW, authority=authority)

    def checkpoint(self) -> Checkpoint:
        return parse_checkpoint(load_note(self.bucket.get(RELEASED.checkpoint)).text)

    def problems(self, authority: Authority = LISTED, since: Path | None = None, keep: Path | None = None) -> list[str]:
        checkpoints = CheckpointAudit(self.bucket, RELEASED, authority, since=since, keep=keep)
        return [*verify(self.bucket, RELEASED, authority=authority, checkpoints=checkpoints)]

    def root(self) -> bytes:
        """Return the root of all entries, from their bytes alone."""
        keys = self.bucket.list(RELEASED.ledger)
        return MerkleTree().grown(leaf_hash(self.bucket.get(key)) for key in keys).root


START: dict[str, MemoryBucket] = {}


@pytest.fixture
def index(tmp_path: Path) -> Signed:
    if not START:
        bucket = START["bucket"] = MemoryBucket()
        for minor in (2, 3):
            wheels = make_wheels(tmp_path / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))
            staged = staged_in(bucket, tmp_path / "sets", wheels)
            promote(bucket, staged, replace(POLICY, ledger_keys=LISTED.keys), now=lambda: NOW, signer=MINE)
    made = Signed(bucket=START["bucket"].copied(), kept=tmp_path / "checkpoint")
    made.kept.write_bytes(made.bucket.get(RELEASED.checkpoint))
    return made


def test_every_change_publishes_checkpoint(index: Signed) -> None:
    assert index.checkpoint() == Checkpoint(origin="jax-rocm/v2/multi-arch", size=2, root=index.root())
    for size, kind in enumerate((EntryKind.YANK, EntryKind.UNYANK, EntryKind.PIN, EntryKind.QUARANTINE), start=3):
        index.change(kind)
        assert index.checkpoint() == Checkpoint(origin=origin_of(RELEASED), size=size, root=index.root())
        note = load_note(index.bucket.get(RELEASED.checkpoint))
        assert note.signers(origin_of(RELEASED), [MINE.key]) == (MINE.key,)
        assert index.problems(since=index.kept) == []


def test_publish_writes_missing_checkpoint(index: Signed) -> None:
    before = index.bucket.everything()
    index.bucket.damage(RELEASED.checkpoint, None)
    assert any("checkpoint is missing" in problem for problem in index.problems())
    assert publish(index.bucket, RELEASED, authority=LISTED) == (RELEASED.checkpoint,)
    assert index.bucket.everything() == before
    assert publish(index.bucket, RELEASED, authority=LISTED) == ()


def test_unsigned_ledger_has_no_checkpoint(index: Signed, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    promote(bucket, staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",))), POLICY)
    assert bucket.head(RELEASED.checkpoint) is None
    checkpoints = CheckpointAudit(bucket, RELEASED, Authority(), keep=tmp_path / "kept")
    assert [*verify(bucket, RELEASED, checkpoints=checkpoints)] == []
    with pytest.raises(RequestError, match="is not signed, so it has no checkpoint"):
        checkpoints.save()
    assert publish(bucket, RELEASED, authority=Authority(signer=MINE)) == (RELEASED.checkpoint,)
    assert [*verify(bucket, RELEASED)] == []


def test_checkpoint_keeps_signatures_of_same_state(index: Signed) -> None:
    """A witness and another release manager sign the same state; the next state needs new signatures."""
    both = Authority(keys={"a": LedgerKey(key=MINE.key), "b": LedgerKey(key=OTHER.key)}, signer=OTHER)
    assert publish(index.bucket, RELEASED, authority=both) == (RELEASED.checkpoint,)
    note = load_note(index.bucket.get(RELEASED.checkpoint))
    assert note.signers(origin_of(RELEASED), [MINE.key, OTHER.key]) == (MINE.key, OTHER.key)
    assert publish(index.bucket, RELEASED, authority=both) == ()
    assert index.problems() == []
    index.change()
    assert len(load_note(index.bucket.get(RELEASED.checkpoint)).signatures) == 1


def test_publish_refuses_key_that_policy_does_not_list(index: Signed) -> None:
    index.bucket.damage(RELEASED.checkpoint, None)
    with pytest.raises(RequestError, match="ledger_keys of channel local does not list"):
        publish(index.bucket, RELEASED, authority=replace(LISTED, signer=OTHER))
    assert index.bucket.head(RELEASED.checkpoint) is None


def test_checkpoint_is_written_after_interrupted_change(index: Signed) -> None:
    """After every write of a change, the checkpoint is valid and a publication completes it."""
    start = index.bucket
    for at in range(20):
        index.bucket = start.copied()
        faulty = FaultyBucket(index.bucket, Fault.KILLED, at)
        try:
            mark(faulty, RELEASED, EntryKind.YANK, ["2"], reason="why", actor="x", now=lambda: NOW, authority=LISTED)
        except KilledError:
            assert index.checkpoint().size in (2, 3)
            publish(index.bucket, RELEASED, authority=LISTED)
            assert index.checkpoint().size == 3
            assert index.problems(since=index.kept) == []
        else:
            assert at > 3
            return
    raise AssertionError("the change never ended")


def test_concurrent_changes_sign_consistent_checkpoints(index: Signed) -> None:
    """No signed checkpoint contradicts another one, and the last one covers every entry."""
    signed: list[Checkpoint] = []

    def look(key: str) -> None:
        if key == RELEASED.checkpoint:
            signed.append(index.checkpoint())

    index.bucket = index.bucket.copied(look)

    def yank(number: int) -> None:
        mark(index.bucket, RELEASED, EntryKind.YANK, ["1"], reason=f"{number}", actor="tests", authority=LISTED)

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(yank, range(16))]
    assert signed[-1] == Checkpoint(origin=origin_of(RELEASED), size=18, root=index.root())
    assert [one.size for one in signed] == sorted({one.size for one in signed})
    leaves = read_ledger(index.bucket, RELEASED).leaves
    assert all(one.root == MerkleTree().grown(leaves[: one.size]).root for one in signed)
    assert index.problems(since=index.kept) == []


def test_changes_read_few_entries(index: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking and growing the tree reads the last entries only, however long the ledger is."""
    for _ in range(8):
        index.change(EntryKind.PIN)
        index.change(EntryKind.UNPIN)
    read: list[str] = []
    get = MemoryBucket.get

    def noted(self: MemoryBucket, key: str) -> bytes:
        read.append(key)
        return get(self, key)

    monkeypatch.setattr(MemoryBucket, "get", noted)
    index.change(EntryKind.PIN)
    monkeypatch.undo()
    entries = {key for key in read if key.startswith(RELEASED.ledger)}
    # 2 is the newest set, whose content the overview page shows.
    assert entries == {RELEASED.ledger_entry(number) for number in (2, 18, 19, 20)}
    assert index.checkpoint() == Checkpoint(origin=origin_of(RELEASED), size=19, root=index.root())


def test_wrong_tree_in_status_is_not_signed(index: Signed) -> None:
    """status.json is not trusted: its tree counts only if the signed checkpoint confirms it."""
    status = json.loads(index.bucket.get(RELEASED.status))
    assert status["tree"]["size"] == 1
    status["tree"]["roots"] = ["00" * 32]
    index.bucket.damage(RELEASED.status, json.dumps(status).encode())
    index.change()
    assert index.checkpoint().root == index.root()
    status = json.loads(index.bucket.get(RELEASED.status))
    status["tree"]["roots"] = ["00" * 32]
    index.bucket.damage(RELEASED.status, json.dumps(status).encode())
    index.bucket.damage(RELEASED.checkpoint, None)
    index.change(EntryKind.UNYANK)
    assert index.checkpoint().root == index.root()


def test_wrong_tree_with_matching_checkpoint_is_not_signed(index: Signed) -> None:
    """The attacker writes status.json and the checkpoint, but has no key."""
    tree = MerkleTree(size=1, roots=(bytes(32),))
    status = json.loads(index.bucket.get(RELEASED.status))
    status["tree"]["roots"] = [tree.root.hex()]
    index.bucket.damage(RELEASED.status, json.dumps(status).encode())
    root = tree.grown([leaf_hash(index.bucket.get(RELEASED.ledger_entry(2)))]).root
    index.bucket.damage(RELEASED.checkpoint, forged(index, OTHER, root=root))
    with pytest.raises(BucketError, match="was rewritten"):
        index.change()
    publish(index.bucket, RELEASED, authority=LISTED, everything=True)
    assert index.checkpoint().root == index.root()


# Attacks on the ledger; the attacker may write everything, and sometimes has a key


def cut(index: Signed) -> None:
    """Remove the newest entry, and everything that was written from it."""
    last = len([*index.bucket.list(RELEASED.ledger)])
    index.bucket.damage(RELEASED.ledger_entry(last), None)
    forget(index)


def forget(index: Signed) -> None:
    for key in (RELEASED.status, RELEASED.checkpoint, RELEASED.overview, *index.bucket.list(RELEASED.simple)):
        if index.bucket.head(key):
            index.bucket.damage(key, None)


def rewrite(index: Signed, signer: Signer | None) -> None:
    """Write the second entry again with another reason, and chain the later ones to it."""
    previous = ""
    for number in range(1, len(read_ledger(index.bucket, RELEASED).entries) + 1):
        key = RELEASED.ledger_entry(number)
        entry = load_entry(index.bucket.get(key), key)
        changed = replace(entry, previous=previous, actor="nobody" if number == 2 else entry.actor)
        data = index.bucket.get(key) if number == 1 else changed.dump(signer)
        index.bucket.damage(key, data)
        previous = sha256_of(data)
    forget(index)


ANY = Authority(channel="local")


@pytest.mark.parametrize("authority", [LISTED, ANY])
@pytest.mark.parametrize("again", [False, True])
def test_since_refuses_cut_ledger(index: Signed, authority: Authority, again: bool) -> None:
    index.change()
    index.kept.write_bytes(index.bucket.get(RELEASED.checkpoint))
    cut(index)
    if again:
        publish(index.bucket, RELEASED, authority=replace(authority, signer=MINE))
        assert index.problems(authority) == [], "without a kept checkpoint, nothing shows it"
    problems = index.problems(authority, index.kept)
    assert f"The ledger of multi-arch was cut: it has 2 entries, and {index.kept} was signed for 3." in problems


def test_since_refuses_lost_ledger(index: Signed) -> None:
    for key in index.bucket.list("v2/"):
        index.bucket.damage(key, None)
    assert index.problems(since=index.kept) == [
        f"The ledger of multi-arch was cut: it has 0 entries, and {index.kept} was signed for 2."
    ]


@pytest.mark.parametrize("authority", [LISTED, ANY])
def test_since_refuses_forked_ledger(index: Signed, authority: Authority) -> None:
    """The attacker has the key, and even publishes a longer ledger with a valid checkpoint."""
    rewrite(index, MINE)
    index.change()
    assert index.problems(authority) == [], "without a kept checkpoint, nothing shows it"
    (problem,) = index.problems(authority, index.kept)
    assert "was rewritten: its first 2 entries have the root" in problem
    assert problem.endswith("the ledger was forked, and one key signed both.")


def test_repair_since_signs_no_cut_ledger(index: Signed) -> None:
    index.change()
    index.kept.write_bytes(index.bucket.get(RELEASED.checkpoint))
    cut(index)
    before = index.bucket.everything()
    with pytest.raises(BucketError, match="was cut: it has 2 entries"):
        repair(index.bucket, RELEASED, grace=timedelta(), authority=LISTED, since=index.kept)
    assert index.bucket.everything() == before
    index.kept.unlink()
    repair(index.bucket, RELEASED, grace=timedelta(), authority=LISTED)
    assert index.checkpoint().size == 2
    assert index.problems() == []


def test_verify_survives_impossible_state(index: Signed) -> None:
    """An entry claims sets that no entry promoted."""
    key = RELEASED.ledger_entry(2)
    entry = load_entry(index.bucket.get(key), key)
    state = replace(entry.state, held=NumberRanges.of((1, 9)), offered=NumberRanges.of((1, 9)))
    index.bucket.damage(key, replace(entry, state=state).dump(MINE))
    checkpoints = CheckpointAudit(index.bucket, RELEASED, LISTED)
    found = verify(
        index.bucket, RELEASED, authority=LISTED, checkpoints=checkpoints,
        tier_problems=lambda entry: [f"entry {entry.number}"],
    )  # fmt: skip
    problems = [*found]
    assert any("records another state" in problem for problem in problems)
    assert problems[-1] == f"{key} names sets that no entry promoted: 9."


def test_since_refuses_rewritten_ledger(index: Signed) -> None:
    rewrite(index, MINE)
    problems = index.problems(since=index.kept)
    assert any("was rewritten: its first 2" in problem and "forked" not in problem for problem in problems)


@pytest.mark.parametrize("authority", [LISTED, ANY])
def test_since_refuses_ledger_signed_with_another_key(index: Signed, authority: Authority) -> None:
    rewrite(index, OTHER)
    publish(index.bucket, RELEASED, authority=replace(ANY, signer=OTHER))
    problems = index.problems(authority, index.kept)
    assert problems[-1].endswith("the ledger was signed again with another key.")
    if authority is LISTED:
        assert any("checkpoint is signed by no key in ledger_keys of channel local" in line for line in problems)
        assert any("00000002.json is signed by" in line for line in problems)


@pytest.mark.parametrize("change", [lambda index: index.change(), lambda index: publish(index.bucket, RELEASED)])
@pytest.mark.parametrize("status", [True, False])
def test_change_refuses_ledger_shorter_than_checkpoint(
    index: Signed, change: Callable[[Signed], object], status: bool
) -> None:
    """The published checkpoint alone remains."""
    checkpoint, old = index.bucket.get(RELEASED.checkpoint), index.bucket.get(RELEASED.status)
    index.change()
    later = index.bucket.get(RELEASED.checkpoint)
    cut(index)
    index.bucket.damage(RELEASED.checkpoint, later)
    if status:
        index.bucket.damage(RELEASED.status, old)
    before = index.bucket.everything()
    with pytest.raises(BucketError, match="was cut: it has 2 entries, and v2/multi-arch/checkpoint was signed for 3"):
        change(index)
    assert index.bucket.everything() == before
    assert any("was cut: it has 2 entries" in problem for problem in index.problems())
    index.bucket.damage(RELEASED.checkpoint, checkpoint)
    change(index)


def test_change_refuses_rewritten_ledger(index: Signed) -> None:
    checkpoint = index.bucket.get(RELEASED.checkpoint)
    rewrite(index, MINE)
    index.bucket.damage(RELEASED.checkpoint, checkpoint)
    before = index.bucket.everything()
    for everything in (False, True):
        with pytest.raises(BucketError, match="was rewritten: its first 2 entries have the root"):
            publish(index.bucket, RELEASED, authority=LISTED, everything=everything)
    with pytest.raises(BucketError, match="was rewritten"):
        index.change()
    assert index.bucket.everything() == before
    assert any("was rewritten" in problem for problem in index.problems())


def forged(index: Signed, signer: Signer, **changes: object) -> bytes:
    """Return a checkpoint with other content."""
    text = replace(index.checkpoint(), **changes).dump()  # type: ignore[arg-type]
    return SignedNote(text=text, signatures=(sign_note(text, origin_of(RELEASED), signer),)).dump()


def test_damaged_checkpoint_is_refused_and_repaired(index: Signed) -> None:
    good = index.bucket.get(RELEASED.checkpoint)
    for data, problem in (
        (b"", "is not a valid checkpoint"),
        (good.replace(b"\n2\n", b"\n1\n"), "is invalid"),
        (good.replace(b"v2/multi-arch\n", b"v2/other\n"), "its origin is"),
        (forged(index, OTHER, size=9), "was cut"),
        (forged(index, OTHER, root=bytes(32)), "was rewritten"),
    ):
        index.bucket.damage(RELEASED.checkpoint, data)
        with pytest.raises(BucketError, match=problem):
            index.change()
        with pytest.raises(BucketError, match=problem):
            publish(index.bucket, RELEASED, authority=LISTED)
        assert any(problem in line for line in index.problems()), problem
        assert RELEASED.checkpoint in publish(index.bucket, RELEASED, authority=LISTED, everything=True)
        assert index.bucket.get(RELEASED.checkpoint) == good
    index.bucket.damage(RELEASED.checkpoint, forged(index, OTHER))
    assert any("is signed by no key in ledger_keys" in line for line in index.problems())


# Kept files


def test_checkpoint_file_follows_ledger(index: Signed, tmp_path: Path) -> None:
    file = tmp_path / "new"

    def keep() -> str:
        checkpoints = CheckpointAudit(index.bucket, RELEASED, LISTED, keep=file)
        assert [*verify(index.bucket, RELEASED, authority=LISTED, checkpoints=checkpoints)] == []
        return checkpoints.save()

    assert keep() == f"{file}: checkpoint of 2 entries"
    index.change()
    assert keep() == f"{file}: checkpoint of 3 entries"
    assert file.read_bytes() == index.bucket.get(RELEASED.checkpoint)
    newer = file.read_bytes()
    index.bucket.damage(RELEASED.checkpoint, index.kept.read_bytes())
    checkpoints = CheckpointAudit(index.bucket, RELEASED, LISTED, keep=file)
    assert "stays: it covers more entries" in checkpoints.save()
    assert file.read_bytes() == newer
    assert any(
        "covers 2 of 3 entries" in problem for problem in checkpoints.problems(read_ledger(index.bucket, RELEASED))
    )
    cut(index)
    assert any("was cut" in problem for problem in index.problems(keep=file)), "an existing file is compared"


def test_save_refuses_file_that_changed(index: Signed, tmp_path: Path) -> None:
    for path, data in ((tmp_path / "new", b"x"), (index.kept, b"y")):
        checkpoints = CheckpointAudit(index.bucket, RELEASED, LISTED, keep=path)
        path.write_bytes(data)
        with pytest.raises(BusyError, match="was changed by another process"):
            checkpoints.save()
        assert path.read_bytes() == data


def test_kept_file_must_be_a_checkpoint_of_the_index(index: Signed, tmp_path: Path) -> None:
    good, file = index.kept.read_bytes(), tmp_path / "kept"
    for data in (b"", b"{}", good[:-1], good.replace(b"v2/multi-arch", b"v2/other"), b"\xff", None):
        if data is not None:
            file.write_bytes(data)
        else:
            file.unlink()
        with pytest.raises(RequestError, match="is not a checkpoint of multi-arch"):
            CheckpointAudit(index.bucket, RELEASED, LISTED, since=file)
    for authority in (LISTED, ANY):
        note = load_note(good)
        unsigned = replace(note, signatures=(replace(note.signatures[0], value=bytes(64)),)).dump()
        for data in (good.replace(b"\n2\n", b"\n1\n"), unsigned):
            file.write_bytes(data)
            with pytest.raises(RequestError, match="was changed after it was signed"):
                index.problems(authority, file)
    file.write_bytes(forged(index, OTHER))
    with pytest.raises(RequestError, match="is signed by no key in ledger_keys of channel local"):
        index.problems(LISTED, file)
    assert index.problems(ANY, file) == []
