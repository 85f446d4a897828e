"""Waivers of flaky tests: the table of the policy, and their effect on the verdict."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from core.model import Evidence, Outcome, Tier, Verdict
from promotion.evidence.evidence import EvidenceFile
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.policy.gate_rules import GateRule
from promotion.policy.promotion_policy import (
    POLICY_FILE,
    Policy,
    load_policy,
    load_waivers,
)
from promotion.policy.verdict import verdict
from promotion.policy.waivers import (
    FlakeWaiver,
    parse_waiver,
    parse_waivers,
    suggested_waiver,
)
from tests.support import sets
from tests.support.device_results import checks_of, judged

COMPLETE: dict[str, Any] = {
    "test": "tests/a_test.py::odd*",
    "targets": ["gfx942"],
    "index": "gfx94X-dcgpu",
    "channel": "nightly",
    "owner": "somebody",
    "reason": "a race in the test",
    "opened": date(2026, 1, 1),
    "expires": date(2026, 1, 10),
}
WAIVER = parse_waiver(COMPLETE)
NOW = datetime(2026, 1, 3, tzinfo=UTC)
SET = sets.wheel_set()


def test_parse_waivers_accepts_complete_entry() -> None:
    (entry,), void = parse_waivers([COMPLETE])
    assert void == ()
    assert entry.covers("tests/a_test.py::odd[1]", "gfx942")
    assert entry.covers("tests/a_test.py::odd[1]", "gfx942:xnack-")
    assert not entry.covers("tests/a_test.py::odd[1]", "gfx950")
    assert not entry.covers("tests/a_test.py::even", "gfx942")
    wide = parse_waiver(
        {
            **COMPLETE,
            "targets": ["gfx94X-dcgpu", "gfx950", "any"],
            "test": "tests/a_test.py",
        }
    )
    assert wide.targets == ("gfx942", "gfx950", "any")
    assert wide.covers("tests/a_test.py::x", "any")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"owner": " "}, "owner is empty"),
        ({"test": "*::*"}, "matches every test"),
        ({"targets": []}, "targets is empty"),
        ({"targets": ["gfx94"]}, "gfx94"),
    ],
)
def test_parse_waivers_reports_invalid_field(change: dict[str, Any], why: str) -> None:
    (), (sentence,) = parse_waivers([{**COMPLETE, **change}])
    assert why in sentence


def as_toml(**changes: Any) -> str:
    values = {**COMPLETE, **changes}
    lines = (
        f"{name} = {value if isinstance(value, date) else repr(value)}"
        for name, value in values.items()
    )
    return "\n[[flake_waivers]]\n" + "\n".join(lines) + "\n"


def test_load_policy_selects_waivers_of_channel_and_index(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY_FILE.read_text() + as_toml() + as_toml(owner=""))
    policy = load_policy("gfx94X-dcgpu", channel="nightly", file=path)
    assert policy.waivers == (WAIVER,)
    assert policy.void == ("Waiver 2 of the policy is void: owner is empty.",)
    assert load_policy("gfx94X-dcgpu", channel="release", file=path).waivers == ()
    assert load_policy("multi-arch", channel="nightly", file=path).waivers == ()
    assert load_waivers(path) == (WAIVER,)


def test_suggested_waiver_needs_only_owner_and_reason() -> None:
    test = 'tests/a_test.py::odd["x\\y"]'
    text = suggested_waiver(
        test, "gfx942:xnack-", index="gfx94X-dcgpu", channel="nightly", now=NOW
    )
    (body,) = tomllib.loads(text)["flake_waivers"]
    assert parse_waivers([body]) == (
        (),
        ("Waiver 1 of the policy is void: owner is empty.",),
    )
    waiver = parse_waiver({**body, "owner": "me", "reason": "a race"})
    assert waiver.covers(test, "gfx942:xnack-")
    assert waiver.channel == "nightly"
    assert waiver.index == "gfx94X-dcgpu"
    assert waiver.state(NOW) == ""


# Verdicts

DEVICE = GateRule(
    tier=Tier.DEVICE, per="tier", min_passed=1, may_skip=True, known_failures=0
)
POLICY = replace(
    load_policy("gfx94X-dcgpu", channel="nightly"),
    gates={"device": DEVICE},
    device_members={},
    files=(),
    keys=None,
    unsigned=True,
)
RESULTS = tuple(
    TestResult(id=f"tests/a_test.py::{name}", verdict=result, attempts=1)
    for name, result in (
        ("good", TestVerdict.PASSED),
        ("odd", TestVerdict.FLAKY),
        ("odd_too", TestVerdict.FLAKY),
    )
)


def ran(waivers: Sequence[FlakeWaiver] = (WAIVER,)) -> Evidence:
    """Return evidence of a run with two flaky tests that the waivers cover."""
    made = judged(checks_of(RESULTS, waivers))
    at = "2026-01-02T12:00:00Z"
    return replace(
        made, set_digest=SET.digest, settings={"policy": "1"}, started=at, ended=at
    )


def judge(evidence: Evidence, policy: Policy, now: datetime = NOW) -> Verdict:
    return verdict(SET, [EvidenceFile(evidence=evidence)], policy, now=now)


@pytest.mark.parametrize("known_failures", [0, ("tests/a_test.py",)])
def test_verdict_accepts_and_lists_waived_flakes(
    known_failures: int | tuple[str, ...],
) -> None:
    gates = {"device": replace(DEVICE, known_failures=known_failures)}
    word = judge(ran(), replace(POLICY, waivers=(WAIVER,), gates=gates))
    assert word.blocked_by == ()
    assert word.waived == tuple(
        f"{WAIVER}. Flaky in the gate device for gfx942: tests/a_test.py::{test}"
        for test in ("odd", "odd_too")
    )
    assert word.missing_waivers == ()


@pytest.mark.parametrize(
    ("waivers", "unwaived"),
    [
        ((), "tests/a_test.py::odd, tests/a_test.py::odd_too"),
        ((replace(WAIVER, test="tests/a_test.py::odd"),), "tests/a_test.py::odd_too"),
        (
            (replace(WAIVER, targets=("gfx950",)),),
            "tests/a_test.py::odd, tests/a_test.py::odd_too",
        ),
        (
            (
                replace(WAIVER, test="tests/a_test.py::odd"),
                replace(WAIVER, expires=date(2026, 1, 3)),
            ),
            "tests/a_test.py::odd_too (the waiver by somebody expired on 2026-01-03)",
        ),
    ],
)
def test_verdict_blocks_flakes_without_waiver(
    waivers: tuple[FlakeWaiver, ...], unwaived: str
) -> None:
    """Also if the gate counted them as known, as older versions did for flaky tests."""
    word = judge(ran(), replace(POLICY, waivers=waivers))
    assert word.blocked_by == (
        (
            "The gate device for gfx942 has flaky tests without a valid waiver:"
            f" {unwaived}."
        ),
        "gfx942 was tested at tier none; device is required.",
    )
    assert len(word.missing_waivers) == unwaived.count("::")
    assert all(
        'channel = "nightly"' in text and 'index = "gfx94X-dcgpu"' in text
        for text in word.missing_waivers
    )


def test_verdict_blocks_flakes_of_any_part() -> None:
    """One Python without flaky tests does not excuse those of another."""
    flaky = ran()
    clean = replace(
        judged(checks_of(RESULTS[:1])),
        set_digest=SET.digest,
        started=flaky.started,
        ended=flaky.ended,
    )
    files = [
        EvidenceFile(evidence=replace(part, settings={"policy": "1", "python": python}))
        for python, part in (("3.11", flaky), ("3.12", clean))
    ]
    assert not verdict(SET, files, POLICY, now=NOW).allowed
    assert verdict(SET, files, replace(POLICY, waivers=(WAIVER,)), now=NOW).allowed
    assert verdict(SET, files[1:], POLICY, now=NOW).allowed


def test_verdict_suggests_waivers_for_failed_gate() -> None:
    failed = ran(())
    assert failed.outcome is Outcome.FAILED
    word = judge(failed, POLICY)
    assert "tests/a_test.py::odd is flaky" in word.blocked_by[0]
    assert len(word.missing_waivers) == 2
    again = judge(failed, replace(POLICY, waivers=(WAIVER,)))
    assert not again.allowed, "the gate must run or merge its shards again"
    assert again.missing_waivers == ()
    assert again.waived == ()
