"""The verdict of a policy on evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from core.model import Evidence, Finding, Outcome, Severity, Tier, Verdict, WheelSet
from promotion.evidence.evidence import ENVIRONMENT, EvidenceFile
from promotion.index.page_diff import weakest
from promotion.policy.gate_rules import GateRule
from promotion.policy.policy import Policy, load_policy
from promotion.policy.verdict import verdict as judge
from tests.support.wheel_sets import but, make_set, make_wheels, passing_evidence

POLICY = load_policy("multi-arch")
NOW = datetime(2026, 1, 3, tzinfo=UTC)
DEVICE = GateRule(tier=Tier.DEVICE, per="tier", min_passed=1, may_skip=False, known_failures=0)
WRONG = Finding(code="x", severity=Severity.ERROR, message="The library is broken.", remedy="")
WARNED = replace(WRONG, severity=Severity.WARNING, message="It may be broken.")


def verdict(wheel_set: WheelSet, evidences: Sequence[Evidence], policy: Policy, **more: Any) -> Verdict:
    """Return the verdict on unsigned evidence."""
    return judge(wheel_set, [EvidenceFile(evidence=evidence) for evidence in evidences], policy, now=NOW, **more)


@pytest.fixture(scope="module")
def wheel_set(tmp_path_factory: pytest.TempPathFactory) -> WheelSet:
    return make_set(make_wheels(tmp_path_factory.mktemp("wheels")))


def counts(**changes: Any) -> dict[str, Any]:
    return {"collected": 9, "run": 9, "passed": 9, "failed": 0, "known": 0, "skipped": 0, **changes}


def one(evidences: list[Evidence], gate: str) -> Evidence:
    return next(evidence for evidence in evidences if evidence.gate == gate)


FAULTS: list[tuple[str, Callable[[list[Evidence]], list[Evidence]], str]] = [
    ("nothing", lambda _: [], "The gate install has not run on this set."),
    (
        "one target missing",
        lambda e: [item for item in e if item.target != "gfx950"],
        "The gate coverage for gfx950 has not run on this set.",
    ),
    (
        "failed",
        lambda e: but(e, "install", outcome=Outcome.FAILED, findings=(WRONG, WRONG)),
        "The gate install failed: The library is broken. (and 1 more)",
    ),
    ("failed without words", lambda e: but(e, "install", outcome=Outcome.FAILED), "failed: no reason was given."),
    (
        "the errors count, not what was only warned of",
        lambda e: but(e, "install", outcome=Outcome.FAILED, findings=(WARNED, WRONG)),
        "The gate install failed: The library is broken.",
    ),
    (
        "too few members",
        lambda e: but(e, "coverage", "gfx942", counts=counts(collected=6, run=6, passed=6)),
        "The gate coverage for gfx942 passed 6 checks; 7 are required.",
    ),
    (
        "all skipped",
        lambda e: but(e, "install", counts=counts(run=0, passed=0, skipped=9)),
        "The gate install passed 0 checks; 2 are required.",
    ),
    ("counts negative", lambda e: but(e, "install", counts=counts(skipped=-1)), "has invalid counts"),
    ("counts not numbers", lambda e: but(e, "install", counts=counts(run="9")), "has invalid counts"),
    ("counts true", lambda e: but(e, "install", counts=counts(run=True)), "has invalid counts"),
    (
        "a later failure",
        lambda e: [replace(one(e, "install"), ended="2026-01-02T04:00:00Z", outcome=Outcome.FAILED), *e],
        "The gate install failed",
    ),
    ("no policy", lambda e: but(e, "install", settings={}), "The gate install ran under edition none of the policy"),
    (
        "a failure for a target that is not asked about",
        lambda e: [*e, replace(one(e, "compile"), target="gfx1010", outcome=Outcome.FAILED, findings=(WRONG,))],
        "The gate compile for gfx1010 did not pass: The library is broken.",
    ),
    (
        "a failure that was skipped later",
        lambda e: [
            *e,
            replace(e[0], gate="fuzz", outcome=Outcome.FAILED, findings=(WRONG,)),
            replace(e[0], gate="fuzz", outcome=Outcome.SKIPPED, ended="2026-01-02T04:00:00Z"),
        ],
        "The gate fuzz for any did not pass: The library is broken.",
    ),
    (
        "a failure in the same second",
        lambda e: [replace(one(e, "install"), outcome=Outcome.FAILED), *e],
        "The gate install failed",
    ),
]


@pytest.mark.parametrize(("fault", "sentence"), [row[1:] for row in FAULTS], ids=[r[0] for r in FAULTS])
def test_verdict_blocks_faulty_evidence(
    wheel_set: WheelSet, fault: Callable[[list[Evidence]], list[Evidence]], sentence: str
) -> None:
    word = verdict(wheel_set, fault(passing_evidence(wheel_set)), POLICY)
    assert not word.allowed
    assert any(sentence in reason for reason in word.blocked_by), word.blocked_by


@pytest.mark.parametrize("tier", [Tier.CPU, Tier.CUDA])
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ERROR])
def test_verdict_warns_about_failed_tests_without_rocm(wheel_set: WheelSet, tier: Tier, outcome: Outcome) -> None:
    good = passing_evidence(wheel_set)
    other = replace(one(good, "install"), gate=f"device-{tier}", tier=tier, outcome=outcome, findings=(WRONG,))
    word = verdict(wheel_set, [*good, other], POLICY)
    assert (word.allowed, word.blocked_by) == (True, ())
    text = f"The gate device-{tier} for any did not pass: {WRONG.message} It does not block."
    assert text in word.warnings
    blocking = replace(other, gate="device", target="gfx942", tier=Tier.DEVICE)
    assert not verdict(wheel_set, [*good, blocking], POLICY).allowed
    # A policy may require these tests.
    required = replace(POLICY, gates={**POLICY.gates, other.gate: replace(DEVICE, tier=tier, per="set")})
    assert not verdict(wheel_set, [*good, other], required).allowed


def test_verdict_needs_no_evidence_for_uncompilable_target(wheel_set: WheelSet) -> None:
    mixed = replace(wheel_set, targets=("gfx942:xnack-", "gfx1010", "gfx9-4-generic"))
    assert POLICY.gates["compile"].about(mixed, POLICY) == ("gfx942:xnack-",)
    other = replace(wheel_set, targets=("gfx942", "gfx1010"))
    good = passing_evidence(other)
    skipped = replace(one(good, "compile"), target="gfx1010", outcome=Outcome.SKIPPED, counts=counts(run=0, skipped=9))
    for evidence in (good, [*good, skipped]):
        word = verdict(other, evidence, replace(POLICY, device_members={}))
        assert word.blocked_by == ()
        assert word.tiers == {"gfx942": "compiled", "gfx1010": "structure"}
        assert weakest(word.tiers) == "structure"


def test_verdict_requires_evidence_for_compilable_target(wheel_set: WheelSet) -> None:
    skipped = but(passing_evidence(wheel_set), "compile", "gfx950", outcome=Outcome.SKIPPED)
    word = verdict(wheel_set, skipped, POLICY)
    assert word.blocked_by == ("The gate compile for gfx950 was skipped: no reason was given.",)
    assert word.tiers == {"gfx942": "compiled", "gfx950": "structure"}


def test_verdict_accepts_later_pass(wheel_set: WheelSet) -> None:
    good = passing_evidence(wheel_set)
    earlier = replace(
        one(good, "install"),
        started="2025-01-01T00:00:00Z",
        ended="2025-01-01T00:00:00Z",
        outcome=Outcome.FAILED,
        findings=(WRONG,),
    )
    assert verdict(wheel_set, [*good, earlier], POLICY).allowed


# Requirements of the policy for evidence


def test_verdict_tolerates_clock_skew(wheel_set: WheelSet) -> None:
    evidence = but(passing_evidence(wheel_set), "install", ended="2026-01-03T00:05:00Z")
    assert verdict(wheel_set, evidence, POLICY).allowed


@pytest.mark.parametrize(
    ("checks", "sentence"),
    [
        ([{"name": "fft", "outcome": "known"}, {"name": "x", "outcome": "passed"}], ""),
        ([{"name": "lu", "outcome": "known"}], "has failures that the policy does not list as known: lu."),
        ([], "counts 1 known failures but names 0."),
        (None, "counts 1 known failures but names 0."),
        (["fft"], "counts 1 known failures but names 0."),
    ],
)
def test_verdict_compares_listed_known_failures(wheel_set: WheelSet, checks: object, sentence: str) -> None:
    rule = replace(POLICY.gates["install"], known_failures=("fft",))
    policy = replace(POLICY, gates={**POLICY.gates, "install": rule})
    good = passing_evidence(wheel_set)
    evidence = but(good, "install", counts=counts(passed=8, known=1), details={"checks": checks})
    expected = (f"The gate install {sentence}",) if sentence else ()
    assert verdict(wheel_set, evidence, policy).blocked_by == expected
    assert verdict(wheel_set, good, policy).allowed


def test_verdict_applies_rules_of_processor_to_features(wheel_set: WheelSet) -> None:
    target = "gfx942:xnack-"
    strict, loose = replace(DEVICE, min_passed=9), replace(DEVICE, min_passed=1)
    gate = replace(DEVICE, targets={"gfx942": strict, "gfx90a:xnack+": loose})
    policy = replace(POLICY, tiers={"gfx942": Tier.DEVICE}, gates={"device": gate}, device_members={})
    word = verdict(replace(wheel_set, targets=(target,)), [], policy)
    assert word.blocked_by == (
        f"The gate device for {target} has not run on this set.",
        f"{target} was tested at tier none; device is required.",
    )
    rules = [gate.of(name) for name in ("gfx942:xnack+", "gfx90a:xnack+", "gfx90a:xnack-")]
    assert rules == [strict, loose, gate]


# Accepted signers

MINE, THEIRS = "ssh-ed25519 MINE", "ssh-ed25519 THEIRS"


def test_verdict_counts_failures_of_unknown_keys(wheel_set: WheelSet) -> None:
    policy = replace(POLICY, keys={"ci": MINE}, unsigned=False)
    signed = [EvidenceFile(evidence=evidence, key=MINE) for evidence in passing_evidence(wheel_set)]
    failed = replace(one(passing_evidence(wheel_set), "install"), outcome=Outcome.FAILED, findings=(WRONG,))
    for bad in (
        EvidenceFile(evidence=failed),
        EvidenceFile(evidence=failed, key=THEIRS),
        EvidenceFile(evidence=failed, flaw="x"),
    ):
        word = judge(wheel_set, [*signed, bad], policy, now=NOW)
        assert word.blocked_by == ("The gate install failed: The library is broken.",)


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
    later = replace(failed, outcome=Outcome.ERROR, findings=(unfit,), ended="2026-01-02T05:00:00Z")
    assert not verdict(wheel_set, [*good, failed, later], POLICY).allowed, "it takes no failure back"


def test_verdict_blocks_failed_python(wheel_set: WheelSet) -> None:
    policy = replace(POLICY, tiers={"gfx942": Tier.DEVICE}, gates={**POLICY.gates, "device": DEVICE})
    good = passing_evidence(wheel_set, policy)
    passed = replace(one(good, "device"), settings={"policy": "1", "python": "3.12"}, ended="2026-01-02T05:00:00Z")
    failed = replace(one(good, "device"), settings={"policy": "1", "python": "3.11"}, outcome=Outcome.FAILED)
    rest = [evidence for evidence in good if evidence.gate != "device"]
    assert verdict(wheel_set, [*rest, passed], policy).allowed
    blocked = verdict(wheel_set, [*rest, passed, replace(failed, findings=(WRONG,))], policy).blocked_by
    assert blocked[0] == "The gate device for gfx942 failed: The library is broken."


def test_verdict_keeps_larger_run(wheel_set: WheelSet) -> None:
    rule = replace(DEVICE, min_passed=9, settings={"size": "large"})
    policy = replace(POLICY, tiers={"gfx942": Tier.DEVICE}, gates={**POLICY.gates, "device": rule})
    good = passing_evidence(wheel_set, policy)
    large = replace(one(good, "device"), settings={"policy": "1", "size": "large"}, counts=counts())
    few = counts(collected=3, run=3, passed=3)
    small = replace(large, settings={"policy": "1", "size": "small"}, counts=few, ended="2026-01-02T05:00:00Z")
    rest = [evidence for evidence in good if evidence.gate != "device"]
    found = verdict(wheel_set, [*rest, large, small], policy)
    assert (found.allowed, found.tiers["gfx942"]) == (True, "device")
    found = verdict(wheel_set, [*rest, replace(large, counts=few), small], policy)
    assert found.blocked_by[0] == "The gate device for gfx942 ran with size 'small'; 'large' is required."
    assert found.tiers["gfx942"] != "device"


@pytest.mark.parametrize("tier", [Tier.CPU, Tier.CUDA])
def test_verdict_blocks_tiers_of_other_platforms(wheel_set: WheelSet, tier: Tier) -> None:
    policy = replace(POLICY, tier=Tier.DEVICE, gates={**POLICY.gates, "device": DEVICE})
    others = passing_evidence(wheel_set)
    elsewhere = [
        replace(others[0], gate=gate, target=target, tier=tier, counts=counts())
        for gate in (f"device-{tier}", "device")
        for target in ("any", *wheel_set.targets)
    ]
    word = verdict(wheel_set, [*others, *elsewhere], policy)
    assert "device" not in word.tiers.values()
    for target in wheel_set.targets:
        assert any(f"{target} was tested at tier compiled; device is required." == text for text in word.blocked_by)
        assert any(f"The gate device for {target} has tier {tier}" in text for text in word.blocked_by)
    # Such a gate does not grant a tier, even if the policy names it.
    odd = replace(policy, gates={**policy.gates, f"device-{tier}": replace(DEVICE, tier=tier, per="target")})
    assert "device" not in verdict(wheel_set, [*others, *elsewhere], odd).tiers.values()
    assert tier.value not in verdict(wheel_set, [*others, *elsewhere], odd).tiers.values()
