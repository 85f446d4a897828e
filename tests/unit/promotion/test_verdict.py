"""The verdict of a policy on evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from core.model import Evidence, Finding, Outcome, Severity, Tier, Verdict, WheelSet
from promotion.evidence.evidence import ENVIRONMENT, NEEDS_DEVICE, EvidenceFile
from promotion.policy.gate_rules import GateRule
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.policy.verdict import verdict as judge
from tests.support import sets
from tests.support.sets import counts
from tests.support.wheel_sets import make_set, make_wheels, passing_evidence

POLICY = load_policy("multi-arch")
NOW = datetime(2026, 1, 3, tzinfo=UTC)
DEVICE = GateRule(
    version=1,
    tier=Tier.DEVICE,
    per="tier",
    min_passed=1,
    max_skipped=0,
    known_failures=0,
)
WRONG = Finding(
    code="x", severity=Severity.ERROR, message="The library is broken.", remedy=""
)


def verdict(
    wheel_set: WheelSet, evidences: Sequence[Evidence], policy: Policy, **more: Any
) -> Verdict:
    """Return the verdict on unsigned evidence."""
    return judge(
        wheel_set,
        [EvidenceFile(evidence=evidence) for evidence in evidences],
        policy,
        now=NOW,
        **more,
    )


@pytest.fixture(scope="module")
def wheel_set(tmp_path_factory: pytest.TempPathFactory) -> WheelSet:
    return make_set(make_wheels(tmp_path_factory.mktemp("wheels")))


def one(evidences: list[Evidence], gate: str) -> Evidence:
    return next(evidence for evidence in evidences if evidence.gate == gate)


@pytest.mark.parametrize("tier", [Tier.CPU, Tier.CUDA])
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ERROR])
def test_verdict_warns_about_failed_tests_without_rocm(
    wheel_set: WheelSet, tier: Tier, outcome: Outcome
) -> None:
    good = passing_evidence(wheel_set)
    other = replace(
        one(good, "install"),
        gate=f"device-{tier}",
        tier=tier,
        outcome=outcome,
        findings=(WRONG,),
    )
    word = verdict(wheel_set, [*good, other], POLICY)
    assert word.allowed is True
    assert word.blocked_by == ()
    text = f"The gate device-{tier} did not pass: {WRONG.message} It does not block."
    assert text in word.warnings
    blocking = replace(other, gate="device", target="gfx942", tier=Tier.DEVICE)
    assert not verdict(wheel_set, [*good, blocking], POLICY).allowed


def test_verdict_needs_no_evidence_for_uncompilable_target(wheel_set: WheelSet) -> None:
    mixed = replace(wheel_set, targets=("gfx942:xnack-", "gfx1010", "gfx9-4-generic"))
    assert POLICY.gates["compile"].required_targets(mixed, POLICY.required_tier) == (
        "gfx942:xnack-",
    )
    other = replace(wheel_set, targets=("gfx942", "gfx1010"))
    good = passing_evidence(other)
    skipped = replace(
        one(good, "compile"),
        target="gfx1010",
        outcome=Outcome.SKIPPED,
        counts=counts(run=0, skipped=9),
    )
    for evidence in (good, [*good, skipped]):
        word = verdict(other, evidence, replace(POLICY, device_members={}))
        assert word.blocked_by == ()
        assert word.tiers == {"gfx942": "compiled", "gfx1010": "structure"}


def test_verdict_names_failing_programs_and_passed_tests(wheel_set: WheelSet) -> None:
    outcomes = {"compiler": "known", "a.x": "passed", "a.y": "known", "b.z": "skipped"}
    checks: list[dict[str, object]] = [
        {"name": name, "outcome": word} for name, word in outcomes.items()
    ]
    checks.append({"name": "c.w", "outcome": "known", NEEDS_DEVICE: True})
    evidence = passing_evidence(wheel_set)
    compiled = replace(one(evidence, "compile"), details={"checks": checks})
    numbers = counts(passed=1_204, known=3)
    device = replace(compiled, gate="device", tier=Tier.DEVICE, counts=numbers)
    on_cpu = replace(device, target="gfx950", tier=Tier.CPU)
    word = verdict(wheel_set, [*evidence, compiled, device, on_cpu], POLICY)
    assert word.failing == {compiled.target: "1 of 2 programs fail: a.y"}
    tested = "2026-01-02: 1,204 tests passed, 3 known failures"
    assert word.tested == {device.target: tested}


# Requirements of the policy for evidence


def test_verdict_tolerates_clock_skew(wheel_set: WheelSet) -> None:
    evidence = [
        replace(item, ended="2026-01-03T00:05:00Z")
        for item in passing_evidence(wheel_set)
    ]
    assert verdict(wheel_set, evidence, POLICY).allowed


def test_verdict_applies_rules_of_processor_to_features(wheel_set: WheelSet) -> None:
    target = "gfx942:xnack-"
    strict = replace(DEVICE, min_passed=9)
    loose = replace(DEVICE, min_passed=1)
    gate = replace(DEVICE, targets={"gfx942": strict, "gfx90a:xnack+": loose})
    policy = replace(
        POLICY, tiers={"gfx942": Tier.DEVICE}, gates={"device": gate}, device_members={}
    )
    word = verdict(replace(wheel_set, targets=(target,)), [], policy)
    assert word.blocked_by == (
        f"The gate device for {target} has not run on this set.",
        f"{target} has tier none; device is required.",
    )
    rules = [
        gate.of(name) for name in ("gfx942:xnack+", "gfx90a:xnack+", "gfx90a:xnack-")
    ]
    assert rules == [strict, loose, gate]


def test_verdict_ignores_machine_failures(wheel_set: WheelSet) -> None:
    good = passing_evidence(wheel_set)
    unfit = replace(WRONG, code=ENVIRONMENT)
    for found, outcome, allowed in (
        ((unfit,), Outcome.ERROR, True),
        ((WRONG,), Outcome.ERROR, False),
        ((unfit,), Outcome.FAILED, False),
        ((replace(unfit, severity=Severity.WARNING), WRONG), Outcome.ERROR, False),
    ):
        more = replace(good[0], gate="device", outcome=outcome, findings=found)
        assert verdict(wheel_set, [*good, more], POLICY).allowed is allowed
    failed = replace(good[0], gate="device", outcome=Outcome.FAILED, findings=(WRONG,))
    later = replace(
        failed, outcome=Outcome.ERROR, findings=(unfit,), ended="2026-01-02T05:00:00Z"
    )
    assert not verdict(wheel_set, [*good, failed, later], POLICY).allowed, (
        "it takes no failure back"
    )


def test_verdict_blocks_failed_python(wheel_set: WheelSet) -> None:
    policy = replace(
        POLICY, tiers={"gfx942": Tier.DEVICE}, gates={**POLICY.gates, "device": DEVICE}
    )
    good = passing_evidence(wheel_set, policy)
    passed = replace(
        one(good, "device"),
        settings={"version": "1", "python": "3.12"},
        ended="2026-01-02T05:00:00Z",
    )
    failed = replace(
        one(good, "device"),
        settings={"version": "1", "python": "3.11"},
        outcome=Outcome.FAILED,
    )
    rest = [evidence for evidence in good if evidence.gate != "device"]
    assert verdict(wheel_set, [*rest, passed], policy).allowed
    blocked = verdict(
        wheel_set, [*rest, passed, replace(failed, findings=(WRONG,))], policy
    ).blocked_by
    assert blocked[0] == "The gate device for gfx942 failed: The library is broken."


def test_verdict_keeps_larger_run(wheel_set: WheelSet) -> None:
    rule = replace(DEVICE, min_passed=9, settings={"size": "large"})
    policy = replace(
        POLICY, tiers={"gfx942": Tier.DEVICE}, gates={**POLICY.gates, "device": rule}
    )
    good = passing_evidence(wheel_set, policy)
    large = replace(
        one(good, "device"), settings={"version": "1", "size": "large"}, counts=counts()
    )
    few = counts(collected=3, run=3, passed=3)
    small = replace(
        large,
        settings={"version": "1", "size": "small"},
        counts=few,
        ended="2026-01-02T05:00:00Z",
    )
    rest = [evidence for evidence in good if evidence.gate != "device"]
    found = verdict(wheel_set, [*rest, large, small], policy)
    assert found.allowed is True
    assert found.tiers["gfx942"] == "device"
    found = verdict(wheel_set, [*rest, replace(large, counts=few), small], policy)
    assert (
        found.blocked_by[0]
        == "The gate device for gfx942 ran with size 'small'; 'large' is required."
    )
    assert found.tiers["gfx942"] != "device"


def test_gates_of_other_platforms_grant_no_tier(wheel_set: WheelSet) -> None:
    """Even if the policy names them."""
    policy = replace(
        POLICY,
        gates={
            **POLICY.gates,
            "device-cpu": replace(DEVICE, tier=Tier.CPU, per="target"),
        },
    )
    word = verdict(wheel_set, passing_evidence(wheel_set, policy), policy)
    assert word.blocked_by == ()
    assert {*word.tiers.values()} == {"compiled"}


# What the project's own policy requires of the tests on GPUs


def shipped(index: str, channel: str) -> Policy:
    """Return the project's policy without the requirements that generated sets do not meet."""
    policy = load_policy(index, channel=channel)
    return replace(
        policy,
        keys=None,
        unsigned=True,
        files=(),
        device_members={},
        verified_rocm=False,
        python_versions=(),
    )


@pytest.mark.parametrize("channel", ["nightly", "release"])
@pytest.mark.parametrize(
    ("index", "targets"),
    [
        ("gfx94X-dcgpu", ("gfx942",)),
        ("gfx950-dcgpu", ("gfx950",)),
        ("gfx1151", ("gfx1151",)),
    ],
)
def test_set_with_required_evidence_is_allowed(
    index: str, targets: tuple[str, ...], channel: str
) -> None:
    """Also for targets without multi-GPU runners, and families with only smoke tests."""
    made = sets.wheel_set(index=index, targets=targets)
    policy = shipped(index, channel)
    assert verdict(made, passing_evidence(made, policy), policy).blocked_by == ()


def test_release_blocks_tests_on_one_gpu() -> None:
    made = sets.wheel_set(index="gfx94X-dcgpu", targets=("gfx942",))
    policy = shipped("gfx94X-dcgpu", "release")
    good = passing_evidence(made, policy)
    single = [
        replace(item, settings={**item.settings, "passes": "single"})
        if item.gate == "device"
        else item
        for item in good
    ]
    assert verdict(made, single, policy).blocked_by == (
        (
            "The gate device for gfx942 ran with passes 'single'; 'single multi' is"
            " required."
        ),
        "gfx942 has tier compiled; device is required.",
    )
    nightly = shipped("gfx94X-dcgpu", "nightly")
    assert verdict(made, single, nightly).allowed
    # The shards on runners with one GPU stay beside the run on the runner with several.
    assert verdict(
        made, [*good, *(item for item in single if item.gate == "device")], policy
    ).allowed
