"""Bypasses of the policy."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from core.errors import FormatError
from promotion.policy.bypasses import Bypass, parse_bypass, parse_each
from promotion.policy.promotion_policy import POLICY_FILE, load_policy
from tests.support import sets

COMPLETE: dict[str, Any] = {
    "owner": "somebody",
    "reason": "the runner is broken",
    "opened": date(2026, 1, 1),
    "expires": date(2026, 1, 10),
    "channel": "nightly",
    "index": "multi-arch",
    "gates": ["device"],
    "targets": ["gfx942"],
    "version": "0.10.2",
}


def test_parse_bypasses_accepts_complete_entry() -> None:
    ((entry,), void) = parse_each([COMPLETE], parse_bypass, "Bypass")
    assert void == ()
    assert entry.covers("device", "gfx942")
    assert not entry.covers("device", "any")
    assert entry.covers("device", "gfx942:xnack-")
    assert not parse_bypass({**COMPLETE, "targets": ["gfx942:xnack-"]}).covers(
        "device", "gfx942:xnack+"
    )
    assert (
        str(entry)
        == "by somebody, from 2026-01-01 until 2026-01-10: the runner is broken"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reason": True}, "reason: expected str"),
        ({"gates": []}, "gates is empty"),
        ({"targets": ["gfx942", ""]}, "targets is empty"),
        ({"set": "a" * 64}, "exactly one of set and version"),
        (
            {"expires": date(2026, 1, 1) + timedelta(days=Bypass.MAX_DAYS + 1)},
            f"must be 1 to {Bypass.MAX_DAYS} days after",
        ),
    ],
)
def test_parse_bypass_refuses_invalid_field(change: dict[str, Any], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse_bypass({**COMPLETE, **change})


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (datetime(2026, 1, 9, 23, 59, 59, tzinfo=UTC), ""),
        # Days are UTC, independent of the caller's time zone.
        (
            datetime(2026, 1, 9, 23, tzinfo=timezone(timedelta(hours=-5))),
            "expired on 2026-01-10",
        ),
    ],
)
def test_state_of_bypass_counts_days_in_utc(now: datetime, state: str) -> None:
    assert parse_bypass(COMPLETE).state(now) == state


def test_parse_bypasses_refuses_entry_that_is_no_table() -> None:
    assert parse_each(["x"], parse_bypass, "Bypass") == (
        (),
        ("Bypass 1 of the policy is void: expected object, got str.",),
    )


def test_is_for_matches_set_or_version() -> None:
    wheel_set = sets.wheel_set(index="multi-arch")
    assert parse_bypass(COMPLETE).is_for(wheel_set)
    assert not parse_bypass({**COMPLETE, "version": "0.10.3"}).is_for(wheel_set)
    assert not parse_bypass({**COMPLETE, "index": "gfx94X-dcgpu"}).is_for(wheel_set)
    body = {key: value for key, value in COMPLETE.items() if key != "version"}
    assert parse_bypass({**body, "set": wheel_set.digest}).is_for(wheel_set)
    assert not parse_bypass({**body, "set": wheel_set.digest[:12]}).is_for(wheel_set)


ENTRY = """
[[bypass_tests_for_releases]]
owner = "somebody"
reason = "why not"
opened = 2026-01-01
expires = 2026-01-10
channel = "nightly"
index = "multi-arch"
gates = ["device"]
targets = ["gfx942"]
version = "0.10.2"
"""


def test_load_policy_selects_bypasses_of_channel_and_index(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        POLICY_FILE.read_text() + ENTRY + ENTRY.replace('reason = "why not"', "")
    )
    policy = load_policy("multi-arch", channel="nightly", file=path)
    assert [entry.reason for entry in policy.bypasses] == ["why not"]
    assert policy.void == ("Bypass 2 of the policy is void: missing key reason.",)
    assert load_policy("multi-arch", channel="release", file=path).bypasses == ()
    assert load_policy("gfx94X-dcgpu", channel="nightly", file=path).bypasses == ()
