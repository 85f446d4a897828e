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


@pytest.mark.parametrize(("settings", "required"), [({"size": "small"}, "'large'"), ({"platform": "cpu"}, "'rocm'")])
def test_release_blocks_other_size_or_platform(settings: dict[str, str], required: str) -> None:
    made, policy = set_for("gfx950-dcgpu", "gfx950"), shipped("gfx950-dcgpu", "release")
    word = judge(made, of_device(passing_evidence(made, policy), "gfx950", **settings), policy)
    ((name, value),) = settings.items()
    assert word.blocked_by[0] == f"The gate device for gfx950 ran with {name} {value!r}; {required} is required."


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
def test_multi_arch_set_for_one_target_is_blocked(channel: str) -> None:
    made, policy = set_for("multi-arch", "gfx942"), shipped("multi-arch", channel)
    word = judge(made, passing_evidence(made, policy), policy)
    missing = [target for target in policy.required_targets if target != "gfx942"]
    assert "gfx950" in missing
    assert word.blocked_by == tuple(
        f"The set is not for {target}, which the index multi-arch must have." for target in missing
    )


@pytest.mark.parametrize("channel", ["nightly", "release"])
def test_set_of_unknown_index_is_blocked(channel: str) -> None:
    """Such an index has no required targets."""
    made, policy = set_for("gfx94X", "gfx942"), shipped("gfx94X", channel)
    assert policy.required_targets == ()
    assert judge(made, passing_evidence(made, policy), policy).blocked_by == (
        "The index gfx94X is neither multi-arch nor a family, so its required targets are unknown.",
    )


def test_image_is_required_of_every_target() -> None:
    image = f"registry/name@sha256:{'0' * 64}"
    made, policy = set_for("multi-arch", "gfx942", "gfx1151"), shipped("multi-arch", "release")
    rule = policy.gates["device"]
    targets = {name: replace(own, settings={**own.settings, "image": image}) for name, own in rule.targets.items()}
    rule = replace(rule, settings={**rule.settings, "image": image}, targets=targets)
    policy = replace(policy, required_targets=(), gates={**policy.gates, "device": rule})
    good = passing_evidence(made, policy)
    assert judge(made, good, policy).allowed
    for target in made.targets:
        word = judge(made, of_device(good, target, image=image.replace("0", "1")), policy)
        assert f"The gate device for {target} ran with image" in word.blocked_by[0]
