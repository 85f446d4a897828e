"""The requirements of a channel and an index for a promotion (`policy.toml`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from core.errors import FormatError, RequestError
from core.model import TIER_ORDER, Tier
from core.records import convert, parse_toml
from core.targets import load_table
from promotion.evidence.attestations import AttestationRule, AttestationTable
from promotion.evidence.signing import Signer, public_key
from promotion.index.authority import Authority, LedgerKey, PolicySource
from promotion.policy.bypasses import Bypass, parse_bypasses
from promotion.policy.families import FAMILIES_FILE, load_families
from promotion.policy.gate_rules import (
    GateRule,
    check_image,
    expanded,
    merged,
    with_targets,
)
from promotion.policy.waivers import TABLE as FLAKE_WAIVERS
from promotion.policy.waivers import FlakeWaiver, parse_waivers

POLICY_FILE = Path(__file__).parents[1] / "policy.toml"
LOCAL = "local"
"""The channel of `release --local`."""
BYPASSES = "bypass_tests_for_releases"
EDITION = "policy"
"""The setting of evidence that names the edition of the policy when the gate ran."""

_SCHEMA_VERSION = 2
_T = TypeVar("_T")
_E = TypeVar("_E", Bypass, FlakeWaiver)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The requirements of one index of one channel; see `policy.toml`.

    Attributes:
        sha256: digest of the policy file.
        edition: required edition of evidence.
        max_age_days: maximum age of evidence. None means no limit.
        stale_days: days without a new set after which the index is stale. None means
            never.
        keys: name -> public key whose evidence counts. None means every key.
        unsigned: whether evidence without a signature, or with an unknown key, counts.
        ledger_keys: name -> key that may sign ledger entries. None means every key, and
            unsigned entries.
        protected_refs: patterns of the Git refs from which sets may be promoted, with a
            clean checkout. None means any.
        files: files other than wheels that the set must contain.
        required_targets: gfx targets that the set must be for.
        verified_rocm: whether the checksum of the set's ROCm must have been known
            before its encrypted download.
        python_versions: required Python versions. None means the supported ones that
            the set's JAX release supports.
        sizes: project -> maximum size of its wheels in megabytes (10^6 bytes).
        growth_percent: permitted growth of a wheel since the last promoted set.
        growth_blocks: whether more growth blocks the promotion instead of causing a
            warning.
        attestations: requirements for attestations (PEP 740).
        bypasses: complete bypasses for this channel and index.
        waivers: complete waivers of flaky tests for this channel and index.
        void: a sentence for each void bypass or waiver.
        text: the policy file.
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
    optional_wheels: tuple[str, ...]
    pins: tuple[str, ...]
    files: tuple[str, ...]
    required_targets: tuple[str, ...]
    device_members: Mapping[str, tuple[str, ...]]
    max_age_days: int | None
    stale_days: int | None
    keys: Mapping[str, str] | None
    unsigned: bool
    ledger_keys: Mapping[str, LedgerKey] | None
    protected_refs: tuple[str, ...] | None
    sizes: Mapping[str, int]
    growth_percent: int
    growth_blocks: bool
    gates: Mapping[str, GateRule]
    attestations: AttestationRule
    verified_rocm: bool = False
    bypasses: tuple[Bypass, ...] = ()
    waivers: tuple[FlakeWaiver, ...] = ()
    void: tuple[str, ...] = ()
    text: str = ""

    def authority(
        self, signer: Signer | None = None, source: PolicySource | None = None
    ) -> Authority:
        """Return the authority of this policy over a ledger.

        Args:
            signer: signer of new entries.
            source: checkout of the policy. Its owner and reason are dropped if the
                policy accepts it anyway.
        """
        if source and not source.problem(self.protected_refs):
            source = replace(source, owner="", reason="")
        return Authority(
            channel=self.channel,
            keys=self.ledger_keys,
            signer=signer,
            policy=self.text,
            source=source,
        )

    def required_tier(self, target: str) -> Tier:
        """Return the required tier of a gfx target.

        An entry without features applies to all features.
        """
        return self.tiers.get(
            target, self.tiers.get(target.partition(":")[0], self.tier)
        )


_SAME = (
    "tier",
    "tiers",
    "pythons",
    "wheels",
    "wheels_per_python",
    "optional_wheels",
    "pins",
    "files",
    "sizes",
    "verified_rocm",
    "device_members",
)
"""Fields of the file that a Policy has with the same values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Growth:
    """Permitted growth of a wheel."""

    percent: int
    verdict: Literal["warn", "block"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _EvidenceTable:
    """Values of the file that decide which evidence counts."""

    max_age_days: int | Literal["any"]
    keys: Mapping[str, str] | Literal["any"]
    unsigned: bool
    gates: Mapping[str, GateRule]


@dataclass(frozen=True, kw_only=True, slots=True)
class _PolicyTable(_EvidenceTable):
    """Values of the file for one channel and index; `policy.toml` documents them."""

    tier: Tier
    tiers: Mapping[str, Tier]
    pythons: int
    python_versions: tuple[str, ...] | Literal["supported"]
    wheels: tuple[str, ...]
    wheels_per_python: tuple[str, ...]
    optional_wheels: tuple[str, ...]
    pins: tuple[str, ...]
    files: tuple[str, ...]
    device_members: Mapping[str, tuple[str, ...]]
    required_targets: tuple[str, ...]
    sizes: Mapping[str, int]
    growth: _Growth
    stale_days: int | Literal["any"]
    ledger_keys: Mapping[str, str | LedgerKey] | Literal["any"]
    protected_refs: tuple[str, ...] | Literal["any"]
    verified_rocm: bool
    attestations: AttestationTable

    def __post_init__(self) -> None:
        for tier in (self.tier, *self.tiers.values()):
            if tier not in TIER_ORDER:
                raise ValueError(f"{tier} is not a tier of a gfx target")


def load_policy(
    index: str,
    *,
    channel: str = LOCAL,
    file: Path = POLICY_FILE,
    families: Path = FAMILIES_FILE,
) -> Policy:
    """Load the policy of an index, including its waivers, and the bypasses in `families.toml`.

    Raises:
        RequestError: the channel is unknown.
        FormatError: a field is missing, unknown or invalid.
    """
    data, channels = _read(file)
    if channel not in channels:
        raise RequestError(
            f"{file.name} has no channel {channel!r}.",
            hint=f"Give one of {', '.join(channels)}.",
        )
    bypasses, void = parse_bypasses(channels.get(BYPASSES, ()))
    waivers, void_waivers = parse_waivers(channels.get(FLAKE_WAIVERS, ()))
    bypasses += load_families(families).bypasses
    source = f"{file}: [{channel}]"
    values = _values(channels, channel, index, source)
    table = convert(values, _PolicyTable, source)
    return Policy(
        channel=channel,
        sha256=hashlib.sha256(data).hexdigest(),
        text=data.decode(),
        edition=channels["edition"],
        bypasses=_selected(bypasses, channel, index),
        waivers=_selected(waivers, channel, index),
        void=(*void, *void_waivers),
        **_rules_for_evidence(table, source),
        **_other_rules(table, index, source),
    )


def _selected(entries: Iterable[_E], channel: str, index: str) -> tuple[_E, ...]:
    """Return the entries for a channel and an index."""
    place = (channel, index)
    return tuple(entry for entry in entries if (entry.channel, entry.index) == place)


def channel_names(file: Path = POLICY_FILE) -> tuple[str, ...]:
    """Return the names of all channels."""
    return tuple(
        name for name, values in _read(file)[1].items() if isinstance(values, dict)
    )


def edition(file: Path = POLICY_FILE) -> str:
    """Return the edition of the policy for the settings of evidence."""
    return str(_read(file)[1]["edition"])


def load_waivers(file: Path = POLICY_FILE) -> tuple[FlakeWaiver, ...]:
    """Return the complete waivers of flaky tests of all channels and indexes."""
    return parse_waivers(_read(file)[1].get(FLAKE_WAIVERS, ()))[0]


def device_members_digest(file: Path = POLICY_FILE) -> str:
    """Return the SHA-256 of the device members of all channels and indexes."""
    tables = []
    for values in _read(file)[1].values():
        if not isinstance(values, dict):
            continue
        members = {"": values.get("device_members", {})}
        for name, more in values.get("index", {}).items():
            members[name] = more.get("device_members", {})
        tables.append(members)
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def with_recorded_rules(policy: Policy, index: str, text: str) -> Policy:
    """Return a policy with the rules for evidence in an older text of its file.

    Raises:
        ValueError: the text has no rules for the policy's channel, or they are invalid.
    """
    source = "its policy"
    try:
        tables = _parse(text.encode(), source)
        values = _values(tables, policy.channel, index, source)
        # The text may have or lack other keys than this version.
        known = {field.name: values.get(field.name) for field in fields(_EvidenceTable)}
        rules = _rules_for_evidence(convert(known, _EvidenceTable, source), source)
    except FormatError as error:
        raise ValueError(error.message) from error
    waivers, _ = parse_waivers(tables.get(FLAKE_WAIVERS, ()))
    return replace(
        policy,
        edition=tables["edition"],
        waivers=_selected(waivers, policy.channel, index),
        **rules,
    )


def _read(file: Path) -> tuple[bytes, Mapping[str, Any]]:
    """Return the bytes of a policy file and its tables."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FormatError(f"{file} cannot be read: {error.strerror}.") from error
    return data, _parse(data, str(file))


@lru_cache(maxsize=8)
def _parse(data: bytes, source: str) -> Mapping[str, Any]:
    # Parsing takes most of the time of `load_policy`, and commands load the policies of
    # all channels.
    tables = parse_toml(data, dict[str, Any], source, schema=_SCHEMA_VERSION)
    convert(tables.get("edition"), int, f"{source}: edition")
    return tables


def _values(
    tables: Mapping[str, Any], channel: str, index: str, source: str
) -> dict[str, Any]:
    """Return the values of a channel and an index, with those that they inherit.

    Raises:
        FormatError: a table is missing or no table.
    """
    try:
        values = _inherited(tables, channel, ())
        values = merged(values, values.pop("index", {}).get(index, {}))
        gates = {name: with_targets(rule) for name, rule in values["gates"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = "missing key " if isinstance(error, KeyError) else ""
        raise FormatError(f"{source}: {missing}{error}.") from error
    return {**values, "gates": gates}


def _inherited(
    channels: Mapping[str, Any], channel: str, seen: tuple[str, ...]
) -> dict[str, Any]:
    """Return the values of a channel merged over those of its base channel."""
    if channel in seen:
        raise ValueError(f"the channel {channel} inherits from itself")
    own = dict(channels[channel])
    like = own.pop("like", None)
    return (
        own
        if like is None
        else merged(_inherited(channels, like, (*seen, channel)), own)
    )


def _other_rules(table: _PolicyTable, index: str, source: str) -> dict[str, Any]:
    """Return the fields of a Policy that do not decide which evidence counts."""
    python_versions = table.python_versions
    required: list[str] = []
    for word in table.required_targets:
        required += load_table().families.get(index, ()) if word == "index" else [word]
    try:
        ledger_keys = _ledger_keys(table.ledger_keys)
        required_targets = expanded(required)
        for word in table.tiers:
            if expanded([word]) != (word,):
                raise ValueError(f"tiers: {word} is not a gfx target")
    except ValueError as error:
        raise FormatError(f"{source}: {error}.") from error
    same = {name: getattr(table, name) for name in _SAME}
    return {
        **same,
        "python_versions": None if python_versions == "supported" else python_versions,
        "stale_days": _limit(table.stale_days),
        "ledger_keys": ledger_keys,
        "protected_refs": _limit(table.protected_refs),
        "growth_percent": table.growth.percent,
        "growth_blocks": table.growth.verdict == "block",
        "attestations": table.attestations.rule,
        "required_targets": required_targets,
    }


def _rules_for_evidence(table: _EvidenceTable, source: str) -> dict[str, Any]:
    """Return the fields of a Policy that decide which evidence counts."""
    keys = _limit(table.keys)
    try:
        if keys is not None:
            keys = {name: public_key(text) for name, text in keys.items()}
        for name, rule in table.gates.items():
            check_image(name, rule)
    except ValueError as error:
        raise FormatError(f"{source}: {error}.") from error
    return {
        "keys": keys,
        "unsigned": table.unsigned,
        "max_age_days": _limit(table.max_age_days),
        "gates": table.gates,
    }


def _limit(value: _T | Literal["any"]) -> _T | None:
    """Return a value of the policy; None for `any`."""
    return None if value == "any" else value


def _ledger_keys(
    keys: Mapping[str, str | LedgerKey] | Literal["any"],
) -> dict[str, LedgerKey] | None:
    """Return the keys in their normal form; ValueError for an invalid one."""
    if keys == "any":
        return None
    normal = {}
    for name, value in keys.items():
        key = LedgerKey(key=value) if isinstance(value, str) else value
        normal[name] = replace(key, key=public_key(key.key))
    return normal
