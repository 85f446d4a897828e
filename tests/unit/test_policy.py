"""The verdict: everything that is not as the policy wants it blocks, with a sentence of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_build.errors import RequestError
from ci_build.model import Evidence, Finding, Outcome, Severity, Tier, WheelSet
from promotion.policy import POLICY_FILE, GateRule, Policy, lacking, load_policy, superfluous, verdict, weakest
from tests.support import PJRT_LIBRARY, but, make_set, make_wheels, passing_evidence

POLICY = load_policy("multi-arch")
WRONG = Finding(code="x", severity=Severity.ERROR, message="The library is broken.", remedy="")
WARNED = replace(WRONG, severity=Severity.WARNING, message="It may be broken.")


@pytest.fixture(scope="module")
def wheel_set(tmp_path_factory: pytest.TempPathFactory) -> WheelSet:
    return make_set(make_wheels(tmp_path_factory.mktemp("wheels")))


def counts(**changes: Any) -> dict[str, Any]:
    return {"collected": 9, "run": 9, "passed": 9, "failed": 0, "known": 0, "skipped": 0, **changes}


def one(evidences: list[Evidence], gate: str) -> Evidence:
    return next(evidence for evidence in evidences if evidence.gate == gate)


def test_a_good_set_with_all_evidence_is_allowed(wheel_set: WheelSet) -> None:
    word = verdict(wheel_set, passing_evidence(wheel_set), POLICY)
    assert word.blocked_by == ()
    assert word.allowed
    assert word.tiers == {"gfx942": "compiled", "gfx950": "compiled"}
    assert weakest(word) == "compiled"


FAULTS: list[tuple[str, Callable[[list[Evidence]], list[Evidence]], str]] = [
    ("nothing", lambda _: [], "The gate install has not run on this set."),
    (
        "no inspection",
        lambda e: [item for item in e if item.gate != "inspection"],
        "The gate inspection has not run on this set.",
    ),
    (
        "one target missing",
        lambda e: [item for item in e if item.target != "gfx950"],
        "The gate coverage for gfx950 has not run on this set.",
    ),
    (
        "another set",
        lambda e: but(e, "install", set_digest="0" * 64),
        f"There is evidence of another set, {'0' * 64}, beside this one.",
    ),
    ("another set does not count", lambda e: but(e, "install", set_digest="0" * 64), "install has not run"),
    (
        "failed",
        lambda e: but(e, "install", outcome=Outcome.FAILED, findings=(WRONG, WRONG)),
        "The gate install failed: The library is broken. (and 1 more)",
    ),
    ("failed without words", lambda e: but(e, "install", outcome=Outcome.FAILED), "failed: it does not say why."),
    (
        "was skipped",
        lambda e: but(e, "install", outcome=Outcome.SKIPPED, findings=(WARNED,)),
        "The gate install was skipped: It may be broken.",
    ),
    (
        "the errors count, not what was only warned of",
        lambda e: but(e, "install", outcome=Outcome.FAILED, findings=(WARNED, WRONG)),
        "The gate install failed: The library is broken.",
    ),
    (
        "known failures where none may be",
        lambda e: but(e, "install", counts=counts(passed=7, known=2)),
        "The gate install counts 2 failures as known, which the policy does not allow of it.",
    ),
    (
        "could not run",
        lambda e: but(e, "coverage", "gfx942", outcome=Outcome.ERROR, findings=(WRONG,)),
        "The gate coverage for gfx942 could not run: The library is broken.",
    ),
    (
        "zero run",
        lambda e: but(e, "install", counts=counts(collected=0, run=0, passed=0)),
        "The gate install passed 0 checks; 2 are asked for.",
    ),
    (
        "too few members",
        lambda e: but(e, "coverage", "gfx942", counts=counts(collected=6, run=6, passed=6)),
        "The gate coverage for gfx942 passed 6 checks; 7 are asked for.",
    ),
    (
        "all skipped",
        lambda e: but(e, "install", counts=counts(run=0, passed=0, skipped=9)),
        "The gate install passed 0 checks; 2 are asked for.",
    ),
    (
        "skipped where none may be",
        lambda e: but(e, "inspection", counts=counts(run=8, passed=8, skipped=1)),
        "The gate inspection skipped 1 checks.",
    ),
    (
        "passed with failures",
        lambda e: but(e, "install", counts=counts(passed=8, failed=1)),
        "The gate install says that it passed but counts 1 failures.",
    ),
    ("sums wrong", lambda e: but(e, "install", counts=counts(collected=10)), "has counts that do not add up"),
    ("counts missing", lambda e: but(e, "install", counts={"run": 9}), "has counts that make no sense"),
    ("counts negative", lambda e: but(e, "install", counts=counts(skipped=-1)), "has counts that make no sense"),
    ("counts not numbers", lambda e: but(e, "install", counts=counts(run="9")), "has counts that make no sense"),
    ("counts true", lambda e: but(e, "install", counts=counts(run=True)), "has counts that make no sense"),
    (
        "a gate that nobody asked for fails",
        lambda e: [*e, replace(e[0], gate="fuzz", outcome=Outcome.FAILED, findings=(WRONG,))],
        "The gate fuzz for any did not pass: The library is broken.",
    ),
    (
        "a later failure",
        lambda e: [replace(one(e, "install"), ended="2027-01-01T00:00:00Z", outcome=Outcome.FAILED), *e],
        "The gate install failed",
    ),
    (
        "a failure in the same second",
        lambda e: [replace(one(e, "install"), outcome=Outcome.FAILED), *e],
        "The gate install failed",
    ),
]


@pytest.mark.parametrize(("fault", "sentence"), [row[1:] for row in FAULTS], ids=[r[0] for r in FAULTS])
def test_faulty_evidence_blocks(
    wheel_set: WheelSet, fault: Callable[[list[Evidence]], list[Evidence]], sentence: str
) -> None:
    word = verdict(wheel_set, fault(passing_evidence(wheel_set)), POLICY)
    assert not word.allowed
    assert any(sentence in reason for reason in word.blocked_by), word.blocked_by


def test_known_failures_do_not_count_as_passed(wheel_set: WheelSet) -> None:
    rule = GateRule(per="set", min_passed=8, may_skip=False, known_failures=True)
    policy = replace(POLICY, gates={**POLICY.gates, "install": rule})
    for passed, allowed in ((8, True), (7, False)):
        evidence = but(passing_evidence(wheel_set), "install", counts=counts(passed=passed, known=9 - passed))
        assert verdict(wheel_set, evidence, policy).allowed is allowed


def test_what_cannot_be_compiled_for_needs_no_evidence_and_stays_at_its_tier(wheel_set: WheelSet) -> None:
    mixed = replace(wheel_set, targets=("gfx942:xnack-", "gfx1010", "gfx9-4-generic"))
    assert POLICY.gates["compile"].about(mixed) == ("gfx942:xnack-",)
    other = replace(wheel_set, targets=("gfx942", "gfx1010"))
    good = passing_evidence(other)
    skipped = replace(one(good, "compile"), target="gfx1010", outcome=Outcome.SKIPPED, counts=counts(run=0, skipped=9))
    for evidence in (good, [*good, skipped]):
        word = verdict(other, evidence, replace(POLICY, device_members={}))
        assert word.blocked_by == ()
        assert word.tiers == {"gfx942": "compiled", "gfx1010": "structure"}
        assert weakest(word) == "structure"


def test_what_can_be_compiled_for_may_not_be_left_out(wheel_set: WheelSet) -> None:
    skipped = but(passing_evidence(wheel_set), "compile", "gfx950", outcome=Outcome.SKIPPED)
    word = verdict(wheel_set, skipped, POLICY)
    assert word.blocked_by == ("The gate compile for gfx950 was skipped: it does not say why.",)
    assert word.tiers == {"gfx942": "compiled", "gfx950": "structure"}


def test_an_earlier_failure_is_mended_by_a_later_pass(wheel_set: WheelSet) -> None:
    good = passing_evidence(wheel_set)
    earlier = replace(one(good, "install"), ended="2025-01-01T00:00:00Z", outcome=Outcome.FAILED, findings=(WRONG,))
    assert verdict(wheel_set, [*good, earlier], POLICY).allowed


def no_code(wheel_set: WheelSet) -> WheelSet:
    wheels = [
        replace(w, members=tuple(replace(m, targets=("gfx942",)) if m.path == PJRT_LIBRARY else m for m in w.members))
        for w in wheel_set.wheels
    ]
    return replace(wheel_set, wheels=tuple(wheels))


SET_FAULTS: list[tuple[str, Callable[[WheelSet], WheelSet], str]] = [
    (
        "pjrt missing",
        lambda s: replace(s, wheels=s.wheels[1:]),
        "The set has 0 wheels of jax-rocm7-pjrt; one is asked for.",
    ),
    ("pjrt twice", lambda s: replace(s, wheels=(s.wheels[0], *s.wheels)), "The set has 2 wheels of jax-rocm7-pjrt"),
    (
        "one Python without plugin",
        lambda s: replace(s, wheels=tuple(w for w in s.wheels if "plugin-0.10.2+rocm7.2.0-cp312" not in w.filename)),
        "The set has 0 wheels of jax-rocm7-plugin for Python 3.12; one is asked for.",
    ),
    (
        "a Python that is only promised",
        lambda s: replace(s, python_versions=("3.11", "3.12", "3.13")),
        "The set has 0 wheels of jaxlib for Python 3.13; one is asked for.",
    ),
    ("another major", lambda s: replace(s, rocm_version="10.0.0"), "The set has 0 wheels of jax-rocm10-pjrt"),
    (
        "a wheel that nobody asked for",
        lambda s: replace(s, wheels=(*s.wheels, replace(s.wheels[0], name="stranger"))),
        "The set has a wheel of stranger, which the policy does not name.",
    ),
    ("no pin", lambda s: replace(s, pins={}), "The set does not say which version of jax it is for."),
    ("no Python", lambda s: replace(s, python_versions=()), "The set is for 0 Python versions; 1 are asked for."),
    ("no target", lambda s: replace(s, targets=()), "The set names no gfx target."),
    ("a target without code", no_code, f"{PJRT_LIBRARY} does not promise code for gfx950."),
    (
        "a library that is gone",
        lambda s: replace(s, wheels=tuple(replace(w, members=()) for w in s.wheels)),
        "jax_rocm7_plugin/_solver.so does not promise code for gfx942.",
    ),
    (
        "not a wheel's name",
        lambda s: replace(s, wheels=tuple(replace(w, filename="x.zip") for w in s.wheels)),
        "The set has 0 wheels of jaxlib for Python 3.11",
    ),
]


@pytest.mark.parametrize(("fault", "sentence"), [row[1:] for row in SET_FAULTS], ids=[row[0] for row in SET_FAULTS])
def test_a_set_that_is_not_whole_blocks(
    wheel_set: WheelSet, fault: Callable[[WheelSet], WheelSet], sentence: str
) -> None:
    broken = fault(wheel_set)
    word = verdict(broken, passing_evidence(broken), POLICY)
    assert not word.allowed
    assert any(sentence in reason for reason in word.blocked_by), word.blocked_by


def test_all_reasons_are_given(wheel_set: WheelSet) -> None:
    word = verdict(replace(wheel_set, pins={}), [], POLICY)
    gates = sum(len(rule.about(wheel_set)) for rule in POLICY.gates.values())
    assert len(word.blocked_by) == 1 + gates + 2  # the pin; every gate; a tier for each target
    assert word.tiers == {"gfx942": "none", "gfx950": "none"}
    assert weakest(word) == "none"


def test_a_stronger_tier_is_not_met_by_a_weaker_one(wheel_set: WheelSet) -> None:
    good = passing_evidence(wheel_set)
    on_device = [replace(e, gate="device", tier=Tier.DEVICE) for e in good if e.target == "gfx942"]
    strict = replace(POLICY, tier=Tier.DEVICE)
    word = verdict(wheel_set, [*good, *on_device], strict)
    assert "gfx942 was tested at tier compiled; device is asked for." in word.blocked_by, "not a gate of the policy"
    strict = replace(
        strict,
        gates={**POLICY.gates, "device": GateRule(per="target", min_passed=1, may_skip=False, known_failures=False)},
    )
    word = verdict(wheel_set, [*good, *on_device], strict)
    assert word.blocked_by == (
        "The gate device for gfx950 has not run on this set.",
        "gfx950 was tested at tier compiled; device is asked for.",
    )
    assert word.tiers == {"gfx942": "device", "gfx950": "compiled"}
    assert weakest(word) == "compiled"


@settings(deadline=None)
@given(st.data())
def test_taking_good_evidence_away_or_adding_bad_never_opens(wheel_set: WheelSet, data: st.DataObject) -> None:
    pool = passing_evidence(wheel_set)
    pool += [replace(e, outcome=outcome) for e in pool for outcome in (Outcome.FAILED, Outcome.ERROR)]
    chosen = data.draw(st.lists(st.sampled_from(pool), max_size=12, unique_by=id))
    allowed = verdict(wheel_set, chosen, POLICY).allowed
    for evidence in chosen:
        if evidence.outcome is Outcome.PASSED:
            rest = [other for other in chosen if other is not evidence]
            assert allowed or not verdict(wheel_set, rest, POLICY).allowed
    bad = data.draw(st.sampled_from([e for e in pool if e.outcome is not Outcome.PASSED]))
    assert allowed or not verdict(wheel_set, [*chosen, bad], POLICY).allowed
    assert not verdict(wheel_set, [*chosen, bad], POLICY).allowed


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_evidence_does_not_matter(wheel_set: WheelSet, shuffler: random.Random) -> None:
    evidence = passing_evidence(wheel_set)
    evidence += but(evidence, "install", outcome=Outcome.FAILED)
    shuffled = list(evidence)
    shuffler.shuffle(shuffled)
    assert verdict(wheel_set, shuffled, POLICY) == verdict(wheel_set, evidence, POLICY)


def test_generic_code_serves_the_targets_that_it_covers() -> None:
    assert lacking(("gfx9-4-generic",), ("gfx942", "gfx950")) == ()
    assert lacking(("gfx9-4-generic",), ("gfx942", "gfx1100")) == ("gfx1100",)
    assert superfluous(("gfx9-4-generic", "gfx1100"), ("gfx942",)) == ("gfx1100",)
    assert lacking((), ("gfx942",)) == ("gfx942",)


# The file


def policy_file(tmp_path: Path, old: str, new: str) -> Path:
    text = POLICY_FILE.read_text()
    assert old in text
    path = tmp_path / "policy.toml"
    path.write_text(text.replace(old, new, 1))
    return path


def test_one_index_may_differ(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY_FILE.read_text() + '\n[local.index."gfx94X-dcgpu"]\npythons = 4\ntier = "device"\n')
    special, usual = load_policy("gfx94X-dcgpu", file=path), load_policy("multi-arch", file=path)
    assert (special.pythons, special.tier) == (4, Tier.DEVICE)
    assert (usual.pythons, usual.tier) == (1, Tier.STRUCTURE)
    assert special.gates == usual.gates


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema = 1", "schema = 2"),
        ('tier = "structure"', 'tier = "rumour"'),
        ("pythons = 1", 'pythons = "many"'),
        ("pythons = 1", ""),
        ("pythons = 1", "pythons = 1\nsurprise = ['x']"),
        ('pins = ["jax"]', 'pins = "jax"'),
        ('per = "set"', 'per = "week"'),
        ("min_passed = 2", "min_passed = 0"),
        ("min_passed = 2", "min_passed = true"),
        ('min_passed = "wheels"', 'min_passed = "some"'),
        ("may_skip = true", "may_skip = 1"),
        ("known_failures = false", "known_failures = 0"),
        ("known_failures = false", ""),
        ("may_skip = true", "may_skip = true\nsurprise = 1"),
        ("[local.gates.install]", "[local.gates.install"),
    ],
)
def test_a_policy_that_is_not_understood_is_refused(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(RequestError, match=r"policy\.toml"):
        load_policy("multi-arch", file=policy_file(tmp_path, old, new))


def test_an_unknown_channel_is_refused() -> None:
    with pytest.raises(RequestError, match="no channel 'release'"):
        load_policy("multi-arch", channel="release")


def test_every_field_of_the_policy_counts(wheel_set: WheelSet) -> None:
    """No silent option: a stricter value of each field blocks a set that was fine."""
    stricter: dict[str, Any] = {
        "tier": Tier.DEVICE,
        "pythons": 3,
        "wheels": (*POLICY.wheels, "jax"),
        "wheels_per_python": (*POLICY.wheels_per_python, "jax-aiter"),
        "pins": ("jax", "numpy"),
        "device_members": {"jax-rocm{major}-pjrt": ("other.so",)},
        "gates": {**POLICY.gates, "device": GateRule(per="target", min_passed=1, may_skip=False, known_failures=False)},
    }
    assert set(stricter) == set(Policy.__dataclass_fields__) - {"channel", "sha256"}
    for name, value in stricter.items():
        assert not verdict(wheel_set, passing_evidence(wheel_set), replace(POLICY, **{name: value})).allowed, name
