"""Tiers in ledger entries, recomputed from signed evidence; forged entries and forged evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from core.errors import BucketError
from core.model import Outcome, Tier
from core.wheels_json import dump_wheel_set, load_wheel_set
from promotion import check
from promotion.evidence.evidence import EvidenceFile, read_all
from promotion.evidence.signing import Signer
from promotion.index.ledger import LedgerEntry, load_entry, read_ledger
from promotion.index.publish import publish
from promotion.policy.recorded_promotion import promotion_problems
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.attacked_index import KEYS, RUNNER, STRANGER, World, policy_of
from tests.support.promoting import NOW, RELEASED, go, staged_in
from tests.support.sets import counts
from tests.support.wheel_sets import make_wheels

DEVICE_GATE = """
[local.gates.device]
version = 1
tier = "device"
per = "tier"
min_passed = 5
max_skipped = 100
known_failures = 0
"""
WITH_GATE = (*KEYS, ("\n[nightly]", f"{DEVICE_GATE}\n[nightly]"))
STRICT = policy_of(*WITH_GATE)
KEY = RELEASED.ledger_entry(1)
DEVICE: dict[str, Any] = {
    "gate": "device",
    "target": "gfx942",
    "tier": Tier.DEVICE,
    "counts": counts(),
}
"""Fields of evidence of tests on a GPU."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return an index with a set that was tested on one of its two targets."""
    world = World(tmp_path, STRICT)
    world.promote(world.vouch(world.stage(), **DEVICE))
    return world


def entry_of(world: World, **changes: Any) -> LedgerEntry:
    """Return the entry of the set, with changes of its set."""
    entry = read_ledger(world.bucket, RELEASED).entries[0]
    return replace(entry, promoted=world.released(**changes))


def problems(world: World, entry: LedgerEntry) -> list[str]:
    return [*promotion_problems(world.bucket, RELEASED, entry, world.policy)]


def with_evidence(
    world: World, signer: Signer | None, **changes: Any
) -> dict[str, str]:
    """Store evidence beside the released set, and return the files of its entry with it."""
    promoted = world.released()
    staged = StagedSet(index=RELEASED.index, digest=promoted.set_digest)
    world.vouch(staged, signer=signer, **{**DEVICE, **changes})
    files = dict(promoted.files)
    for key in world.bucket.list(staged.evidence):
        if "/x.json" in key:
            name = key.removeprefix(staged.root).replace("x.json", "y.json")
            world.put(RELEASED.set_file(staged.digest, name), world.bucket.get(key))
            files[name] = "0" * 64
    return files


@pytest.mark.parametrize(
    ("signer", "reason"), [(None, "is unsigned"), (STRANGER, "is signed with ssh-")]
)
def test_forged_evidence_does_not_count(
    tmp_path: Path, signer: Signer | None, reason: str
) -> None:
    """A writer adds evidence of a GPU, and an entry naming it."""
    world = World(tmp_path, STRICT)
    world.promote(world.stage())
    files = with_evidence(world, signer)
    tiers = {"gfx942": "device", "gfx950": "compiled"}
    forged = entry_of(world, tiers=tiers, files=files)
    (problem,) = problems(world, forged)
    assert "records tier device for gfx942; its evidence gives compiled" in problem
    assert reason in problem
    # A policy in the entry that names the key does not help: the reader's policy must
    # accept it too.
    text = STRICT.text.replace(RUNNER.key, (signer or STRANGER).key)
    blocked, *_ = problems(world, replace(forged, policy=text))
    assert "promotes a set that its policy blocks" in blocked


def test_failed_evidence_lowers_tier(world: World) -> None:
    later = "2026-01-02T03:04:09Z"
    files = with_evidence(world, RUNNER, outcome=Outcome.FAILED, ended=later)
    blocked, tier = problems(world, entry_of(world, files=files))
    assert "The gate device for gfx942 did not pass" in blocked
    assert "records tier device for gfx942; its evidence gives compiled." in tier


def test_evidence_that_arrives_during_promotion_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, STRICT)

    def read_then_fail(bucket: Bucket, staged: StagedSet) -> Mapping[str, EvidenceFile]:
        files = read_all(bucket, staged)
        world.vouch(staged, **DEVICE, outcome=Outcome.FAILED)
        return files

    monkeypatch.setattr(check, "read_all", read_then_fail)
    world.promote(world.stage())
    assert not any("x.json" in name for name in world.released().files)
    assert problems(world, entry_of(world)) == []


@pytest.mark.parametrize(("days", "good"), [(3.5, True), (4.5, False)])
def test_age_of_evidence_counts_at_promotion(
    tmp_path: Path, days: float, good: bool
) -> None:
    """An entry is written up to a day after the check of its evidence's age."""
    age = ('max_age_days = "any"', "max_age_days = 3")
    world = World(tmp_path, policy_of(*WITH_GATE, age))
    world.promote(world.stage(), now=NOW + timedelta(days=1))
    later = (NOW + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (problems(world, replace(entry_of(world), time=later)) == []) == good


def test_recorded_policy_may_lack_and_have_other_keys(world: World) -> None:
    """The policies of other versions have other keys; only the rules for evidence matter."""
    entry = entry_of(world)
    other = entry.policy.replace("python_versions = []\n", "", 1)
    other = other.replace("sizes = {", "future = {", 1)
    assert other.count("\n") == entry.policy.count("\n") - 1
    assert problems(world, replace(entry, policy=other)) == []
    without = other.replace(DEVICE_GATE, "")
    assert len(problems(world, replace(entry, policy=without))) == 1
    newer = other.replace("\nversion = 1", "\nversion = 2")
    blocked, *tiers = problems(world, replace(entry, policy=newer))
    assert "it is of version 1 of the gate, not 2" in blocked
    assert [problem.rpartition(" ")[2] for problem in tiers] == ["none."] * 2


def test_damaged_files_are_reported(world: World) -> None:
    entry = entry_of(world)
    again = f"The verdict of {KEY} cannot be recomputed: "
    for broken in (replace(entry, policy="schema = 1"), replace(entry, time="soon")):
        assert again in problems(world, broken)[0]
    key = RELEASED.set_file(world.released().set_digest, "wheels.json")
    other = replace(load_wheel_set(world.bucket.get(key)), tools={"tests": "2"})
    for changed, reason in (
        (b"{", "wheels.json"),
        (dump_wheel_set(other).encode(), f"{key} belongs to another set"),
        (None, key),
    ):
        (problem,) = problems(world.put(key, changed), entry)
        assert again in problem
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
    entry = load_entry(bucket.get(key), key)
    assert entry.promoted is not None
    tiers = dict.fromkeys(entry.promoted.tiers, "device")
    forged = replace(entry, promoted=replace(entry.promoted, tiers=tiers))
    path.write_bytes(forged.dump())
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
