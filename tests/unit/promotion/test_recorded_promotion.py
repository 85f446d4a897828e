"""Tiers in ledger entries, recomputed from signed evidence; forged entries and forged evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from core.digests import sha256_of
from core.errors import BucketError
from core.model import Evidence, Outcome, Tier
from core.wheels_json import dump_wheel_set, load_wheel_set
from promotion import check
from promotion.evidence.evidence import EvidenceFile, read_all, record
from promotion.evidence.signing import SUFFIX, Signer
from promotion.index.ledger import LedgerEntry, load_entry
from promotion.index.publish import publish
from promotion.policy.promotion_policy import Policy
from promotion.policy.recorded_promotion import promotion_problems
from promotion.promote import promote
from promotion.stage import stage
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.attacked_index import KEYS, RUNNER, STRANGER, policy_of
from tests.support.memory_bucket import MemoryBucket
from tests.support.promoting import NOW, RELEASED, go, staged_in
from tests.support.sets import counts
from tests.support.wheel_sets import make_set, make_wheels, passing_evidence, write_set

DEVICE_GATE = """
[local.gates.device]
version = 1
tier = "device"
per = "tier"
min_passed = 5
max_skipped = 100
known_failures = 0
"""


def policy_for(key: str, *, days: str = '"any"') -> Policy:
    """Return a local policy that accepts one key's evidence and has a device gate."""
    keys = (KEYS[0][0], f'\nkeys = {{ runner = "{key}" }}')
    age = ('max_age_days = "any"', f"max_age_days = {days}")
    return policy_of(keys, KEYS[1], age, ("\n[nightly]", f"{DEVICE_GATE}\n[nightly]"))


STRICT = policy_for(RUNNER.key)


def device(evidences: Sequence[Evidence], **changes: Any) -> list[Evidence]:
    """Return passed evidence of the device gate for both targets."""
    fields: dict[str, Any] = {
        "gate": "device",
        "tier": Tier.DEVICE,
        "counts": counts(),
    }
    fields |= changes
    return [replace(item, **fields) for item in evidences if item.gate == "compile"]


def promoted(
    bucket: MemoryBucket,
    folder: Path,
    *,
    policy: Policy = STRICT,
    on_device: bool = True,
    signer: Signer | None = RUNNER,
    days: float = 0,
) -> LedgerEntry:
    """Promote a set with signed evidence, and return its entry."""
    wheels = make_wheels(folder / "w", pythons=("3.12",))
    wheel_set = make_set(wheels)
    staged = stage(bucket, write_set(folder / "set", wheels, wheel_set))
    evidences = passing_evidence(wheel_set, policy)
    for item in (*evidences, *(device(evidences) if on_device else ())):
        record(bucket, staged, item, signer=signer)
    return promote(bucket, staged, policy, now=lambda: NOW + timedelta(days=days)).entry


def with_tiers(entry: LedgerEntry, tier: str, **changes: Any) -> LedgerEntry:
    assert entry.promoted is not None
    tiers = dict.fromkeys(entry.promoted.tiers, tier)
    return replace(entry, promoted=replace(entry.promoted, tiers=tiers, **changes))


def problems(
    bucket: MemoryBucket, entry: LedgerEntry, policy: Policy = STRICT
) -> list[str]:
    return [*promotion_problems(bucket, RELEASED, entry, policy)]


def test_forged_evidence_does_not_count(tmp_path: Path) -> None:
    """A writer adds device evidence, unsigned or by another key, and an entry naming it."""
    bucket = MemoryBucket()
    entry = promoted(bucket, tmp_path, on_device=False)
    assert entry.promoted is not None
    evidences = device(
        passing_evidence(
            make_set(make_wheels(tmp_path / "w", pythons=("3.12",))), STRICT
        )
    )
    other = MemoryBucket()
    for signer, reason in (
        (None, "it is unsigned"),
        (STRANGER, f"it is signed with {STRANGER.key}"),
    ):
        files = dict(entry.promoted.files)
        staged = staged_in(
            other, tmp_path / "again", make_wheels(tmp_path / "w", pythons=("3.12",))
        )
        for key in (record(other, staged, item, signer=signer) for item in evidences):
            for name in (key, f"{key}.sig"):
                if stored := other.read(name):
                    short = name.removeprefix(staged.root)
                    files[short] = sha256_of(stored[0])
                    bucket.damage(RELEASED.set_file(staged.digest, short), stored[0])
        forged = with_tiers(entry, "device", files=files)
        found = problems(bucket, forged)
        assert len(found) == 2
        assert all(
            "records tier device" in line
            and "gives compiled" in line
            and reason in line
            for line in found
        )
        # A policy in the entry that names the key does not help: the reader's policy
        # must accept it too.
        text = policy_for((signer or STRANGER).key).text
        blocked, *tiers = problems(bucket, replace(forged, policy=text))
        assert "promotes a set that its policy blocks" in blocked
        assert len(tiers) == 2


def test_failed_evidence_lowers_tier(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    entry = promoted(bucket, tmp_path)
    assert entry.promoted is not None
    wheel_set = make_set(make_wheels(tmp_path / "w", pythons=("3.12",)))
    staged = staged_in(
        bucket, tmp_path / "again", make_wheels(tmp_path / "w", pythons=("3.12",))
    )
    failed, _ = device(
        passing_evidence(wheel_set),
        outcome=Outcome.FAILED,
        ended="2026-01-02T03:04:09Z",
    )
    key = record(bucket, staged, failed, signer=RUNNER)
    names = [key.removeprefix(staged.root), f"{key.removeprefix(staged.root)}{SUFFIX}"]
    for name in names:
        data = bucket.get(staged.file(name))
        bucket.damage(RELEASED.set_file(staged.digest, name), data)
    files = {**entry.promoted.files, **dict.fromkeys(names, "0" * 64)}
    assert problems(
        bucket, replace(entry, promoted=replace(entry.promoted, files=files))
    ) == [
        (
            f"{RELEASED.ledger_entry(1)} promotes a set that its policy blocks: The gate"
            " device for gfx942 did not pass: no reason was given."
        ),
        (
            f"{RELEASED.ledger_entry(1)} records tier device for gfx942; its evidence gives"
            " compiled."
        ),
    ]


def test_evidence_that_arrives_during_promotion_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = MemoryBucket()
    arrived: list[str] = []

    def read_then_fail(bucket: Bucket, staged: StagedSet) -> Mapping[str, EvidenceFile]:
        files = read_all(bucket, staged)
        failed, _ = device(
            [file.evidence for file in files.values()], outcome=Outcome.FAILED
        )
        arrived.append(record(bucket, staged, failed).removeprefix(staged.root))
        return files

    monkeypatch.setattr(check, "read_all", read_then_fail)
    entry = promoted(bucket, tmp_path, on_device=False)
    assert entry.promoted is not None
    assert arrived
    assert not {*arrived} & entry.promoted.files.keys()
    assert problems(bucket, entry) == []


@pytest.mark.parametrize(
    ("days", "good"),
    [
        (3.5, True),
        (4.5, False),
    ],
)
def test_age_of_evidence_counts_at_promotion(
    tmp_path: Path, days: float, good: bool
) -> None:
    """An entry is written up to a day after the check of its evidence's age."""
    bucket = MemoryBucket()
    policy = policy_for(RUNNER.key, days="3")
    entry = promoted(bucket, tmp_path, policy=policy, days=1)
    later = (NOW + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (problems(bucket, replace(entry, time=later)) == []) == good
    assert problems(bucket, replace(entry, time="yesterday")) == [
        (
            f"The verdict of {RELEASED.ledger_entry(1)} cannot be recomputed: its time is"
            " invalid: 'yesterday'."
        )
    ]


def test_recorded_policy_may_lack_and_have_other_keys(tmp_path: Path) -> None:
    """The policies of other versions have other keys; only the rules for evidence matter."""
    bucket = MemoryBucket()
    entry = promoted(bucket, tmp_path)
    other = entry.policy.replace("python_versions = []\n", "", 1).replace(
        "growth = {", "future = {", 1
    )
    assert other.count("\n") == entry.policy.count("\n") - 1
    assert problems(bucket, replace(entry, policy=other)) == []
    assert (
        len(problems(bucket, replace(entry, policy=other.replace(DEVICE_GATE, ""))))
        == 2
    )
    newer = other.replace("\nversion = 1", "\nversion = 2")
    blocked, *tiers = problems(bucket, replace(entry, policy=newer))
    assert "it is of version 1 of the gate, not 2" in blocked
    assert [problem.rpartition(" ")[2] for problem in tiers] == ["none."] * 2


def test_damaged_files_are_reported(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    entry = promoted(bucket, tmp_path)
    assert entry.promoted is not None
    assert (
        "cannot be recomputed"
        in problems(bucket, replace(entry, policy="schema = 1"))[0]
    )
    key = RELEASED.set_file(entry.promoted.set_digest, "wheels.json")
    other = dump_wheel_set(
        replace(load_wheel_set(bucket.get(key)), tools={"tests": "2"})
    ).encode()
    for changed, reason in (
        (b"{", "wheels.json"),
        (other, f"{key} belongs to another set"),
        (None, key),
    ):
        bucket.damage(key, changed)
        (problem,) = problems(bucket, entry)
        assert (
            f"The verdict of {RELEASED.ledger_entry(1)} cannot be recomputed: "
            in problem
        )
        assert reason in problem


def test_verify_refuses_forged_tier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A forged, chained entry that claims the tier device, with pages written from it."""
    bucket = DirBucket(tmp_path / "bucket")
    key = RELEASED.ledger_entry(1)
    go(
        bucket,
        staged_in(
            bucket, tmp_path / "sets", make_wheels(tmp_path / "w", pythons=("3.12",))
        ),
    )
    path = bucket.path(key)
    path.chmod(0o644)
    path.write_bytes(with_tiers(load_entry(bucket.get(key), key), "device").dump())
    bucket.path(RELEASED.status).unlink()
    publish(bucket, RELEASED, everything=True)
    assert (
        cli.run(["index", "verify", "multi-arch", "--bucket", str(bucket.root)])
        == BucketError.exit_code
    )
    assert (
        "records tier device for gfx942; its evidence gives compiled."
        in capsys.readouterr().err
    )
