"""The requirements of a channel and an index for a promotion (`policy.toml`)."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import CiBuildError, RequestError
from core.model import TIER_ORDER, Tier, WheelSet
from core.targets import expand, lists, load_table
from promotion.evidence.attestations import AttestationRule, parse_rule
from promotion.evidence.evidence import ANY
from promotion.evidence.signing import public_key
from promotion.policy.bypasses import Bypass, parse_bypasses, whole_number
from promotion.policy.families import FAMILIES_FILE, GATE, IMAGE, load_families
from promotion.policy.waivers import TABLE as FLAKE_WAIVERS
from promotion.policy.waivers import FlakeWaiver, parse_waivers

POLICY_FILE = Path(__file__).parents[1] / "policy.toml"
LOCAL = "local"
"""The channel of `release --local`."""
BYPASSES = "bypass_tests_for_releases"
EDITION = "policy"
"""The setting of evidence that names the edition of the policy when the gate ran."""

_SCHEMA_VERSION = 2
_MOST_DAYS = 36_500
_FOR_TARGETS = {"min_passed", "may_skip", "known_failures", "settings"}
"""Requirements of a gate that may differ between targets."""
_SUPPORTED = "supported"
"""Value of python_versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRule:
    """The requirements for one gate; see `policy.toml`.

    Attributes:
        targets: gfx target -> the requirements for this target instead.
    """

    tier: Tier
    per: str
    min_passed: int | str
    may_skip: bool
    known_failures: int | tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, GateRule] = field(default_factory=dict)

    def of(self, target: str) -> GateRule:
        """Return the requirements for a gfx target."""
        return self.targets.get(target.partition(":")[0], self)

    def __post_init__(self) -> None:
        least, known_failures = self.min_passed, self.known_failures
        good = (
            self.per in ("set", "target", "xla-target", "tier")
            and (least in ("wheels", "device-members") or (type(least) is int and least > 0))
            and type(self.may_skip) is bool
            and (
                _is_strings(known_failures)
                if isinstance(known_failures, tuple)
                else type(known_failures) is int and known_failures >= 0
            )
            and _is_strings(tuple(self.settings.values()))
        )
        if not good:
            raise RequestError(
                f"policy.toml has an invalid gate: {self}.", hint="See the comment at the top of the file."
            )

    def about(self, wheel_set: WheelSet, policy: Policy) -> tuple[str, ...]:
        """Return the targets for which the gate needs evidence."""
        match self.per:
            case "set":
                return (ANY,)
            case "target":
                return wheel_set.targets
            case "tier":
                return tuple(
                    target for target in wheel_set.targets if at_least(policy.required_tier(target), self.tier)
                )
            case _:
                accepted = lists()["compiler-supported"]
                return tuple(target for target in wheel_set.targets if target.partition(":")[0] in accepted)

    def least(self, wheel_set: WheelSet) -> int:
        """Return the minimum number of passed checks for each target."""
        match self.min_passed:
            case "wheels":
                return max(1, len(wheel_set.wheels))
            case "device-members":
                return max(1, sum(bool(member.targets) for wheel in wheel_set.wheels for member in wheel.members))
            case int(number):
                return number
            case other:
                raise AssertionError(f"GateRule accepted {other!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The requirements of one index of one channel; see `policy.toml`.

    Attributes:
        sha256: digest of the policy file.
        edition: required edition of evidence.
        max_age_days: maximum age of evidence. None means no limit.
        stale_days: days without a new set after which the index is stale. None means never.
        keys: name -> public key whose evidence counts. None means every key.
        unsigned: whether evidence without a signature, or with an unknown key, counts.
        files: files other than wheels that the set must contain.
        required_targets: gfx targets that the set must be for.
        verified_rocm: whether the checksum of the set's ROCm must have been known before its encrypted download.
        python_versions: required Python versions. None means the supported ones that the set's JAX release supports.
        sizes: project -> maximum size of its wheels in megabytes (10^6 bytes).
        growth_percent: permitted growth of a wheel since the last promoted set.
        growth_blocks: whether more growth blocks the promotion instead of causing a warning.
        attestations: requirements for attestations (PEP 740).
        bypasses: complete bypasses for this channel and index.
        waivers: complete waivers of flaky tests for this channel and index.
        void: a sentence for each void bypass or waiver.
    """

    channel: str
    sha256: str
    edition: int
    tier: Tier
    tiers: Mapping[str, Tier]
    pythons: int
    python_versions: tuple[str, ...] | None
    wheels: tuple[str, ...]
    wheels_per_python: tuple[str, ...]
    pins: tuple[str, ...]
    files: tuple[str, ...]
    required_targets: tuple[str, ...]
    device_members: Mapping[str, tuple[str, ...]]
    max_age_days: int | None
    stale_days: int | None
    keys: Mapping[str, str] | None
    unsigned: bool
    sizes: Mapping[str, int]
    growth_percent: int
    growth_blocks: bool
    gates: Mapping[str, GateRule]
    attestations: AttestationRule
    verified_rocm: bool = False
    bypasses: tuple[Bypass, ...] = ()
    waivers: tuple[FlakeWaiver, ...] = ()
    void: tuple[str, ...] = ()

    def required_tier(self, target: str) -> Tier:
        """Return the required tier of a gfx target."""
        return self.tiers.get(target, self.tier)


def at_least(tier: Tier | None, required: Tier) -> bool:
    """Return whether a tier is at least as strong as `required`; a tier outside of TIER_ORDER matches only itself."""
    if tier not in TIER_ORDER or required not in TIER_ORDER:
        return tier is required
    return TIER_ORDER.index(tier) >= TIER_ORDER.index(required)


def load_policy(
    index: str, *, channel: str = LOCAL, file: Path = POLICY_FILE, families: Path = FAMILIES_FILE
) -> Policy:
    """Load the policy of an index, including its waivers, and the bypasses in `families.toml`.

    Raises:
        RequestError: the channel is unknown, or a field is missing, unknown or invalid.
    """
    data, channels = _read(file)
    if channel not in channels:
        raise RequestError(f"{file.name} has no channel {channel!r}.", hint=f"Give one of {', '.join(channels)}.")
    try:
        edition = whole_number(channels.pop("edition"), least=1)
        bypasses, void = parse_bypasses(channels.pop(BYPASSES, ()))
        waivers, void_waivers = parse_waivers(channels.pop(FLAKE_WAIVERS, ()))
        values = _inherited(channels, channel, ())
        values = _merged(values, values.pop("index", {}).get(index, {}))
        return Policy(
            channel=channel,
            sha256=hashlib.sha256(data).hexdigest(),
            edition=edition,
            bypasses=tuple(
                entry
                for entry in (*bypasses, *load_families(families).bypasses)
                if (entry.channel, entry.index) == (channel, index)
            ),
            waivers=tuple(entry for entry in waivers if (entry.channel, entry.index) == (channel, index)),
            void=(*void, *void_waivers),
            **_parsed(values, index),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{file} is invalid: {error}.", hint="See the comment at the top of the file.") from error


def edition(file: Path = POLICY_FILE) -> str:
    """Return the edition of the policy for the settings of evidence."""
    return str(_read(file)[1]["edition"])


def load_waivers(file: Path = POLICY_FILE) -> tuple[FlakeWaiver, ...]:
    """Return the complete waivers of flaky tests of all channels and indexes."""
    return parse_waivers(_read(file)[1].get(FLAKE_WAIVERS, ()))[0]


def device_members_digest(file: Path = POLICY_FILE) -> str:
    """Return the SHA-256 of the device members of all channels and indexes, which the coverage gate reads."""
    tables = [
        {"": values.get("device_members", {})}
        | {name: more.get("device_members", {}) for name, more in values.get("index", {}).items()}
        for values in _read(file)[1].values()
        if isinstance(values, dict)
    ]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        data = file.read_bytes()
        tables = tomllib.loads(data.decode())
        if tables.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        whole_number(tables["edition"], least=1)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise RequestError(f"{file} is invalid: {error}.", hint="See the comment at the top of the file.") from error
    return data, tables


def _inherited(channels: Mapping[str, Any], channel: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of a channel merged over those of its base channel."""
    if channel in seen:
        raise ValueError(f"the channel {channel} inherits from itself")
    own = dict(channels[channel])
    like = own.pop("like", None)
    return own if like is None else _merged(_inherited(channels, like, (*seen, channel)), own)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; other values are replaced."""
    both = {
        key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in over.items()
    }
    return {**base, **both}


def _parsed(values: dict[str, Any], index: str) -> dict[str, Any]:
    """Return the fields of a Policy; every key that is not parsed by name must be a list of strings."""
    keys, alarm, python_versions = values.pop("keys"), values.pop("growth"), values.pop("python_versions")
    if set(alarm) != {"percent", "verdict"} or alarm["verdict"] not in ("warn", "block"):
        raise ValueError(f"growth must have a percent and a verdict of warn or block, not {alarm!r}")
    switches = {name: values.pop(name) for name in ("unsigned", "verified_rocm")}
    for name, switch in switches.items():
        if type(switch) is not bool:
            raise ValueError(f"{name} must be true or false, not {switch!r}")
    return {
        "tier": _target_tier(values.pop("tier")),
        "tiers": {target: _target_tier(tier) for target, tier in values.pop("tiers").items()},
        "python_versions": None if python_versions == _SUPPORTED else _strings(python_versions),
        "pythons": whole_number(values.pop("pythons"), least=1),
        "device_members": {name: _strings(paths) for name, paths in values.pop("device_members").items()},
        **{
            name: None if (days := values.pop(name)) == "any" else whole_number(days, least=1, most=_MOST_DAYS)
            for name in ("max_age_days", "stale_days")
        },
        "keys": None if keys == "any" else {name: public_key(text) for name, text in keys.items()},
        **switches,
        "sizes": {project: whole_number(size, least=1) for project, size in values.pop("sizes").items()},
        "growth_percent": whole_number(alarm["percent"], least=0),
        "growth_blocks": alarm["verdict"] == "block",
        "attestations": parse_rule(values.pop("attestations")),
        "gates": {name: _check_image(name, _gate(rule)) for name, rule in values.pop("gates").items()},
        "required_targets": _expanded(
            target
            for word in _strings(values.pop("required_targets"))
            for target in (_targets_of_index(index) if word == "index" else (word,))
        ),
        **{name: _strings(listed) for name, listed in values.items()},
    }


def _check_image(name: str, rule: GateRule) -> GateRule:
    """Return a rule; ValueError if it requires an image without a digest, or of a gate that runs in no image."""
    for one in (rule, *rule.targets.values()):
        image = one.settings.get("image", "")
        if image and (name != GATE or not IMAGE.fullmatch(image)):
            raise ValueError(f"settings of the gate {name} has the image {image!r}; only {GATE} has one: NAME@sha256:…")
    return rule


def _targets_of_index(index: str) -> tuple[str, ...]:
    """Return the targets of an index's family."""
    families = load_table().families
    if index not in families:
        raise ValueError(f"required_targets names the targets of the index {index}, which is not a family")
    return tuple(families[index])


def _gate(rule: Mapping[str, Any]) -> GateRule:
    known_failures, exceptions = rule["known_failures"], rule.get("targets", {})
    common = {name: value for name, value in rule.items() if name != "targets"}
    if misplaced := {name for changes in exceptions.values() for name in changes} - _FOR_TARGETS:
        raise ValueError(f"{', '.join(sorted(misplaced))} cannot differ between the targets of a gate")
    by_target: dict[str, dict[str, Any]] = {}
    # The values of a target replace those of its family.
    for word in sorted(exceptions, key=lambda word: len(_expanded([word])), reverse=True):
        for target in _expanded([word]):
            by_target[target] = _merged(by_target.get(target, common), exceptions[word])
    return GateRule(
        **{
            **common,
            "tier": Tier(rule["tier"]),
            "known_failures": _strings(known_failures) if isinstance(known_failures, list) else known_failures,
            "targets": {target: _gate(values) for target, values in by_target.items()},
        }
    )


def _expanded(words: Iterable[str]) -> tuple[str, ...]:
    """Return the gfx targets of a list of targets and families."""
    listed = [*words]
    try:
        return tuple(map(str, expand(listed))) if listed else ()
    except CiBuildError as error:
        raise ValueError(error.message) from error


def _target_tier(text: str) -> Tier:
    """Parse the required tier of a gfx target."""
    if (tier := Tier(text)) not in TIER_ORDER:
        raise ValueError(f"{text} is not a tier of a gfx target")
    return tier


def _strings(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any value of TOML
    if not isinstance(value, list) or not _is_strings(tuple(value)):
        raise ValueError(f"{value!r} is not a list of strings")
    return tuple(value)


def _is_strings(values: tuple[Any, ...]) -> bool:
    return all(isinstance(item, str) for item in values)
