"""An index whose policy names keys, and the means of those who attack it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from core.errors import BucketError
from core.number_ranges import NumberRanges
from core.wheels_json import load_wheel_set
from promotion.evidence.evidence import dump_evidence, record
from promotion.evidence.signing import EVIDENCE_TYPE, SUFFIX, Signer
from promotion.index.audit import verify
from promotion.index.ledger import PromotedSet, RecordedEntry, read_ledger
from promotion.index.ledger_state import EntryKind, IndexState
from promotion.index.operations import mark
from promotion.index.publish import publish
from promotion.policy.promotion_policy import POLICY_FILE, Policy, load_policy
from promotion.policy.recorded_promotion import promotion_problems
from promotion.promote import promote
from promotion.stage import stage
from promotion.storage.object_keys import StagedSet
from tests.support.memory_bucket import MemoryBucket
from tests.support.promoting import NOW, RELEASED
from tests.support.wheel_sets import (
    SetWheel,
    make_set,
    make_wheels,
    passing_evidence,
    plain,
    set_wheel,
    write_set,
)

JAXLIB = "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.whl"
GATE = "inspection"


def signer_of(seed: int) -> Signer:
    """Return the signer with one of several fixed keys."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Signer(text, origin="tests")


RUNNER, KEEPER, STRANGER = map(signer_of, (1, 2, 3))
"""Signers of evidence, of the ledger, and of neither."""


def policy_of(*changes: tuple[str, str]) -> Policy:
    """Return the local policy with changes of its text, each old and new."""
    text = POLICY_FILE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        return load_policy("multi-arch", file=Path(file.name))


KEYS = (
    ('\nkeys = "any"', f'\nkeys = {{ runner = "{RUNNER.key}" }}'),
    ("unsigned = true", "unsigned = false"),
    ('ledger_keys = "any"', f'ledger_keys = {{ keeper = "{KEEPER.key}" }}'),
)
POLICY = policy_of(*KEYS)


class World:
    """An index with one released set."""

    def __init__(self, folder: Path, policy: Policy = POLICY) -> None:
        self.folder = folder
        self.policy = policy
        self.bucket = MemoryBucket()
        self.sound = make_wheels(folder, pythons=("3.12",))

    def copied(self, folder: Path) -> World:
        world = World(folder, self.policy)
        world.bucket = self.bucket.copied()
        return world

    # Builders

    def jaxlib(
        self,
        name: str = "",
        *,
        version: str = "0.10.2",
        tag: str = "cp312-cp312-manylinux_2_28_x86_64",
    ) -> SetWheel:
        """Return a jaxlib with other bytes, and with this file name in wheels.json."""
        made = plain("jaxlib", version, tag=tag)
        made.files["jaxlib/evil.py"] = b"evil = True\n"
        found = set_wheel(made, self.folder)
        named = replace(found.wheel, filename=name or found.wheel.filename)
        return SetWheel(data=found.data, wheel=named)

    def stage(
        self,
        *more: SetWheel,
        jaxlib: SetWheel | None = None,
        wheels: Sequence[SetWheel] = (),
        files: Mapping[str, bytes] | None = None,
        **changes: Any,
    ) -> StagedSet:
        """Stage a set with signed evidence of all gates.

        Args:
            more: further wheels.
            jaxlib: wheel in place of the set's jaxlib.
            wheels: wheels in place of those of the released set.
            files: name -> content of further files.
            changes: fields of the set.
        """
        chosen = [*(wheels or self.sound), *more]
        if jaxlib:
            names = [wheel.wheel.filename for wheel in chosen]
            chosen[names.index(JAXLIB)] = jaxlib
        wheel_set = make_set(chosen, files, **changes)
        folder = write_set(self.folder / wheel_set.digest, chosen, wheel_set, files)
        staged = stage(self.bucket, folder)
        for evidence in passing_evidence(wheel_set, self.policy):
            record(self.bucket, staged, evidence, signer=RUNNER)
        return staged

    # Testers

    def vouch(
        self, staged: StagedSet, *, signer: Signer | None = RUNNER, **changes: Any
    ) -> StagedSet:
        """Store later evidence of a gate beside a set."""
        wheel_set = load_wheel_set(self.bucket.get(staged.file("wheels.json")))
        first = passing_evidence(wheel_set, self.policy)[0]
        changes = {"ended": "2026-01-02T03:04:07Z", **changes}
        return self.put_evidence(
            staged, dump_evidence(replace(first, **changes)), signer
        )

    def put_evidence(
        self, staged: StagedSet, data: bytes, signer: Signer | None = None
    ) -> StagedSet:
        """Store a file among the evidence of a set."""
        key = staged.evidence_file(GATE, "any", "x.json")
        self.bucket.damage(key, data)
        if signer:
            signature = signer.sign(data, EVIDENCE_TYPE)
            self.bucket.damage(key + SUFFIX, signature.dump())
        return staged

    def replace_evidence(self, staged: StagedSet) -> None:
        """Turn the passes of a set into failures."""
        for key in [*self.bucket.list(staged.evidence)]:
            data = self.bucket.get(key)
            self.bucket.damage(key, data.replace(b'"passed"', b'"failed"'))

    # Promoters

    def promote(
        self, staged: StagedSet, policy: Policy | None = None, *, now: datetime = NOW
    ) -> None:
        promote(
            self.bucket,
            staged,
            policy or self.policy,
            now=lambda: now,
            allow_lower=True,
            signer=KEEPER,
        )

    def mark(
        self,
        kind: EntryKind,
        *sets: str,
        now: datetime = NOW,
    ) -> World:
        """Mark sets; without sets, the first."""
        mark(
            self.bucket,
            RELEASED,
            kind,
            sets or ["1"],
            reason="x",
            now=lambda: now,
            authority=POLICY.authority(KEEPER),
        )
        return self

    # Those who write to the bucket

    def put(self, key: str, data: bytes | None) -> World:
        self.bucket.damage(key, data)
        return self

    def edit(
        self,
        key: str,
        old: str,
        new: str,
    ) -> World:
        """Change the text of an object once."""
        data = self.bucket.get(key)
        assert old.encode() in data
        return self.put(key, data.replace(old.encode(), new.encode(), 1))

    def swap(self, key: str, other: str) -> World:
        """Exchange the bytes of two objects."""
        data = self.bucket.get(key)
        return self.put(key, self.bucket.get(other)).put(other, data)

    def when_claimed(self, act: Callable[[], object]) -> World:
        """Act once, between the checks of a promotion and its copies."""

        def written(key: str) -> None:
            if key == RELEASED.claim:
                self.bucket.after_write = lambda _: None
                act()

        self.bucket.after_write = written
        return self

    # Those who have a key of the ledger

    def released(self, **changes: Any) -> PromotedSet:
        """Return the released set with changes."""
        promoted = read_ledger(self.bucket, RELEASED).entries[0].promoted
        assert promoted is not None
        return replace(promoted, **changes)

    def state(self) -> IndexState:
        return read_ledger(self.bucket, RELEASED).entries[-1].state

    def forge(self, signer: Signer | None = KEEPER, **changes: Any) -> World:
        """Store an entry that matches the one before it.

        Without changes, it promotes a set as the one before it does.
        """
        ledger = read_ledger(self.bucket, RELEASED)
        last = ledger.entries[-1]
        number = last.number + 1
        numbers = NumberRanges.of(range(1, number + 1))
        own: dict[str, Any] = {
            "number": number,
            "previous": ledger.digests[-1],
            "sets": (number,),
            "state": replace(last.state, held=numbers, offered=numbers),
        }
        data = replace(last, **{**own, **changes}).dump(signer)
        return self.put(RELEASED.ledger_entry(number), data)

    def append(self, signer: Signer | None = KEEPER, **changes: Any) -> World:
        """Store an entry, and write the pages from it; see `forge`."""
        self.forge(signer, **changes)
        publish(self.bucket, RELEASED, everything=True, authority=POLICY.authority())
        return self

    def release(self, **changes: Any) -> World:
        """Append an entry that promotes a set with these fields."""
        return self.append(promoted=self.released(**changes))

    def record(self, **changes: Any) -> World:
        """Append an entry that promotes a set with these facts about its policy."""
        return self.release(policy={**self.released().policy, **changes})

    # Judges

    def newest(self) -> RecordedEntry:
        ledger = read_ledger(self.bucket, RELEASED)
        return RecordedEntry(number=len(ledger.digests), sha256=ledger.digests[-1])

    def verify(
        self,
        policy: Policy = POLICY,
        *,
        read: bool = False,
        since: RecordedEntry | None = None,
    ) -> None:
        """Raise BucketError with each problem of the index, as `index verify` does."""
        found = verify(
            self.bucket,
            RELEASED,
            authority=policy.authority(),
            read=read,
            since=since,
            entry_problems=lambda entry: promotion_problems(
                self.bucket, RELEASED, entry, policy
            ),
        )
        if problems := [*found]:
            raise BucketError("\n".join(problems))
