"""The requirements of a channel and an index for a promotion (`policy.toml`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from core.errors import FormatError, RequestError
from core.frozen import frozen
from core.model import TIER_ORDER, Tier
from core.records import convert, parse_toml
from core.targets import load_table
from promotion.evidence.attestations import AttestationRule
from promotion.evidence.signing import Signer, public_key
from promotion.index.authority import Authority, LedgerKey, PolicySource
from promotion.policy.exceptions import TABLE as EXCEPTIONS
from promotion.policy.exceptions import PolicyException, parse_exceptions
from promotion.policy.gate_rules import (
    EvidenceKey,
    GateRule,
    expanded,
    merged,
    with_targets,
)

POLICY_FILE = Path(__file__).parents[1] / "policy.toml"
LOCAL = "local"
"""The channel of `release --local`."""
VERSION = "version"
"""The setting of evidence that names the version of the gate when it ran."""

_SCHEMA_VERSION = 2


@frozen
class _EvidenceTable:
    """Values of the file that decide on evidence, or that an entry repeats."""

    tier: Tier
    tiers: Mapping[str, Tier]
    exceptions: bool
    max_age_days: int | None
    stale_days: int | None
    keys: Mapping[str, EvidenceKey] | None
    unsigned: bool
    gates: Mapping[str, GateRule]


@frozen
class PolicyTable(_EvidenceTable):
    """The values of the file for one channel and index; `policy.toml` documents them.

    None stands for "any", and for "supported" Python versions.
    """

    python_versions: tuple[str, ...] | None
    wheels: tuple[str, ...]
    wheels_per_python: tuple[str, ...]
    optional_wheels: tuple[str, ...]
    files: tuple[str, ...]
    required_targets: tuple[str, ...]
    device_members: Mapping[str, tuple[str, ...]]
    ledger_keys: Mapping[str, LedgerKey] | None
    protected_refs: tuple[str, ...] | None
    unprotected: bool
    sizes: Mapping[str, int]
    attestations: AttestationRule
    verified_rocm: bool

    def __post_init__(self) -> None:
        for tier in (self.tier, *self.tiers.values()):
            if tier not in TIER_ORDER:
                raise ValueError(f"{tier} is not a tier of a gfx target")


_UNLIMITED = {
    "python_versions": "supported",
    "max_age_days": "any",
    "stale_days": "any",
    "keys": "any",
    "ledger_keys": "any",
    "protected_refs": "any",
    "identities": "any",
}
"""Key -> the word in the file that becomes None."""


@frozen
class Policy(PolicyTable):
    """The requirements of one index of one channel.

    Attributes:
        sha256: digest of the policy file.
        excepted: complete exceptions for this channel and index.
        void: a sentence for each void exception of any channel and index.
        text: the policy file.
    """

    channel: str
    sha256: str
    excepted: tuple[PolicyException, ...] = ()
    void: tuple[str, ...] = ()
    text: str = ""

    def authority(
        self,
        signer: Signer | None = None,
        source: PolicySource | None = None,
        actor: str = "",
    ) -> Authority:
        """Return the authority of this policy over a ledger.

        Args:
            signer: signer of new entries.
            source: checkout of the policy. Its owner and reason are dropped if the
                policy accepts it anyway.
            actor: name of the person or job that changes the ledger.
        """
        if source and not source.problem(self.protected_refs):
            source = replace(source, owner="", reason="")
        return Authority(
            channel=self.channel,
            keys=self.ledger_keys,
            signer=signer,
            policy=self.text,
            source=source,
            actor=actor,
        )

    @property
    def accepted_exceptions(self) -> tuple[PolicyException, ...]:
        """The exceptions, unless the policy forbids them."""
        return self.excepted if self.exceptions else ()

    def required_tier(self, target: str) -> Tier:
        """Return the required tier of a gfx target.

        An entry without features applies to all features.
        """
        return self.tiers.get(
            target, self.tiers.get(target.partition(":")[0], self.tier)
        )


def load_policy(
    index: str, *, channel: str = LOCAL, file: Path = POLICY_FILE
) -> Policy:
    """Load the policy of an index with its exceptions.

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
    entries, void = _exceptions(channels)
    source = f"{file}: [{channel}]"
    values = _complete(_values(channels, channel, index, source), index, source)
    table = convert(values, PolicyTable, source)
    return Policy(
        channel=channel,
        sha256=hashlib.sha256(data).hexdigest(),
        text=data.decode(),
        excepted=_selected(entries, channel, index),
        void=void,
        **_fields(table),
    )


def _exceptions(
    tables: Mapping[str, Any],
) -> tuple[tuple[PolicyException, ...], tuple[str, ...]]:
    """Return the valid exceptions of all channels, and a sentence for each void one."""
    channels = _channels(tables)
    gates = chain.from_iterable(table.get("gates", ()) for table in channels.values())
    bodies = convert(tables.get(EXCEPTIONS, ()), tuple[Any, ...], EXCEPTIONS)
    return parse_exceptions(bodies, gates={*gates}, channels=channels)


def _selected(
    entries: Iterable[PolicyException], channel: str, index: str
) -> tuple[PolicyException, ...]:
    """Return the entries for a channel and an index."""
    place = (channel, index)
    return tuple(entry for entry in entries if (entry.channel, entry.index) == place)


def _channels(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return channel -> its table."""
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def channel_names(file: Path = POLICY_FILE) -> tuple[str, ...]:
    """Return the names of all channels."""
    return tuple(_channels(_read(file)[1]))


def gate_version(gate: str, file: Path = POLICY_FILE) -> str:
    """Return the version of a gate for the settings of evidence; 0 for an unknown gate."""
    for table in _channels(_read(file)[1]).values():
        rule = table.get("gates", {}).get(gate.partition("-")[0], {})
        if VERSION in rule:
            return str(rule[VERSION])
    return "0"


def load_exceptions(file: Path = POLICY_FILE) -> tuple[PolicyException, ...]:
    """Return the complete exceptions of all channels and indexes."""
    return _exceptions(_read(file)[1])[0]


def device_members_digest(file: Path = POLICY_FILE) -> str:
    """Return the SHA-256 of the device members of all channels and indexes."""
    tables = []
    for values in _channels(_read(file)[1]).values():
        members = {"": values.get("device_members", {})}
        for name, more in values.get("index", {}).items():
            members[name] = more.get("device_members", {})
        tables.append(members)
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def with_recorded_rules(policy: Policy, index: str, text: str) -> Policy:
    """Return a policy with the rules for evidence in an older text of its file.

    Raises:
        FormatError: the text has no rules for the policy's channel, or they are invalid.
    """
    source = "its policy"
    tables = _parse(text.encode(), source)
    values = _values(tables, policy.channel, index, source)
    # The text may have or lack other keys than this version.
    known = {field.name: values.get(field.name) for field in fields(_EvidenceTable)}
    entries, _ = _exceptions(tables)
    return replace(
        policy,
        excepted=_selected(entries, policy.channel, index),
        **_fields(convert(known, _EvidenceTable, source)),
    )


def _fields(table: _EvidenceTable) -> dict[str, Any]:
    """Return the fields of a table by name, without conversion of their values."""
    return {field.name: getattr(table, field.name) for field in fields(table)}


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
    for name, table in _channels(tables).items():
        for part in ("gates", "index"):
            place = f"{source}: {name}.{part}"
            convert(table.get(part, {}), dict[str, dict[str, Any]], place)
    return tables


def _values(
    tables: Mapping[str, Any], channel: str, index: str, source: str
) -> dict[str, Any]:
    """Return the values of a channel and an index, with those that they inherit.

    Raises:
        FormatError: a table is missing or no table.
    """
    with _invalid(source):
        values = _inherited(tables, channel, ())
        values = _limits(merged(values, values.pop("index", {}).get(index, {})))
        gates = {name: with_targets(rule) for name, rule in values["gates"].items()}
        return {**values, "gates": gates, "keys": _key_tables(values["keys"])}


def _complete(values: Mapping[str, Any], index: str, source: str) -> dict[str, Any]:
    """Return values with targets for families, and ledger keys in their normal form."""
    with _invalid(source):
        required: list[str] = []
        for word in values["required_targets"]:
            own = load_table().families.get(index, ())
            required += own if word == "index" else [word]
        for word in values["tiers"]:
            if expanded([word]) != (word,):
                raise ValueError(f"tiers: {word} is not a gfx target")
        return {
            **values,
            "required_targets": expanded(required),
            "ledger_keys": _key_tables(values["ledger_keys"]),
            "attestations": _limits(values["attestations"]),
        }


def _key_tables(keys: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return name -> table of a key in its normal form; None accepts every key."""
    return keys and {who: _key_table(key) for who, key in keys.items()}


def _key_table(value: Any) -> Any:  # noqa: ANN401 - any value of TOML
    """Return the table of a key in its normal form; a text is a key without limits."""
    table = {"key": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        return table  # `convert` reports it
    limits = {"targets": expanded(table["targets"])} if "targets" in table else {}
    return {**table, **limits, "key": public_key(table["key"])}


@contextmanager
def _invalid(source: str) -> Iterator[None]:
    """Raise FormatError for tables that are missing, of another type, or invalid."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = "missing key " if isinstance(error, KeyError) else ""
        raise FormatError(f"{source}: {missing}{error}.") from error


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


def _limits(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with None for each value that stands for no limit."""
    return {
        name: None if value == _UNLIMITED.get(name) else value
        for name, value in values.items()
    }
