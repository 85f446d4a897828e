"""The requirements of a channel and an index for a promotion (`policy.toml`)."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.errors import RequestError
from core.model import TIER_ORDER, Tier
from core.targets import load_table
from promotion.evidence.attestations import AttestationRule, parse_rule
from promotion.evidence.signing import Signer, public_key
from promotion.index.authority import Authority, LedgerKey, PolicySource
from promotion.policy.bypasses import Bypass, parse_bypasses, whole_number
from promotion.policy.families import FAMILIES_FILE, load_families
from promotion.policy.gate_rules import GateRule, expanded, merged, parse_gate, strings
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
_SUPPORTED = "supported"
"""Value of python_versions."""


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


def load_policy(
    index: str,
    *,
    channel: str = LOCAL,
    file: Path = POLICY_FILE,
    families: Path = FAMILIES_FILE,
) -> Policy:
    """Load the policy of an index, including its waivers, and the bypasses in `families.toml`.

    Raises:
        RequestError: the channel is unknown, or a field is missing, unknown or invalid.
    """
    data, channels = _read(file)
    if channel not in channels:
        raise RequestError(
            f"{file.name} has no channel {channel!r}.",
            hint=f"Give one of {', '.join(channels)}.",
        )
    try:
        edition = whole_number(channels.pop("edition"), least=1)
        bypasses, void = parse_bypasses(channels.pop(BYPASSES, ()))
        waivers, void_waivers = parse_waivers(channels.pop(FLAKE_WAIVERS, ()))
        values = _inherited(channels, channel, ())
        values = merged(values, values.pop("index", {}).get(index, {}))
        return Policy(
            channel=channel,
            sha256=hashlib.sha256(data).hexdigest(),
            text=data.decode(),
            edition=edition,
            bypasses=tuple(
                entry
                for entry in (*bypasses, *load_families(families).bypasses)
                if (entry.channel, entry.index) == (channel, index)
            ),
            waivers=tuple(
                entry
                for entry in waivers
                if (entry.channel, entry.index) == (channel, index)
            ),
            void=(*void, *void_waivers),
            **_parsed(values, index),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(
            f"{file} is invalid: {error}.",
            hint="See the comment at the top of the file.",
        ) from error


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
    tables = [
        {"": values.get("device_members", {})}
        | {
            name: more.get("device_members", {})
            for name, more in values.get("index", {}).items()
        }
        for values in _read(file)[1].values()
        if isinstance(values, dict)
    ]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def with_recorded_rules(policy: Policy, index: str, text: str) -> Policy:
    """Return a policy with the rules for evidence in an older text of its file.

    Raises:
        ValueError: the text has no rules for the policy's channel, or they are invalid.
    """
    try:
        tables = _tables(text.encode())
        values = _inherited(tables, policy.channel, ())
        values = merged(values, values.pop("index", {}).get(index, {}))
        waivers, _ = parse_waivers(tables.get(FLAKE_WAIVERS, ()))
        return replace(
            policy,
            edition=tables["edition"],
            waivers=tuple(
                one
                for one in waivers
                if (one.channel, one.index) == (policy.channel, index)
            ),
            **_rules_for_evidence(values),
        )
    except (KeyError, TypeError, AttributeError, RequestError) as error:
        raise ValueError(f"its policy is invalid: {error}") from error


def _read(file: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        data = file.read_bytes()
        return data, _tables(data)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise RequestError(
            f"{file} is invalid: {error}.",
            hint="See the comment at the top of the file.",
        ) from error


def _tables(data: bytes) -> dict[str, Any]:
    """Return the tables of a policy file, which the caller may change."""
    return deepcopy(_parse(data))


@lru_cache(maxsize=8)
def _parse(data: bytes) -> dict[str, Any]:
    # Parsing takes most of the time of `load_policy`, and commands load the policies of
    # all channels.
    tables = tomllib.loads(data.decode())
    if tables.pop("schema") != _SCHEMA_VERSION:
        raise ValueError(f"schema is not {_SCHEMA_VERSION}")
    whole_number(tables["edition"], least=1)
    return tables


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


def _parsed(values: dict[str, Any], index: str) -> dict[str, Any]:
    """Return the fields of a Policy.

    Every key that is not parsed by name must be a list of strings.
    """
    alarm = values.pop("growth")
    python_versions = values.pop("python_versions")
    ledger_keys = values.pop("ledger_keys")
    if set(alarm) != {"percent", "verdict"} or alarm["verdict"] not in (
        "warn",
        "block",
    ):
        raise ValueError(
            f"growth must have a percent and a verdict of warn or block, not {alarm!r}"
        )
    return {
        **_rules_for_evidence(values),
        "tier": _target_tier(values.pop("tier")),
        "tiers": {
            _target(word): _target_tier(tier)
            for word, tier in values.pop("tiers").items()
        },
        "python_versions": (
            None if python_versions == _SUPPORTED else strings(python_versions)
        ),
        "pythons": whole_number(values.pop("pythons"), least=1),
        "device_members": {
            name: strings(paths) for name, paths in values.pop("device_members").items()
        },
        "stale_days": _days(values.pop("stale_days")),
        "ledger_keys": (
            None
            if ledger_keys == "any"
            else {name: _ledger_key(key) for name, key in ledger_keys.items()}
        ),
        "protected_refs": (
            None if (refs := values.pop("protected_refs")) == "any" else strings(refs)
        ),
        "verified_rocm": _switch("verified_rocm", values.pop("verified_rocm")),
        "sizes": {
            project: whole_number(size, least=1)
            for project, size in values.pop("sizes").items()
        },
        "growth_percent": whole_number(alarm["percent"], least=0),
        "growth_blocks": alarm["verdict"] == "block",
        "attestations": parse_rule(values.pop("attestations")),
        "required_targets": expanded(
            target
            for word in strings(values.pop("required_targets"))
            for target in (
                load_table().families.get(index, ()) if word == "index" else (word,)
            )
        ),
        **{name: strings(listed) for name, listed in values.items()},
    }


def _rules_for_evidence(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Policy that decide which evidence counts.

    Their keys are removed from `values`.
    """
    keys = values.pop("keys")
    return {
        "keys": (
            None
            if keys == "any"
            else {name: public_key(text) for name, text in keys.items()}
        ),
        "unsigned": _switch("unsigned", values.pop("unsigned")),
        "max_age_days": _days(values.pop("max_age_days")),
        "gates": {
            name: parse_gate(name, rule) for name, rule in values.pop("gates").items()
        },
    }


def _days(value: object) -> int | None:
    return None if value == "any" else whole_number(value, least=1, most=_MOST_DAYS)


def _switch(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def _ledger_key(value: object) -> LedgerKey:
    """Parse a key, or a table with a key and the date on which it expires."""
    table = {"key": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not {"key"} <= set(table) <= {"key", "expires"}:
        raise ValueError(
            f"{value!r} is neither a public key nor a table with key and expires"
        )
    expires = table.get("expires")
    if expires is not None and type(expires) is not date:
        raise ValueError(f"{expires!r} is not a date")
    return LedgerKey(key=public_key(table["key"]), expires=expires)


def _target(word: str) -> str:
    """Return a gfx target; ValueError for a family or an unknown word."""
    if expanded([word]) != (word,):
        raise ValueError(f"tiers: {word} is not a gfx target")
    return word


def _target_tier(text: str) -> Tier:
    """Parse the required tier of a gfx target."""
    if (tier := Tier(text)) not in TIER_ORDER:
        raise ValueError(f"{text} is not a tier of a gfx target")
    return tier
