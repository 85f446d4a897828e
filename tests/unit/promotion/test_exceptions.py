"""Exceptions: the table of the policy, and their effect on the verdict."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from core.errors import FormatError
from core.model import Evidence, Outcome, Tier, Verdict
from promotion.evidence.evidence import EvidenceFile
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.policy.exceptions import (
    NOT_RUN,
    TEST,
    PolicyException,
    parse_exception,
    parse_exceptions,
    suggested_exceptions,
)
from promotion.policy.gate_rules import GateRule
from promotion.policy.promotion_policy import (
    POLICY_FILE,
    Policy,
    load_exceptions,
    load_policy,
)
from promotion.policy.verdict import verdict
from tests.support import sets
from tests.support.device_results import checks_of, judged

NO_RUNNER: dict[str, Any] = {
    "kind": "bypass_tests_for_releases",
    "owner": "somebody",
    "reason": "the runner is broken",
    "opened": date(2026, 1, 1),
    "expires": date(2026, 1, 10),
    "channel": "nightly",
    "index": "gfx94X-dcgpu",
    "gates": ["device"],
    "targets": ["gfx942"],
    "version": "0.10.2",
}
FLAKY_TEST = {**NO_RUNNER, "kind": "test", "test": "tests/a_test.py::odd*"}
ENTRY = parse_exception(FLAKY_TEST)
NOW = datetime(2026, 1, 3, tzinfo=UTC)
SET = sets.wheel_set()
KNOWN = {"gates": {"device"}, "channels": {"nightly"}}


def test_exception_for_gate_covers_targets_and_their_features() -> None:
    ((entry,), void) = parse_exceptions([NO_RUNNER], **KNOWN)
    assert void == ()
    assert entry.kind == NOT_RUN
    assert entry.covers("device", "gfx942")
    assert entry.covers("device", "gfx942:xnack-")
    assert not entry.covers("device", "any")
    assert not entry.covers("install", "gfx942")
    assert not entry.covers_test("tests/a_test.py::odd", "device", "gfx942")
    exact = parse_exception({**NO_RUNNER, "targets": ["gfx942:xnack-"]})
    assert not exact.covers("device", "gfx942:xnack+")
    assert (
        str(entry)
        == "by somebody, from 2026-01-01 until 2026-01-10: the runner is broken"
    )


def test_exception_for_test_covers_its_node_ids() -> None:
    assert ENTRY.kind == TEST
    assert ENTRY.covers_test("tests/a_test.py::odd[1]", "device", "gfx942")
    assert not ENTRY.covers_test("tests/a_test.py::odd[1]", "device", "gfx950")
    assert not ENTRY.covers_test("tests/a_test.py::even", "device", "gfx942")
    families = ["gfx94X-dcgpu", "gfx950", "any"]
    wide = parse_exception({**FLAKY_TEST, "targets": families})
    assert wide.targets == ("gfx942", "gfx950", "any")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reason": True}, "reason: expected str"),
        ({"gates": []}, "gates is empty"),
        ({"channel": "nigthly"}, "unknown channel: nigthly"),
        ({"index": "gfx94x"}, "unknown index: gfx94x"),
        ({"targets": ["gfx942", ""]}, "targets is empty"),
        ({"targets": ["gfx94"]}, "gfx94"),
        ({"kind": "test"}, "test is required"),
        ({"test": "tests/a_test.py::odd"}, "test is required"),
        ({"expires": date(2026, 4, 4)}, "must be 1 to 92 days after"),
    ],
)
def test_invalid_exception_is_void(change: dict[str, Any], why: str) -> None:
    (), (sentence,) = parse_exceptions([{**NO_RUNNER, **change}], **KNOWN)
    assert sentence.startswith("Exception 1 of the policy is void: ")
    assert why in sentence


@pytest.mark.parametrize(
    "test",
    [
        "*",
        "tests/*",
        "tests/a_test.py",
        "tests/a_test.py::*",
        "tests/a_test.py::test_*",
        "tests/a_test.py::LaxTest::test*",
        "tests/*_test.py::test_add",
        "*e*",
    ],
)
def test_exception_must_name_its_test(test: str) -> None:
    with pytest.raises(FormatError, match="names no test"):
        parse_exception({**FLAKY_TEST, "test": test})


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (datetime(2025, 12, 31, 23, tzinfo=UTC), "opens on 2026-01-01"),
        (
            datetime(
                2026,
                1,
                9,
                23,
                59,
                59,
                tzinfo=UTC,
            ),
            "",
        ),
        # Days are UTC, independent of the caller's time zone.
        (
            datetime(2026, 1, 9, 23, tzinfo=timezone(timedelta(hours=-5))),
            "expired on 2026-01-10",
        ),
    ],
)
def test_state_of_exception_counts_days_in_utc(now: datetime, state: str) -> None:
    assert ENTRY.state(now) == state


def as_toml(**changes: Any) -> str:
    values = {**FLAKY_TEST, **changes}
    lines = (
        f"{name} = {value if isinstance(value, date) else repr(value)}"
        for name, value in values.items()
    )
    return "\n[[exceptions]]\n" + "\n".join(lines) + "\n"


def test_load_policy_selects_exceptions_of_channel_and_index(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY_FILE.read_text() + as_toml() + as_toml(owner=""))
    policy = load_policy("gfx94X-dcgpu", channel="nightly", file=path)
    assert policy.excepted == (ENTRY,)
    assert policy.void == ("Exception 2 of the policy is void: owner is empty.",)
    assert load_policy("gfx94X-dcgpu", channel="release", file=path).excepted == ()
    assert load_policy("multi-arch", channel="nightly", file=path).excepted == ()
    assert load_exceptions(path) == (ENTRY,)


def test_suggested_exceptions_need_only_owner_and_reason() -> None:
    runs = [ran(())]
    texts = suggested_exceptions(
        SET,
        "nightly",
        ["gfx950:xnack-"],
        runs,
        (),
        NOW,
    )
    bodies = tomllib.loads("\n".join(texts))["exceptions"]
    assert [body.get("test") for body in bodies] == [
        None,
        "tests/a_test.py::odd",
        "tests/a_test.py::odd_too",
    ]
    _, void = parse_exceptions(bodies, **KNOWN)
    assert [sentence.partition(": ")[2] for sentence in void] == ["owner is empty."] * 3
    no_runner, odd, _ = (
        parse_exception({**body, "owner": "me", "reason": "a race"}) for body in bodies
    )
    assert no_runner.covers("device", "gfx950:xnack-")
    assert odd.covers_test("tests/a_test.py::odd", "device", "gfx942")
    assert (odd.is_for(SET), odd.state(NOW)) == (True, "")


# Verdicts

DEVICE = GateRule(
    version=1,
    tier=Tier.DEVICE,
    per="tier",
    min_passed=1,
    max_skipped=100,
    known_failures=0,
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


def ran(entries: Sequence[PolicyException] = (ENTRY,)) -> Evidence:
    """Return evidence of a run with two flaky tests that the exceptions cover."""
    made = judged(checks_of(RESULTS, entries))
    at = "2026-01-02T12:00:00Z"
    return replace(
        made, set_digest=SET.digest, settings={"version": "1"}, started=at, ended=at
    )


def judge(evidence: Evidence, policy: Policy, now: datetime = NOW) -> Verdict:
    return verdict(SET, [EvidenceFile(evidence=evidence)], policy, now=now)


@pytest.mark.parametrize("known_failures", [0, ("tests/a_test.py",)])
def test_verdict_accepts_and_lists_excused_tests(
    known_failures: int | tuple[str, ...],
) -> None:
    gates = {"device": replace(DEVICE, known_failures=known_failures)}
    word = judge(ran(), replace(POLICY, excepted=(ENTRY,), gates=gates))
    assert word.blocked_by == ()
    assert word.excused == tuple(
        f"{ENTRY}. Failing in the gate device for gfx942: tests/a_test.py::{test}"
        for test in ("odd", "odd_too")
    )
    assert word.missing_exceptions == ()


@pytest.mark.parametrize(
    ("entries", "unexcused"),
    [
        ((), "tests/a_test.py::odd, tests/a_test.py::odd_too"),
        ((replace(ENTRY, test="tests/a_test.py::odd"),), "tests/a_test.py::odd_too"),
        (
            (replace(ENTRY, targets=("gfx950",)),),
            "tests/a_test.py::odd, tests/a_test.py::odd_too",
        ),
        (
            (
                replace(ENTRY, test="tests/a_test.py::odd"),
                replace(ENTRY, expires=date(2026, 1, 3)),
            ),
            "tests/a_test.py::odd_too (the exception by somebody expired on 2026-01-03)",
        ),
    ],
)
def test_verdict_blocks_flakes_without_exception(
    entries: tuple[PolicyException, ...], unexcused: str
) -> None:
    """Also if the gate counted them as known, as older versions did for flaky tests."""
    word = judge(ran(), replace(POLICY, excepted=entries))
    assert word.blocked_by == (
        (
            "The gate device for gfx942 has failing tests without a valid exception:"
            f" {unexcused}."
        ),
        "gfx942 has tier none; device is required.",
    )
    assert len(word.missing_exceptions) == unexcused.count("::")
    assert all(
        'channel = "nightly"' in text and 'index = "gfx94X-dcgpu"' in text
        for text in word.missing_exceptions
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
        EvidenceFile(
            evidence=replace(part, settings={"version": "1", "python": python})
        )
        for python, part in (("3.11", flaky), ("3.12", clean))
    ]
    assert not verdict(SET, files, POLICY, now=NOW).allowed
    assert verdict(SET, files, replace(POLICY, excepted=(ENTRY,)), now=NOW).allowed
    assert verdict(SET, files[1:], POLICY, now=NOW).allowed


def test_verdict_suggests_exceptions_for_failed_gate() -> None:
    failed = ran(())
    assert failed.outcome is Outcome.FAILED
    word = judge(failed, POLICY)
    assert "tests/a_test.py::odd" in word.blocked_by[0]
    assert len(word.missing_exceptions) == 2
    again = judge(failed, replace(POLICY, excepted=(ENTRY,)))
    assert not again.allowed, "the gate must run or merge its shards again"
    assert (again.missing_exceptions, again.excused) == ((), ())


@pytest.mark.parametrize("result", [TestVerdict.FAILED, TestVerdict.CRASHED])
def test_exception_accepts_failing_test_that_it_names(result: TestVerdict) -> None:
    results = (RESULTS[0], replace(RESULTS[1], verdict=result))
    made = judged(checks_of(results, (ENTRY,)))
    at = "2026-01-02T12:00:00Z"
    settings = {"version": "1"}
    run = replace(made, set_digest=SET.digest, settings=settings, started=at, ended=at)
    assert (made.outcome, made.counts["known"]) == (Outcome.PASSED, 1)
    assert judge(run, replace(POLICY, excepted=(ENTRY,))).allowed
    assert not judge(run, POLICY).allowed


def test_policy_can_forbid_exceptions() -> None:
    policy = replace(POLICY, excepted=(ENTRY,), exceptions=False)
    word = judge(ran(), policy)
    assert not word.allowed
    assert word.invalid_exceptions == (
        f"Channel nightly accepts no exceptions: {ENTRY}.",
    )
