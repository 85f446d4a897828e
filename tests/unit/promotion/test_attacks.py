"""Attacks on a release, by the role of the attacker. Each one is refused with the reason.

Every attack changes a sound set, or its bucket, in one way. Without the attack the set is
promoted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from core.errors import BucketError, PromotionBlockedError
from core.model import Evidence, Finding, Outcome, Severity, Tier
from promotion.evidence.evidence import EvidenceFile
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.publish import publish
from promotion.policy.content_rules import slots
from promotion.policy.exceptions import NOT_RUN, TEST, PolicyException
from promotion.policy.gate_rules import EvidenceKey, GateRule
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.policy.verdict import verdict
from promotion.storage.directory_bucket import DirBucket
from tests.support import sets
from tests.support.promoting import NOW, RELEASED, go, objects, staged_in
from tests.support.wheel_sets import SetWheel, make_wheels, plain, set_wheel

JAXLIB = "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.whl"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A set before it is staged: its wheels, and the names of its other files."""

    folder: Path
    wheels: list[SetWheel]
    files: list[str] = field(default_factory=list)

    def at(self, filename: str) -> int:
        names = [wheel.wheel.filename for wheel in self.wheels]
        return names.index(filename)

    def other_jaxlib(self, name: str) -> None:
        """Replace the jaxlib for Python 3.12 by one with other bytes and this file name."""
        made = plain("jaxlib", "0.10.2", tag="cp312-cp312-manylinux_2_28_x86_64")
        made.files["jaxlib/evil.py"] = b"evil = True\n"
        wheel = set_wheel(made, self.folder)
        disguised = replace(wheel.wheel, filename=name)
        self.wheels[self.at(JAXLIB)] = SetWheel(data=wheel.data, wheel=disguised)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack of somebody who builds sets.

    Attributes:
        says: words of the refusal.
        promoted: whether a sound set was promoted before.
    """

    name: str
    change: Callable[[Scene], None]
    says: str
    promoted: bool = True


def jaxlib(name: str) -> Callable[[Scene], None]:
    return lambda scene: scene.other_jaxlib(name)


def file(name: str) -> Callable[[Scene], None]:
    return lambda scene: scene.files.append(name)


PLATFORM = "cp312-cp312-manylinux_2_28_x86_64.whl"
BUILDER = (
    Attack(
        name="build tag",
        change=jaxlib(f"jaxlib-0.10.2-9-{PLATFORM}"),
        says="has the build tag 9",
    ),
    Attack(
        name="build tag with letters",
        change=jaxlib(f"jaxlib-0.10.2-1a-{PLATFORM}"),
        says="has the build tag 1a",
        promoted=False,
    ),
    Attack(
        name="capital letters",
        change=jaxlib(f"JaxLib-0.10.2-{PLATFORM}"),
        says="not spelled in its normal form, jaxlib-",
    ),
    Attack(
        name="another project's spelling",
        change=jaxlib(f"jax.lib-0.10.2-{PLATFORM}"),
        says="is recorded as jaxlib",
    ),
    Attack(
        name="further platform tag",
        change=jaxlib(
            "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.manylinux2014_x86_64.whl"
        ),
        says="has 2 platform tags",
        promoted=False,
    ),
    Attack(
        name="other bytes under the same name",
        change=jaxlib(JAXLIB),
        says="is not the file that the index released for jaxlib 0.10.2",
    ),
    Attack(
        name="other bytes with another manylinux tag",
        change=jaxlib("jaxlib-0.10.2-cp312-cp312-manylinux_2_27_x86_64.whl"),
        says=f"jaxlib 0.10.2, cp312-cp312-x86_64: {JAXLIB}",
    ),
    Attack(
        name="other bytes for every Linux",
        change=jaxlib("jaxlib-0.10.2-cp312-cp312-linux_x86_64.whl"),
        says=f"jaxlib 0.10.2, cp312-cp312-x86_64: {JAXLIB}",
    ),
    Attack(
        name="other bytes with a longer version",
        change=jaxlib(f"jaxlib-0.10.2.0-{PLATFORM}"),
        says="is recorded as jaxlib 0.10.2",
    ),
    Attack(
        name="two files for one Python in one set",
        change=lambda scene: scene.wheels.append(_twin(scene)),
        says="is not the file that the index released for jaxlib 0.10.2",
        promoted=False,
    ),
    Attack(
        name="forged report",
        change=file("report-0000.html"),
        says="a name for files that the index writes",
        promoted=False,
    ),
    Attack(
        name="forged summary",
        change=file("summary-0000.json"),
        says="summary-0000.json, a name for files",
        promoted=False,
    ),
    Attack(
        name="forged requirements with a foreign index",
        change=file("requirements-3.99.txt"),
        says="requirements-3.99.txt, a name for files",
        promoted=False,
    ),
)


def _twin(scene: Scene) -> SetWheel:
    """Return the jaxlib for Python 3.12 again, with another manylinux tag."""
    wheel = scene.wheels[scene.at(JAXLIB)]
    name = JAXLIB.replace("2_28", "2_31")
    return SetWheel(data=wheel.data, wheel=replace(wheel.wheel, filename=name))


@pytest.mark.parametrize("attack", [pytest.param(a, id=a.name) for a in BUILDER])
def test_attack_of_builder_is_refused(
    bucket: DirBucket, tmp_path: Path, attack: Attack
) -> None:
    sound = make_wheels(tmp_path / "sound", pythons=("3.12",))
    if attack.promoted:
        go(bucket, staged_in(bucket, tmp_path / "first", sound))
    scene = Scene(folder=tmp_path / "evil", wheels=[*sound])
    scene.folder.mkdir()
    attack.change(scene)
    more = dict.fromkeys(scene.files, b"evil")
    staged = staged_in(bucket, tmp_path / "second", scene.wheels, more=more)
    before = objects(bucket)
    with pytest.raises(PromotionBlockedError) as refused:
        go(bucket, staged)
    assert attack.says in str(refused.value)
    assert objects(bucket) == before


def test_removed_name_stays_taken_without_any_object(
    bucket: DirBucket, tmp_path: Path
) -> None:
    """The ledger remembers names; whoever empties the bucket frees none."""
    sound = make_wheels(tmp_path / "sound", pythons=("3.12",))
    go(bucket, staged_in(bucket, tmp_path / "first", sound))
    for key in [*bucket.list(f"{RELEASED.root}packages/")]:
        stored = bucket.head(key)
        assert stored is not None
        bucket.delete(key, sha256=stored.sha256)
    scene = Scene(folder=tmp_path / "evil", wheels=[*sound])
    scene.folder.mkdir()
    scene.other_jaxlib(JAXLIB)
    staged = staged_in(bucket, tmp_path / "second", scene.wheels)
    with pytest.raises(PromotionBlockedError, match="is not the file that the index"):
        go(bucket, staged)


def test_changed_old_entry_frees_no_name(bucket: DirBucket, tmp_path: Path) -> None:
    """Changes verify only the end of a ledger; a promotion uses all of it."""
    sound = make_wheels(tmp_path / "sound", pythons=("3.12",))
    first = go(bucket, staged_in(bucket, tmp_path / "first", sound)).entry
    mark(
        bucket, RELEASED, EntryKind.PIN, ["1"], reason="x", actor="me", now=lambda: NOW
    )
    publish(bucket, RELEASED)
    assert first.promoted is not None
    emptied = replace(first, promoted=replace(first.promoted, wheels=()))
    path = bucket.path(RELEASED.ledger_entry(1))
    path.chmod(0o644)
    path.write_bytes(emptied.dump())
    scene = Scene(folder=tmp_path / "evil", wheels=[*sound])
    scene.folder.mkdir()
    scene.other_jaxlib(JAXLIB)
    staged = staged_in(bucket, tmp_path / "second", scene.wheels)
    with pytest.raises(BucketError, match=r"00000001\.json does not match"):
        go(bucket, staged)


@pytest.mark.parametrize("kind", [EntryKind.YANK, EntryKind.QUARANTINE])
def test_withdrawn_bytes_stay_withdrawn_in_every_set(
    bucket: DirBucket, tmp_path: Path, kind: EntryKind
) -> None:
    """The same wheels in a set with one other field are offered after --undo only."""

    def marked(done: EntryKind) -> None:
        mark(bucket, RELEASED, done, ["1"], reason="x", actor="me", now=lambda: NOW)

    sound = make_wheels(tmp_path / "sound", pythons=("3.12",))
    go(bucket, staged_in(bucket, tmp_path / "first", sound))
    marked(kind)
    again = staged_in(bucket, tmp_path / "second", sound, tools={"tests": "2"})
    verb = "yank" if kind is EntryKind.YANK else "quarantine"
    with pytest.raises(PromotionBlockedError) as refused:
        go(bucket, again)
    assert f"was withdrawn by `index {verb}`: x." in refused.value.message
    assert f"`ci_build index {verb} multi-arch/1 --undo`" in refused.value.hint
    marked(EntryKind.UNYANK if kind is EntryKind.YANK else EntryKind.FREE)
    assert go(bucket, again).new


def test_bytes_that_another_set_offers_are_not_withdrawn(
    bucket: DirBucket, tmp_path: Path
) -> None:
    sound = make_wheels(tmp_path / "sound", pythons=("3.12",))
    for tools in ("1", "2"):
        folder = tmp_path / tools
        go(bucket, staged_in(bucket, folder, sound, tools={"tests": tools}))
    mark(
        bucket, RELEASED, EntryKind.YANK, ["1"], reason="x", actor="me", now=lambda: NOW
    )
    assert go(bucket, staged_in(bucket, tmp_path / "3", sound, tools={"t": "3"})).new


def test_slots_expand_tags() -> None:
    found = slots("a_b-1.0.0-py2.py3-none-any.whl")
    assert sorted(map(str, found)) == [
        "a-b 1, py2-none-any",
        "a-b 1, py3-none-any",
    ]
    assert slots(JAXLIB) == slots(JAXLIB.replace("manylinux_2_28", "linux"))


# Runners, and those who write the policy


RUNNER, STRANGER = "ssh-ed25519 RUNNER", "ssh-ed25519 STRANGER"
NIGHTLY = replace(
    load_policy("gfx94X-dcgpu", channel="nightly"),
    keys={"ci": EvidenceKey(key=RUNNER)},
    files=(),
)
SET = replace(sets.wheel_set(), wheels=())
JUDGED_AT = datetime(2026, 1, 3, tzinfo=UTC)
MORNING, NOON = "2026-01-02T06:00:00Z", "2026-01-02T12:00:00Z"
GPU_TESTS = sets.evidence(
    set_digest=SET.digest,
    gate="device",
    tier=Tier.DEVICE,
    started=NOON,
    ended=NOON,
    settings={"version": "1", "platform": "rocm", "code": "c"},
    counts=sets.counts(collected=30_000, run=29_000, passed=29_000, skipped=1_000),
)
BROKEN = Finding(
    code="test-failed",
    severity=Severity.ERROR,
    message="tests/a_test.py::test_add failed.",
    remedy="",
)
FAILED = replace(
    GPU_TESTS,
    outcome=Outcome.FAILED,
    started=MORNING,
    ended=MORNING,
    findings=(BROKEN,),
    details={
        "checks": [
            {
                "name": "tests/a_test.py::test_add",
                "outcome": "failed",
                "attempts": 2,
                "findings": ["test-failed: tests/a_test.py::test_add failed."],
            }
        ]
    },
)
NO_RUNNER = PolicyException(
    kind=NOT_RUN,
    owner="somebody",
    reason="no runner",
    opened=date(2026, 1, 1),
    expires=date(2026, 2, 1),
    channel="nightly",
    index=SET.index,
    gates=("device",),
    targets=("gfx942",),
    version=SET.jax_version,
)
TEST_ADD = replace(NO_RUNNER, kind=TEST, test="tests/a_test.py::test_add")


def of(gate: GateRule, **changes: Any) -> Policy:
    return replace(NIGHTLY, gates={"device": gate}, **changes)


def signed(*evidences: Evidence, key: str = RUNNER) -> list[EvidenceFile]:
    return [EvidenceFile(evidence=evidence, key=key) for evidence in evidences]


def reasons(files: list[EvidenceFile], **changes: Any) -> tuple[str, ...]:
    """Return the reasons against a set that only GPU tests could hold up."""
    policy = of(NIGHTLY.gates["device"], **changes)
    return verdict(SET, files, policy, now=JUDGED_AT).blocked_by


SOUND = signed(GPU_TESTS)
IDLE = sets.counts(collected=30_000, run=1_000, passed=1_000, skipped=29_000)
REFUSED: dict[str, tuple[list[EvidenceFile], dict[str, Any], str]] = {
    "most tests skipped": (
        signed(replace(GPU_TESTS, counts=IDLE)),
        {},
        "skipped 29000 of 30000 checks; 50 % are allowed",
    ),
    "failed, then run until it passed": (
        signed(FAILED, GPU_TESTS),
        {},
        f"failed at {MORNING} and then passed on the same set: tests/a_test.py::test_add",
    ),
    "exception for a missing runner, and real failures": (
        signed(replace(FAILED, ended=NOON)),
        {"excepted": (NO_RUNNER,)},
        "The gate device for gfx942 failed",
    ),
    "pass signed by a stranger": (
        signed(GPU_TESTS, key=STRANGER),
        {},
        "which the policy does not permit",
    ),
    "pass for a target of another runner": (
        SOUND,
        {"keys": {"other": EvidenceKey(key=RUNNER, targets=("gfx950",))}},
        "the key of other may not sign it",
    ),
    "pass of a gate of another runner": (
        SOUND,
        {"keys": {"builder": EvidenceKey(key=RUNNER, gates=("abi", "load"))}},
        "the key of builder may not sign it",
    ),
    "pass from the future": (
        signed(replace(GPU_TESTS, ended="2099-01-01T00:00:00Z")),
        {},
        "in the future: a clock is wrong",
    ),
    "pass of an older gate": (
        signed(replace(GPU_TESTS, settings={**GPU_TESTS.settings, "version": "0"})),
        {},
        "it is of version 0 of the gate, not 1",
    ),
    "exception for another set": (
        [],
        {"excepted": (replace(NO_RUNNER, version="", set="0" * 64),)},
        "has not run on this set",
    ),
}


def test_sound_gpu_tests_are_accepted() -> None:
    assert not any("device" in text for text in reasons(SOUND))


@pytest.mark.parametrize("attack", REFUSED)
def test_attack_of_runner_is_refused(attack: str) -> None:
    files, changes, says = REFUSED[attack]
    found = reasons(files, **changes)
    assert any(says in text for text in found), found


@pytest.mark.parametrize(
    ("files", "changes"),
    [
        pytest.param(
            signed(FAILED, GPU_TESTS), {"excepted": (TEST_ADD,)}, id="named flaky test"
        ),
        pytest.param(
            signed(
                replace(FAILED, settings={**FAILED.settings, "code": "b"}), GPU_TESTS
            ),
            {},
            id="failure of other code",
        ),
        pytest.param(
            [*signed(replace(FAILED, ended="2099-01-01T00:00:00Z")), *SOUND],
            {},
            id="failure from the future",
        ),
        pytest.param(
            [*signed(replace(FAILED, ended=NOON), key=""), *SOUND],
            {},
            id="unsigned failure",
        ),
        pytest.param([], {"excepted": (NO_RUNNER,)}, id="no runner"),
    ],
)
def test_what_is_no_failure_of_the_set_does_not_block(
    files: list[EvidenceFile], changes: dict[str, Any]
) -> None:
    found = reasons(files, **changes)
    assert not any("device" in text for text in found), found
