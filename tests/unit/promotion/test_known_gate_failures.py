"""Sixteen known failures of staging, tests and promotion in the incumbents, none of which can happen here.

Each is documented in the incumbents' own files; the name of a test has its number and its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci_build.cli.commands.release import promote as promote_command
from ci_build.cli.commands.release import release as release_command
from core.errors import BucketError, PromotionBlockedError, RequestError
from core.model import Evidence, Outcome, Tier, WheelSet
from core.targets import load_table
from promotion.evidence.evidence import record
from promotion.index.audit import verify
from promotion.index.ledger import read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply, plan
from promotion.policy.bypasses import parse_bypasses
from promotion.policy.policy import POLICY_FILE, Policy, load_policy
from promotion.promote import Promotion, promote
from promotion.stage import stage
from promotion.storage.bucket import ConflictError, sha256_of
from promotion.storage.dry_run import DryRunBucket
from promotion.storage.keys import ReleasedIndex, StagedSet
from promotion.storage.roles import Role, bucket_policy
from tests.support.bucket_contract import run_together
from tests.support.memory_bucket import MemoryBucket
from tests.support.promoting import NOW, POLICY, RELEASED, go, offered, staged_in
from tests.support.reading import Reader
from tests.support.wheel_sets import SetWheel, make_set, make_wheels, passing_evidence, plain, set_wheel, write_set

CHANNELS = ("local", "nightly", "release")
PYTHONS = ("3.11", "3.12")
DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A bucket, and wheels of versions that differ in nothing else."""

    bucket: MemoryBucket
    folder: Path

    def wheels(self, minor: int = 2) -> list[SetWheel]:
        return make_wheels(self.folder / "w", version=f"0.10.2+rocm7.{minor}.0")

    def staged(self, wheels: Sequence[SetWheel], **changes: Any) -> StagedSet:
        """Stage a set with all required evidence."""
        return staged_in(self.bucket, self.folder / "sets", list(wheels), **changes)

    def bare(self, wheels: Sequence[SetWheel], evidences: Callable[[WheelSet], Sequence[Evidence]]) -> StagedSet:
        """Stage a set with this evidence only."""
        wheel_set = make_set(wheels)
        staged = stage(self.bucket, write_set(self.folder / "bare" / wheel_set.digest, wheels, wheel_set))
        for evidence in evidences(wheel_set):
            record(self.bucket, staged, evidence)
        return staged

    def refused(self, staged: StagedSet, policy: Policy = POLICY) -> str:
        """Return the reason of a refused promotion, after checking that nothing was changed."""
        before = self.bucket.everything()
        with pytest.raises(PromotionBlockedError) as caught:
            promote(self.bucket, staged, policy, now=lambda: NOW)
        assert self.bucket.everything() == before
        return str(caught.value)

    def released(self, wheel: SetWheel) -> bytes:
        return self.bucket.get(RELEASED.wheel(wheel.wheel.name, wheel.wheel.filename))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(bucket=MemoryBucket(), folder=tmp_path)


def rebuilt(wheel: SetWheel, folder: Path) -> SetWheel:
    """Return another build of a jaxlib under the same name."""
    made = plain("jaxlib", wheel.wheel.version, tag="-".join(wheel.wheel.filename[:-4].split("-")[2:]))
    made.files["another_build.py"] = b""
    folder.mkdir(exist_ok=True)
    again = set_wheel(made, folder)
    assert (again.wheel.filename, again.data != wheel.data) == (wheel.wheel.filename, True)
    return again


def with_another(wheels: Sequence[SetWheel], folder: Path) -> list[SetWheel]:
    """Return the same set with another last wheel."""
    return [*wheels[:-1], rebuilt(wheels[-1], folder)]


def test_01_promoted_bytes_are_the_tested_ones(desk: Desk) -> None:
    wheels = desk.wheels()
    staged = desk.staged(wheels)
    key = staged.file(wheels[-1].wheel.filename)
    desk.bucket.damage(key, rebuilt(wheels[-1], desk.folder / "other").data)
    assert f"{key} has sha256" in desk.refused(staged)
    desk.bucket.damage(key, wheels[-1].data)
    entry = go(desk.bucket, staged).promoted
    assert entry.set_digest == staged.digest
    assert [desk.released(wheel) for wheel in wheels] == [wheel.data for wheel in wheels]
    tested = {json.loads(desk.bucket.get(key))["set_digest"] for key in evidence_files(desk.bucket, staged)}
    assert tested == {staged.digest}


def evidence_files(bucket: MemoryBucket, staged: StagedSet) -> list[str]:
    return [key for key in bucket.list(RELEASED.set_file(staged.digest, "evidence/")) if key.endswith(".json")]


def test_02_staged_set_has_own_folder_and_never_changes(desk: Desk) -> None:
    wheels = desk.wheels()
    again = with_another(wheels, desk.folder / "other")
    first = desk.staged(wheels)
    before = desk.bucket.everything()
    second = desk.staged(again)
    assert first.root != second.root
    assert {key: desk.bucket.get(key) for key in before} == before
    with pytest.raises(ConflictError):
        desk.bucket.put_if_absent(first.file(again[-1].wheel.filename), again[-1].data, sha256=again[-1].wheel.sha256)
    everything = desk.bucket.everything()
    assert desk.staged(wheels) == first
    assert desk.bucket.everything() == everything, "staging it again is a no-op"


def test_03_shared_name_keeps_first_bytes(desk: Desk) -> None:
    wheels = desk.wheels()
    again = desk.staged(with_another(wheels, desk.folder / "other"))
    go(desk.bucket, desk.staged(wheels))
    assert f"{wheels[-1].wheel.filename} was released with other bytes" in desk.refused(again)
    assert desk.released(wheels[-1]) == wheels[-1].data


@pytest.mark.parametrize("left", [(), ("jax-rocm7-pjrt",), ("jax-rocm7-pjrt", "jax-rocm7-plugin"), ("jaxlib",)])
def test_04_incomplete_set_is_not_promoted(desk: Desk, left: Sequence[str]) -> None:
    wheels = desk.wheels()
    some = [wheel for wheel in wheels if wheel.wheel.name in left]
    message = desk.refused(desk.staged(some))
    for project in {"jax-rocm7-pjrt", "jax-rocm7-plugin", "jaxlib"} - {*left}:
        assert f"The set has 0 wheels of {project}" in message
    assert offered(desk.bucket) == {}
    # Any tag works, because files are removed by their names in the set.
    tag = "cp312-cp312-manylinux_2_27_x86_64"
    jaxlib = set_wheel(plain("jaxlib", "0.10.2", tag=tag), desk.folder / "w")
    chosen = [wheel for wheel in wheels if "cp311" not in wheel.wheel.filename and wheel.wheel.name != "jaxlib"]
    go(desk.bucket, desk.staged([*chosen, jaxlib], python_versions=("3.12",)))
    assert offered(desk.bucket).keys() == {wheel.wheel.filename for wheel in (*chosen, jaxlib)}


def test_05_pages_never_show_unmet_pins_or_partial_sets(desk: Desk) -> None:
    first, second = desk.wheels(2), desk.wheels(3)
    reader = Reader([*first, *second])
    problems: list[str] = []
    pages: list[str] = []

    def look(key: str) -> None:
        problems.extend(reader.problems(desk.bucket, RELEASED))
        if key.startswith(RELEASED.simple):
            pages.append(key.removeprefix(RELEASED.simple))

    go(desk.bucket, desk.staged(first))
    staged = desk.staged(second)
    desk.bucket.after_write = look
    go(desk.bucket, staged)
    assert problems == []
    assert pages.index("jax-rocm7-pjrt/index.html") < pages.index("jax-rocm7-plugin/index.html")
    missing = desk.staged(desk.wheels(4))
    desk.bucket.damage(missing.file(desk.wheels(4)[-2].wheel.filename), None)
    desk.refused(missing)
    assert offered(desk.bucket).keys() == {wheel.wheel.filename for wheel in (*first, *second)}


def test_06_pages_follow_ledger_and_no_update_is_lost(desk: Desk) -> None:
    assert publish(desk.bucket, RELEASED) == (), "an empty index is no error"
    groups = [desk.wheels(minor) for minor in range(8)]
    sets = [desk.staged(group) for group in groups]
    for staged in sets:
        go(desk.bucket, staged)
    pin = partial(mark, desk.bucket, RELEASED, EntryKind.PIN, reason="x", actor="tests")
    run_together([partial(pin, [str(number)]) for number in range(1, 9)])
    entries = read_ledger(desk.bucket, RELEASED).entries
    assert [entry.number for entry in entries] == list(range(1, 17))
    assert {*entries[-1].state.pinned} == {*range(1, 9)}
    seen = offered(desk.bucket)
    assert seen.keys() == {wheel.wheel.filename for group in groups for wheel in group}
    assert all(file["hashes"]["sha256"] for file in seen.values())
    # Foreign and staged files in the bucket are not listed.
    foreign = RELEASED.wheel("jaxlib", "jaxlib-9.9-py3-none-any.whl")
    desk.bucket.put_if_absent(foreign, b"x", sha256=sha256_of(b"x"))
    desk.staged(desk.wheels(9))
    publish(desk.bucket, RELEASED, everything=True)
    assert offered(desk.bucket).keys() == seen.keys()
    assert [line for line in verify(desk.bucket, RELEASED) if foreign in line]


def test_07_name_has_one_content_and_links_have_digests(desk: Desk) -> None:
    wheels = desk.wheels()
    go(desk.bucket, desk.staged(wheels))
    for wheel in wheels:
        page = desk.bucket.get(f"{RELEASED.simple}{wheel.wheel.name}/index.html").decode()
        assert f"#sha256={wheel.wheel.sha256}" in page
    key = RELEASED.wheel(wheels[0].wheel.name, wheels[0].wheel.filename)
    with pytest.raises(ConflictError):
        desk.bucket.put_if_absent(key, b"other", sha256=sha256_of(b"other"))
    go(desk.bucket, desk.staged(desk.wheels(3)))
    for days in (10, 30):
        apply(desk.bucket, RELEASED, RetentionRule(days=1), actor="tests", now=lambda days=days: NOW + days * DAY)  # type: ignore[misc]
    assert desk.bucket.head(RELEASED.wheel(wheels[0].wheel.name, wheels[0].wheel.filename)) is None
    assert "was released before and removed" in desk.refused(desk.staged(wheels)), "not even once it is gone"


@pytest.mark.parametrize("channel", CHANNELS)
def test_08_no_channel_or_branch_bypasses_gates(desk: Desk, channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_REF_NAME", "GITHUB_REF", "GITHUB_BASE_REF"):
        monkeypatch.setenv(name, "release/therock-7.13")
    policy = load_policy("multi-arch", channel=channel)
    assert policy.gates
    message = desk.refused(desk.bare(desk.wheels(), lambda _: ()), policy)
    for gate in policy.gates:
        assert f"The gate {gate}" in message
    failed = desk.bare(
        desk.wheels(3),
        lambda wheel_set: [replace(e, outcome=Outcome.FAILED) for e in passing_evidence(wheel_set)],
    )
    assert " failed" in desk.refused(failed, policy)


COMPLETE = {
    "owner": "somebody", "reason": "the runner burnt down", "channel": "local", "index": "multi-arch",
    "opened": NOW.date(), "expires": NOW.date() + 3 * DAY, "gates": ["install"], "targets": ["any"],
    "version": "0.10.2",
}  # fmt: skip


def test_09_bypass_has_owner_reason_and_end_and_is_visible(desk: Desk) -> None:
    lacking = [{key: value for key, value in COMPLETE.items() if key != name} for name in COMPLETE]
    bad: list[Any] = ["False", "true", "1", *lacking, {**COMPLETE, "reason": " "}]
    entries, void = parse_bypasses(bad)
    assert (entries, len(void)) == ((), len(bad))
    staged = desk.bare(desk.wheels(), lambda s: [e for e in passing_evidence(s) if e.gate != "install"])
    assert "The gate install has not run" in desk.refused(staged, replace(POLICY, bypasses=entries))
    (entry,), _ = parse_bypasses([COMPLETE])
    over = replace(entry, opened=NOW.date() - 9 * DAY, expires=NOW.date())
    message = desk.refused(staged, replace(POLICY, bypasses=(over,), void=("Bypass 2 of the policy is void.",)))
    assert "The gate install has not run" in message
    assert "expired on" in message
    assert "the runner burnt down" in message
    assert "Bypass 2 of the policy is void." in message
    done = promote(desk.bucket, staged, replace(POLICY, bypasses=(entry,)), now=lambda: NOW)
    (told,) = done.promoted.policy["bypasses"]
    assert "somebody" in told
    assert "the runner burnt down" in told
    assert "the runner burnt down" in desk.bucket.get(RELEASED.overview).decode()


def test_10_policy_is_versioned_and_recorded_in_ledger(desk: Desk) -> None:
    choices = {option.name or "" for command in (promote_command, release_command) for option in command.params}
    # No option names another policy.
    words = ("policy", "ref", "repo")
    assert {name for name in choices if any(word in name for word in words)} == set()
    policy = go(desk.bucket, desk.staged(desk.wheels())).promoted.policy
    assert policy["sha256"] == hashlib.sha256(POLICY_FILE.read_bytes()).hexdigest()
    assert policy["channel"] == "local"


def test_11_every_family_can_be_promoted_by_exact_name(desk: Desk) -> None:
    for index in load_table().indexes:
        policy = load_policy(index)
        wheels = desk.wheels()
        done = promote(desk.bucket, desk.staged(wheels, index=index), policy, now=lambda: NOW)
        assert done.simple == ReleasedIndex(index=index).simple
    assert len(load_table().indexes) > 5
    # Evidence for gfx94, or for gfx942 with other features, does not count for gfx942.
    for near in ("gfx94", "gfx942:xnack+", "gfx942-dcgpu", "GFX942"):
        staged = desk.bare(
            desk.wheels(3),
            lambda s, near=near: [  # type: ignore[misc]
                replace(e, target=near) if e.target == "gfx942" else e for e in passing_evidence(s)
            ],
        )
        assert "The gate coverage for gfx942 has not run" in desk.refused(staged)


def test_12_tests_without_gpu_do_not_count_as_device_tests(desk: Desk) -> None:
    device = load_policy("multi-arch", channel="nightly")
    rule = replace(device.gates["device"], min_passed=1000)
    policy = replace(POLICY, tier=Tier.DEVICE, gates={**POLICY.gates, "device": rule})
    staged = desk.bare(desk.wheels(), lambda s: [replace(e, tier=Tier.COMPILED) for e in passing_evidence(s)])
    message = desk.refused(staged, policy)
    for target in ("gfx942", "gfx950"):
        assert f"The gate device for {target} has not run" in message

    def one_target(wheel_set: WheelSet) -> list[Evidence]:
        (first, *_) = evidences = passing_evidence(wheel_set)
        counts = {**first.counts, "collected": 2000, "run": 2000, "passed": 2000}
        settings = {**first.settings, "platform": "rocm"}
        more = replace(first, gate="device", target="gfx942", tier=Tier.DEVICE, counts=counts, settings=settings)
        return [*evidences, more]

    message = desk.refused(desk.bare(desk.wheels(3), one_target), policy)
    assert "The gate device for gfx950 has not run" in message
    assert "The gate device for gfx942" not in message

    def nothing_ran(wheel_set: WheelSet) -> list[Evidence]:
        return [replace(e, counts=dict.fromkeys(e.counts, 0)) for e in passing_evidence(wheel_set)]

    assert "passed 0 checks" in desk.refused(desk.bare(desk.wheels(4), nothing_ran))


def test_13_builder_and_tester_cannot_release() -> None:
    arns = {role: [f"arn:aws:iam::1:role/{role}"] for role in (Role.BUILDER, Role.TESTER, Role.PROMOTER)}
    statements = bucket_policy("b", arns)["Statement"]
    for role in (Role.BUILDER, Role.TESTER):
        own = [s for s in statements if s["Principal"] == {"AWS": arns[role]}]
        writes = [s for s in own if {"s3:PutObject", "s3:DeleteObject"} & {*s["Action"]}]
        allowed = [key for s in writes if s["Effect"] == "Allow" for key in s["Resource"]]
        assert allowed
        assert [key for key in allowed if not key.startswith("arn:aws:s3:::b/v2-staging/")] == []
        denied = [key for s in writes if s["Effect"] == "Deny" for key in s["Resource"]]
        assert "arn:aws:s3:::b/v2/*" in denied, "whatever another policy allows"


def test_14_evidence_names_rocm_of_set(desk: Desk) -> None:
    wheels = desk.wheels()
    tested, other = make_set(wheels), make_set(wheels, rocm_version="7.2.1")
    assert tested.digest != other.digest
    staged = stage(desk.bucket, write_set(desk.folder / "other", wheels, other))
    with pytest.raises(BucketError, match="is for set"):
        record(desk.bucket, staged, passing_evidence(tested)[0])
    source = desk.staged(wheels)
    for key in [*desk.bucket.list(source.evidence)]:
        name = key.removeprefix(source.root)
        desk.bucket.copy(key, staged.file(name), sha256=sha256_of(desk.bucket.get(key)))
    message = desk.refused(staged)
    assert f"The set has evidence of another set: {tested.digest}." in message
    assert go(desk.bucket, source).promoted.rocm_version == "7.2.0"


def test_15_operations_are_recorded_reversible_and_rehearsable(desk: Desk) -> None:
    first, second = desk.staged(desk.wheels(2)), desk.staged(desk.wheels(3))
    go(desk.bucket, first)
    one = offered(desk.bucket)
    told: list[str] = []
    before = desk.bucket.everything()
    go(DryRunBucket(desk.bucket, told.append), second)
    assert any(line.startswith("copy ") for line in told)
    assert desk.bucket.everything() == before, "a rehearsal"
    promote(desk.bucket, second, POLICY, actor="me", now=lambda: NOW + DAY)
    rollback(desk.bucket, RELEASED, to=None, reason="wrong numbers", actor="me", now=lambda: NOW)
    assert offered(desk.bucket) == one
    rollback(desk.bucket, RELEASED, to=2, reason="they were right", actor="me", now=lambda: NOW)
    mark(desk.bucket, RELEASED, EntryKind.YANK, [second.digest], reason="old", actor="me", now=lambda: NOW)
    assert "old" in {file.get("yanked") for file in offered(desk.bucket).values()}
    assert plan(desk.bucket, RELEASED, RetentionRule(days=1), now=lambda: NOW + 9 * DAY).retire == (1,)
    entries = read_ledger(desk.bucket, RELEASED).entries
    assert [(e.kind, e.actor) for e in entries] == [
        (EntryKind.PROMOTE, ""),
        (EntryKind.PROMOTE, "me"),
        (EntryKind.ROLLBACK, "me"),
        (EntryKind.ROLLBACK, "me"),
        (EntryKind.YANK, "me"),
    ]
    assert all(entry.reason for entry in entries[2:])


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.ERROR, None])
def test_16_cancelled_run_blocks_and_empty_promotion_fails(desk: Desk, outcome: Outcome | None) -> None:
    def cancelled(wheel_set: WheelSet) -> list[Evidence]:
        good = [evidence for evidence in passing_evidence(wheel_set) if evidence.gate != "install"]
        left = [evidence for evidence in passing_evidence(wheel_set) if evidence.gate == "install"]
        return [*good, *(replace(evidence, outcome=outcome) for evidence in left if outcome is not None)]

    assert "The gate install" in desk.refused(desk.bare(desk.wheels(), cancelled))
    for digest in ("", "0" * 12, "undefined"):
        with pytest.raises(RequestError, match="not the digest of a set"):
            StagedSet(index="multi-arch", digest=digest)
    with pytest.raises(BucketError, match="not in the bucket"):
        go(desk.bucket, StagedSet(index="multi-arch", digest="0" * 64))
    done: Promotion = go(desk.bucket, desk.staged(desk.wheels(3)))
    assert done.new
    assert offered(desk.bucket).keys() == {wheel.filename for wheel in done.wheel_set.wheels}
    assert len(done.wheel_set.wheels) == 5
