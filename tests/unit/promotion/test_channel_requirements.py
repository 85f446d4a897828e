"""What the project's own policy requires of the tests on GPUs.

Attacks on a set with all other evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.model import Evidence, Verdict, WheelSet
from promotion.evidence.evidence import EvidenceFile
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.policy.verdict import verdict
from tests.support import sets
from tests.support.wheel_sets import passing_evidence

NOW = datetime(2026, 1, 3, tzinfo=UTC)


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


def set_for(index: str, *targets: str) -> WheelSet:
    return sets.wheel_set(index=index, targets=targets)


def judge(
    wheel_set: WheelSet, evidences: Sequence[Evidence], policy: Policy
) -> Verdict:
    return verdict(
        wheel_set,
        [EvidenceFile(evidence=evidence) for evidence in evidences],
        policy,
        now=NOW,
    )


def of_device(
    evidences: Sequence[Evidence], target: str, **settings: str
) -> list[Evidence]:
    """Return the same evidence with other settings of the gate device for a target."""
    return [
        (
            replace(item, settings={**item.settings, **settings})
            if (item.gate, item.target) == ("device", target)
            else item
        )
        for item in evidences
    ]


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
    made = set_for(index, *targets)
    policy = shipped(index, channel)
    assert judge(made, passing_evidence(made, policy), policy).blocked_by == ()


def test_release_blocks_tests_on_one_gpu() -> None:
    made = set_for("gfx94X-dcgpu", "gfx942")
    policy = shipped("gfx94X-dcgpu", "release")
    good = passing_evidence(made, policy)
    single = of_device(good, "gfx942", passes="single")
    assert judge(made, single, policy).blocked_by == (
        (
            "The gate device for gfx942 ran with passes 'single'; 'single multi' is"
            " required."
        ),
        "gfx942 was tested at tier compiled; device is required.",
    )
    nightly = shipped("gfx94X-dcgpu", "nightly")
    assert judge(made, single, nightly).allowed
    # The shards on runners with one GPU stay beside the run on the runner with several.
    assert judge(
        made, [*good, *(item for item in single if item.gate == "device")], policy
    ).allowed
