"""What the project's own policy requires of the tests on GPUs: attacks on a set with all other evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.model import Evidence, Tier, Verdict, WheelSet
from promotion.evidence.evidence import EvidenceFile
from promotion.policy.policy import Policy, load_policy
from promotion.policy.verdict import verdict
from tests.support import sets
from tests.support.wheel_sets import passing_evidence

NOW = datetime(2026, 1, 3, tzinfo=UTC)


def shipped(index: str, channel: str) -> Policy:
    """Return the project's policy without the requirements that generated sets do not meet."""
    policy = load_policy(index, channel=channel)
    return replace(
        policy, keys=None, unsigned=True, files=(), device_members={}, verified_rocm=False, python_versions=()
    )


def set_for(index: str, *targets: str) -> WheelSet:
    return sets.wheel_set(index=index, targets=targets)


def judge(wheel_set: WheelSet, evidences: Sequence[Evidence], policy: Policy) -> Verdict:
    return verdict(wheel_set, [EvidenceFile(evidence=evidence) for evidence in evidences], policy, now=NOW)


def of_device(evidences: Sequence[Evidence], target: str, **settings: str) -> list[Evidence]:
    """Return the same evidence with other settings of the gate device for a target."""
    return [
        replace(item, settings={**item.settings, **settings})
        if (item.gate, item.target) == ("device", target)
        else item
        for item in evidences
    ]


@pytest.mark.parametrize("channel", ["nightly", "release"])
@pytest.mark.parametrize(
    ("index", "targets"),
    [("gfx94X-dcgpu", ("gfx942",)), ("gfx950-dcgpu", ("gfx950",)), ("gfx1151", ("gfx1151",))],
)
def test_set_with_required_evidence_is_allowed(index: str, targets: tuple[str, ...], channel: str) -> None:
    """Also for targets without a runner of several GPUs, and for families that run only the smoke suite."""
    made, policy = set_for(index, *targets), shipped(index, channel)
    assert judge(made, passing_evidence(made, policy), policy).blocked_by == ()


def test_release_blocks_tests_on_one_gpu() -> None:
    made, policy = set_for("gfx94X-dcgpu", "gfx942"), shipped("gfx94X-dcgpu", "release")
    good = passing_evidence(made, policy)
    single = of_device(good, "gfx942", passes="single")
    assert judge(made, single, policy).blocked_by == (
        "The gate device for gfx942 ran with passes 'single'; 'single multi' is required.",
        "gfx942 was tested at tier compiled; device is required.",
    )
    nightly = shipped("gfx94X-dcgpu", "nightly")
    assert judge(made, single, nightly).allowed
    # The shards on runners with one GPU stay beside the run on the runner with several.
    assert judge(made, [*good, *(item for item in single if item.gate == "device")], policy).allowed


@pytest.mark.parametrize("channel", ["nightly", "release"])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_evidence_of_other_platforms_is_blocked(platform: str, channel: str) -> None:
    """As the gate writes it, and with the name and the tier of evidence for ROCm."""
    made, policy = set_for("gfx950-dcgpu", "gfx950"), shipped("gfx950-dcgpu", channel)
    good = passing_evidence(made, policy)
    rest = [item for item in good if item.gate != "device"]
    (device,) = (item for item in good if item.gate == "device")
    own = replace(device, gate=f"device-{platform}", target="any", tier=Tier(platform))
    word = judge(made, [*rest, own], policy)
    assert "The gate device for gfx950 has not run on this set." in word.blocked_by
    word = judge(made, [*rest, replace(device, settings={**device.settings, "platform": platform})], policy)
    assert f"The gate device for gfx950 ran with platform '{platform}'; 'rocm' is required." in word.blocked_by
    assert word.tiers == {"gfx950": "compiled"}


@pytest.mark.parametrize("channel", ["nightly", "release"])
def test_set_of_unknown_index_is_blocked(channel: str) -> None:
    """Such an index has no required targets."""
    made, policy = set_for("gfx94X", "gfx942"), shipped("gfx94X", channel)
    assert policy.required_targets == ()
    assert judge(made, passing_evidence(made, policy), policy).blocked_by == (
        "The index gfx94X is neither multi-arch nor a family, so its required targets are unknown.",
    )
