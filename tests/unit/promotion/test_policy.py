"""The policy file."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from ci_build.cli.options.shared_options import CHANNELS
from core.errors import FormatError, RequestError
from core.model import Tier
from core.targets import expand, load_table
from promotion.evidence.signing import Signer
from promotion.policy.families import load_families
from promotion.policy.gate_rules import EvidenceKey, GateRule, at_least
from promotion.policy.promotion_policy import (
    POLICY_FILE,
    device_members_digest,
    gate_version,
    load_policy,
)
from promotion.policy.set_rules import missing_targets, unused_targets
from tests.support.signing_key import signing_key

POLICY = load_policy("multi-arch")
KEY = Signer(signing_key().encode(), origin="tests").key


def test_generic_targets_cover_their_targets() -> None:
    assert missing_targets(("gfx9-4-generic",), ("gfx942", "gfx950")) == ()
    assert missing_targets(("gfx9-4-generic",), ("gfx942", "gfx1100")) == ("gfx1100",)
    assert unused_targets(("gfx9-4-generic", "gfx1100"), ("gfx942",)) == ("gfx1100",)
    assert missing_targets((), ("gfx942",)) == ("gfx942",)


# The file


def policy_file(tmp_path: Path, old: str, new: str) -> Path:
    text = POLICY_FILE.read_text()
    assert old in text
    path = tmp_path / "policy.toml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema = 2", "schema = 1"),
        ("tiers = {}", 'tiers = { gfx942 = "rumour" }'),
        ("tiers = {}", 'tiers = { "gfx94X-dcgpu" = "device" }'),
        ("tiers = {}", 'tiers = { gfx942 = "cpu" }'),
        ("[local]", '[local]\nlike = "local"'),
        ("[local]", "[other]\ngates = 5\n\n[local]"),
        (
            'ledger_keys = "any"',
            f'ledger_keys = {{ ci = {{ key = "{KEY}", expires = "soon" }} }}',
        ),
        ('ledger_keys = "any"', "ledger_keys = { ci = 7 }"),
        ('keys = "any"', 'keys = { ci = "ssh-rsa AAAA" }'),
        ('trust = "any", identities', 'trust = "some", identities'),
        ('identities = "any"', 'identities = { ci = { issuer = "x" } }'),
        ('tier = "structure"', 'tier = "rumour"'),
        ("unsigned = true", "unsigned = true\nsurprise = ['x']"),
        ('min_passed = "wheels"', 'min_passed = "some"'),
        ("max_skipped = 100", "max_skipped = 101"),
        (
            "max_skipped = 100",
            'max_skipped = 100\ntargets = { gfx942 = { tier = "device" } }',
        ),
        (
            "max_skipped = 100",
            "max_skipped = 100\ntargets = { gfx1 = { min_passed = 1 } }",
        ),
        ("required_targets = []", 'required_targets = ["gfx1"]'),
        ("[local.gates.install]", "[local.gates.install"),
    ],
)
def test_load_policy_refuses_invalid_file(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(FormatError, match=r"policy\.toml"):
        load_policy("multi-arch", file=policy_file(tmp_path, old, new))


def test_key_may_be_limited_to_gates_and_targets(tmp_path: Path) -> None:
    key = Signer(signing_key().encode(), origin="tests").key
    limited = f'{{ key = "{key}", gates = ["device"], targets = ["gfx94X-dcgpu"] }}'
    keys = f'keys = {{ all = "{key}", runner = {limited} }}'
    policy = load_policy("multi-arch", file=policy_file(tmp_path, 'keys = "any"', keys))
    assert policy.keys == {
        "all": EvidenceKey(key=key),
        "runner": EvidenceKey(key=key, gates=("device",), targets=("gfx942",)),
    }
    runner = policy.keys["runner"]
    assert runner.may_sign("device", "gfx942:xnack-")
    assert not runner.may_sign("device", "gfx950")
    assert not runner.may_sign("abi", "any")
    with pytest.raises(FormatError, match="gfx1"):
        load_policy(
            "multi-arch",
            file=policy_file(
                tmp_path, 'keys = "any"', keys.replace("gfx94X-dcgpu", "gfx1")
            ),
        )


def test_load_policy_refuses_unknown_channel() -> None:
    with pytest.raises(RequestError, match="no channel 'staging'"):
        load_policy("multi-arch", channel="staging")


@pytest.mark.parametrize("channel", CHANNELS)
def test_policy_file_has_every_channel(channel: str) -> None:
    assert load_policy("multi-arch", channel=channel).channel == channel
    assert load_policy("", channel=channel).channel == channel, (
        "without an index, as `set attest --verify WHEEL` reads it"
    )


INDEXES = ["multi-arch", *sorted(load_table().families)]


@pytest.mark.parametrize("index", INDEXES)
def test_release_requires_at_least_nightly(index: str) -> None:
    nightly, release = (
        load_policy(index, channel=channel) for channel in ("nightly", "release")
    )
    targets = [str(target) for target in load_table().targets]
    assert all(
        at_least(release.required_tier(target), nightly.required_tier(target))
        for target in targets
    )
    assert {*release.required_targets} >= {*nightly.required_targets}
    for name, rule, own in [
        (name, rule.of(target), release.gates[name].of(target))
        for (name, rule), target in product(nightly.gates.items(), ("any", *targets))
    ]:
        if isinstance(own.min_passed, int) and isinstance(rule.min_passed, int):
            assert own.min_passed >= rule.min_passed
        else:
            assert own.min_passed == rule.min_passed
        assert own.max_skipped <= rule.max_skipped
        assert _known(own) <= _known(rule)
        assert rule.settings.items() <= own.settings.items(), name
    assert release.unsigned is False
    assert (release.keys is None) is False
    assert release.excepted == ()


def _known(rule: GateRule) -> int:
    return (
        rule.known_failures
        if isinstance(rule.known_failures, int)
        else len(rule.known_failures)
    )


def test_load_policy_merges_values_of_targets(tmp_path: Path) -> None:
    """A setting holds for every target, and a target's own values keep those of its family."""
    path = policy_file(
        tmp_path,
        'settings = { size = "large" }',
        'settings = { size = "large", also = "x" }',
    )
    more = '\n[release.index."multi-arch".gates.device.targets]\ngfx942 = { min_passed = 2000 }\n'
    path.write_text(path.read_text() + more)
    rules, other = (
        load_policy(name, channel="release", file=path).gates["device"]
        for name in ("multi-arch", "gfx90a")
    )
    common = {"platform": "rocm", "also": "x"}
    assert rules.of("gfx942").settings == {
        **common,
        "size": "large",
        "passes": "single multi",
    }
    assert rules.of("gfx942").min_passed == 2000
    assert other.of("gfx942").min_passed == 1000
    assert (
        rules.of("gfx1100").settings
        == other.of("gfx1100").settings
        == {**common, "size": ""}
    )
    assert rules.of("gfx950").settings == {**common, "size": "large"}
    # The single target comes first here, and still wins over its family.
    path.write_text(
        POLICY_FILE.read_text()
        + "\n[nightly.index.gfx906.gates.device.targets]\ndgpu-all.min_passed = 7\n"
    )
    device = load_policy("gfx906", channel="nightly", file=path).gates["device"]
    assert device.of("gfx906").min_passed == 450
    assert device.of("gfx1010").min_passed == 7


@pytest.mark.parametrize("channel", ["nightly", "release"])
def test_policy_requires_device_tests_only_of_targets_with_runners(
    channel: str,
) -> None:
    """A set for all default targets can be promoted without an exception."""
    policy = load_policy("multi-arch", channel=channel)
    families = load_families()
    required = [
        target
        for target in expand("default")
        if policy.required_tier(str(target)) is Tier.DEVICE
    ]
    tested = [
        target
        for target in required
        if (one := families.of_target(target)) and (one.single or one.multi)
    ]
    assert {"gfx942", "gfx950"} <= {*map(str, required)}
    assert tested == required


def test_gate_inputs_include_device_members_not_exceptions(tmp_path: Path) -> None:
    assert (gate_version("load"), gate_version("device-cpu"), gate_version("x")) == (
        "1",
        "1",
        "0",
    )
    more = tmp_path / "policy.toml"
    more.write_text(POLICY_FILE.read_text() + "\n[[exceptions]]\n")
    assert device_members_digest(more) == device_members_digest()
    other = policy_file(tmp_path, "_linalg.so", "_rnn.so")
    assert device_members_digest(other) != device_members_digest()
