"""The verdict's truth table for one gate on one target, and laws for any evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.model import Finding, Outcome, Severity, Tier
from promotion.evidence.evidence import ENVIRONMENT, EvidenceFile
from promotion.policy.exceptions import NOT_RUN, PolicyException
from promotion.policy.gate_rules import EvidenceKey, GateRule
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.policy.verdict import verdict
from tests.support import sets

NOW = datetime(2026, 1, 3, tzinfo=UTC)
SET = sets.wheel_set()
MINE = "ssh-ed25519 MINE"
THEIRS = "ssh-ed25519 THEIRS"
DEVICE = GateRule(
    version=2,
    tier=Tier.DEVICE,
    per="tier",
    min_passed=5,
    max_skipped=0,
    known_failures=0,
)
POLICY = replace(
    load_policy("gfx94X-dcgpu"),
    channel="release",
    tier=Tier.DEVICE,
    files=(),
    device_members={},
    max_age_days=1,
    keys={"ci": EvidenceKey(key=MINE)},
    unsigned=False,
    gates={"device": DEVICE},
)
GOOD = sets.evidence(
    set_digest=SET.digest,
    gate="device",
    tier=Tier.DEVICE,
    started="2026-01-02T12:00:00Z",
    ended="2026-01-02T12:00:00Z",
    settings={"version": "2"},
    counts=sets.counts(collected=5, run=5, passed=5),
)
EXCEPTION = PolicyException(
    kind=NOT_RUN,
    owner="releases@example.invalid",
    reason="the runner is being repaired",
    opened=date(2026, 1, 1),
    expires=date(2026, 1, 10),
    channel="release",
    index=SET.index,
    gates=("device",),
    targets=("gfx942",),
    version=SET.jax_version,
)

OUTCOMES: dict[str, Outcome | None] = {
    "absent": None,
    **{outcome.value: outcome for outcome in Outcome},
}
SIGNED: dict[str, dict[str, Any]] = {
    "mine": {"key": MINE},
    "theirs": {"key": THEIRS},
    "unsigned": {},
    "damaged": {"flaw": "broken."},
}
TIMES = {
    "now": "2026-01-02T12:00:00Z",
    "old": "2026-01-01T12:00:00Z",
    "future": "2026-01-03T12:00:00Z",
    "none": "some day",
}
COUNTS: dict[str, dict[str, int]] = {
    "enough": {},
    "too few": {"collected": 4, "run": 4, "passed": 4},
    "none run": {"run": 0, "passed": 0, "skipped": 5},
    "zero": {"collected": 0, "run": 0, "passed": 0},
    "skipped": {"collected": 6, "skipped": 1},
    "known": {"collected": 6, "run": 6, "known": 1},
    "failed": {"collected": 6, "run": 6, "failed": 1},
    "sums": {"collected": 7},
}
EXCEPTIONS: dict[str, tuple[PolicyException, ...]] = {
    "none": (),
    "valid": (EXCEPTION,),
    "expired": (replace(EXCEPTION, expires=date(2026, 1, 3)),),
    "not yet": (replace(EXCEPTION, opened=date(2026, 1, 4)),),
    "another gate": (replace(EXCEPTION, gates=("compile",)),),
    "another target": (replace(EXCEPTION, targets=("gfx950",)),),
    "another version": (replace(EXCEPTION, version="0.10.1"),),
    "another set": (replace(EXCEPTION, version="", set="0" * 64),),
    "another index": (replace(EXCEPTION, index="multi-arch"),),
    "this set": (replace(EXCEPTION, version="", set=SET.digest),),
}
ROWS = [
    *product(
        OUTCOMES,
        SIGNED,
        TIMES,
        ("enough",),
        (True, False),
        (True, False),
        (True, False),
        ("none", "valid"),
    ),
    *product(
        OUTCOMES,
        ("mine",),
        ("now",),
        COUNTS,
        (True,),
        (True, False),
        (True,),
        ("none", "valid", "expired"),
    ),
    *product(
        OUTCOMES,
        SIGNED,
        ("now",),
        ("enough", "zero"),
        (True,),
        (True,),
        (True,),
        EXCEPTIONS,
    ),
]
"""Outcome, signature, time, counts, set, version of the gate, the gate's own tier, exception."""


def expected(row: tuple[Any, ...], *, believes_all: bool) -> bool:
    """Return the expected verdict for a row of the table."""
    outcome, signed, time, counts, same_set, same_version, same_tier, exception = row
    heard = signed == "mine" or (believes_all and signed in ("theirs", "unsigned"))
    heard = heard and outcome != "absent"
    if heard and (not same_set or time == "none"):
        return False  # Evidence without a known gate cannot be excused.
    heard = heard and same_version and time != "future"
    failed = outcome in ("failed", "error") or counts in ("failed", "known")
    if exception in ("valid", "this set") and not (heard and failed):
        return True
    whole = (outcome, time, counts) == ("passed", "now", "enough") and same_tier
    return bool(heard and whole)


def statement(row: tuple[Any, ...]) -> list[EvidenceFile]:
    outcome, signed, time, counts, same_set, same_version, same_tier, _ = row
    word = OUTCOMES[outcome]
    if word is None:
        return []
    evidence = replace(
        GOOD,
        outcome=word,
        started=TIMES[time],
        ended=TIMES[time],
        counts={**GOOD.counts, **COUNTS[counts]},
        set_digest=SET.digest if same_set else "0" * 64,
        settings={"version": "2" if same_version else "1"},
        tier=Tier.DEVICE if same_tier else Tier.COMPILED,
    )
    return [EvidenceFile(evidence=evidence, **SIGNED[signed])]


@pytest.mark.parametrize("believes_all", [False, True])
def test_verdict_matches_truth_table(believes_all: bool) -> None:
    opened = 0
    for row in dict.fromkeys(ROWS):
        policy = replace(POLICY, unsigned=believes_all, excepted=EXCEPTIONS[row[-1]])
        word = verdict(SET, statement(row), policy, now=NOW)
        assert word.allowed is expected(row, believes_all=believes_all), (
            row,
            word.blocked_by,
        )
        assert word.allowed is (word.blocked_by == ())
        assert all(
            text.strip() == text and text.endswith(".")
            for text in (*word.blocked_by, *word.excused)
        ), word
        # An exception never counts as reaching a tier.
        gate_passed = expected((*row[:-1], "none"), believes_all=believes_all)
        assert not gate_passed or word.tiers == {"gfx942": "device"}
        assert not word.excused or word.tiers == {"gfx942": "none"}
        opened += word.allowed
    assert 0 < opened < len(set(ROWS)) / 2


def test_verdict_lists_used_exception_and_its_reasons() -> None:
    word = verdict(SET, [], replace(POLICY, excepted=(EXCEPTION,)), now=NOW)
    assert word.excused == (
        f"{EXCEPTION}. Passed over: The gate device for gfx942 has not run on this set.",
        f"{EXCEPTION}. Passed over: gfx942 has tier none; device is required.",
    )
    assert word.allowed is True
    assert word.warnings == ()


def test_verdict_warns_about_invalid_exception() -> None:
    (warning,) = verdict(
        SET, [], replace(POLICY, excepted=EXCEPTIONS["expired"]), now=NOW
    ).warnings
    assert "expired on 2026-01-03" in warning


def test_exception_of_weaker_gate_excuses_no_tier() -> None:
    gates = {
        "device": DEVICE,
        "coverage": replace(DEVICE, tier=Tier.STRUCTURE, per="target"),
    }
    policy = replace(
        POLICY, gates=gates, excepted=(replace(EXCEPTION, gates=("coverage",)),)
    )
    device = replace(
        GOOD,
        counts={
            **GOOD.counts,
            "collected": 4,
            "run": 4,
            "passed": 4,
        },
    )
    word = verdict(SET, [EvidenceFile(evidence=device, key=MINE)], policy, now=NOW)
    assert word.blocked_by == (
        "The gate device for gfx942 passed 4 checks; 5 are required.",
        "gfx942 has tier none; device is required.",
    )
    assert len(word.excused) == 1


def test_exception_does_not_cover_set_problems() -> None:
    everything = replace(EXCEPTION, gates=("device", "any"), targets=("gfx942", "any"))
    word = verdict(
        replace(SET, targets=()), [], replace(POLICY, excepted=(everything,)), now=NOW
    )
    assert "The set names no gfx target." in word.blocked_by


def test_verdict_warns_about_unused_exception() -> None:
    other = replace(EXCEPTION, gates=("compile",))
    word = verdict(SET, [], replace(POLICY, excepted=(EXCEPTION, other)), now=NOW)
    assert word.warnings == (f"An exception excuses nothing: {other}.",)


def test_verdict_excuses_failure_of_the_machine() -> None:
    finding = Finding(
        code=ENVIRONMENT, severity=Severity.ERROR, message="x", remedy="y"
    )
    broken = replace(GOOD, outcome=Outcome.ERROR, findings=(finding,))
    said = [EvidenceFile(evidence=broken, key=MINE)]
    assert verdict(SET, said, replace(POLICY, excepted=(EXCEPTION,)), now=NOW).allowed
    assert not verdict(SET, said, POLICY, now=NOW).allowed


# Laws

GATES: dict[str, GateRule] = {
    "device": DEVICE,
    "coverage": GateRule(
        version=2,
        tier=Tier.STRUCTURE,
        per="target",
        min_passed=1,
        max_skipped=100,
        known_failures=("fft",),
    ),
    "install": GateRule(
        version=2,
        tier=Tier.STRUCTURE,
        per="set",
        min_passed=1,
        max_skipped=100,
        known_failures=2,
    ),
}
PASSES = [
    EvidenceFile(
        evidence=replace(
            GOOD, gate=gate, target=target, tier=rule.tier, started=time, ended=time
        ),
        key=MINE,
    )
    for gate, rule in GATES.items()
    for target in rule.required_targets(SET, POLICY.required_tier)
    for time in ("2026-01-02T12:00:00Z", "2026-01-02T13:00:00Z")
]
"""Good in every respect."""
FAILURES = [
    replace(
        said, evidence=replace(said.evidence, outcome=outcome, ended=ended), key=key
    )
    for said in PASSES
    for outcome in (Outcome.FAILED, Outcome.ERROR)
    for ended in (said.evidence.ended, "2026-01-02T14:00:00Z")
    for key in (MINE, THEIRS, "")
]
ODD_VALUES: list[dict[str, Any]] = [
    {"counts": {"run": True}},
    {"ended": ""},
    {"gate": ""},
    {"target": "any"},
    {"settings": {}},
    {"set_digest": "0" * 64},
    {"details": {"checks": [7]}, "gate": "coverage"},
]
ODD = [
    EvidenceFile(evidence=replace(GOOD, **values), key=MINE) for values in ODD_VALUES
]
POLICIES = st.builds(
    replace,
    st.just(replace(POLICY, gates=GATES)),
    unsigned=st.booleans(),
    keys=st.sampled_from([None, {}, {"ci": EvidenceKey(key=MINE)}]),
    excepted=st.lists(
        st.sampled_from(list(chain.from_iterable(EXCEPTIONS.values()))),
        max_size=2,
    ).map(tuple),
)
SAID = st.lists(st.sampled_from([*PASSES, *FAILURES, *ODD]), max_size=10)


def opens(said: Sequence[EvidenceFile], policy: Policy) -> bool:
    return verdict(SET, said, policy, now=NOW).allowed


@given(said=SAID, failure=st.sampled_from([*FAILURES, *ODD]), policy=POLICIES)
def test_adding_failure_never_allows(
    said: list[EvidenceFile], failure: EvidenceFile, policy: Policy
) -> None:
    if failure.evidence.outcome is Outcome.PASSED:
        failure = replace(
            failure, evidence=replace(failure.evidence, outcome=Outcome.FAILED)
        )
    assert opens(said, policy) or not opens([*said, failure], policy)
