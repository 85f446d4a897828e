"""The machines that test sets on hardware (`families.toml`).

Names of families and targets are compared exactly, as in `core.targets`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from core.errors import FormatError, RequestError
from core.model import GfxTarget
from core.records import add_names, convert, read_table
from core.targets import family_of, load_table
from promotion.policy.bypasses import Bypass, parse_bypass

FAMILIES_FILE = Path(__file__).with_name("families.toml")
GATE = "device"
"""The gate that runs on these machines."""
IMAGE = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
"""Name of the container image in which the gate runs, with its digest."""
Size = Literal["small", "medium", "large"]
SIZES: tuple[Size, ...] = get_args(Size)
SANITY = "smoke"
"""The suite of `sanity_only` families."""

_SCHEMA_VERSION = 1


class Trigger(enum.StrEnum):
    """An occasion to run tests. Each trigger includes the tests of the triggers before it."""

    PRESUBMIT = "presubmit"
    POSTSUBMIT = "postsubmit"
    NIGHTLY = "nightly"
    WEEKLY = "weekly"

    def includes(self, other: Trigger) -> bool:
        """Return whether this trigger runs the tests of `other`."""
        order = tuple(Trigger)
        return order.index(other) <= order.index(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TriggerSettings:
    """The tests of a trigger; see `families.toml`."""

    size: Size
    shards: int
    multi: bool
    minutes: int

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ValueError("shards is below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """The machines behind a label of runners.

    Attributes:
        weight: how often the label is drawn, relative to other labels.
        devices: number of devices of each machine.
    """

    weight: int
    devices: int

    def __post_init__(self) -> None:
        if min(self.weight, self.devices) < 1:
            raise ValueError("weight or devices is below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A family and its machines; see `families.toml`.

    Attributes:
        single, multi: machines by label of their runners.
        minutes: time limit of a run. None means the limit of the trigger.
    """

    name: str
    targets: tuple[str, ...]
    when: Trigger
    single: Mapping[str, Machines] = field(default_factory=dict)
    multi: Mapping[str, Machines] = field(default_factory=dict)
    sanity_only: bool = False
    minutes: int | None = None
    bypass: Bypass | None = None

    def __post_init__(self) -> None:
        if any(machines.devices < 2 for machines in self.multi.values()):
            raise ValueError("a runner of multi has fewer than 2 devices")

    @property
    def device_counts(self) -> tuple[int, ...]:
        """The distinct device counts of the machines, ascending."""
        return tuple(
            sorted(
                {
                    machines.devices
                    for machines in (*self.single.values(), *self.multi.values())
                }
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Families:
    """The content of `families.toml`."""

    occasions: Mapping[Trigger, TriggerSettings]
    families: Mapping[str, Family]

    @property
    def bypasses(self) -> tuple[Bypass, ...]:
        """The bypasses of all families, as entries of the policy."""
        return tuple(
            family.bypass for family in self.families.values() if family.bypass
        )

    def of_target(self, target: GfxTarget) -> Family | None:
        """Return the family whose machines test a target, or None."""
        return next(
            (
                family
                for family in self.families.values()
                if target.processor in family.targets
            ),
            None,
        )

    def of(self, name: str) -> Family:
        """Return a family by its exact name.

        Raises:
            RequestError: `families.toml` does not contain the family.
        """
        try:
            return self.families[name]
        except KeyError:
            raise RequestError(
                f"Unknown family: {name!r}.",
                hint=f"Give one of {', '.join(self.families)}.",
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class _FamilyTable(Family):
    """A family in the file."""

    bypass_tests_for_releases: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _FamilyFile:
    """Content of `families.toml`."""

    when: Mapping[Trigger, TriggerSettings]
    family: Mapping[str, _FamilyTable]


def load_families(file: Path = FAMILIES_FILE) -> Families:
    """Load `families.toml`.

    Raises:
        FormatError: a field is missing, unknown or invalid, or a family or target is
            unknown.
    """
    body = read_table(file)
    add_names(body.get("family"))
    content = convert(body, _FamilyFile, str(file), schema=_SCHEMA_VERSION)
    try:
        if set(content.when) != set(Trigger):
            raise ValueError(f"when: expected a table for each of {', '.join(Trigger)}")
        families = {name: _family(table) for name, table in content.family.items()}
    except ValueError as error:
        raise FormatError(f"{file}: {error}.") from error
    return Families(occasions=content.when, families=families)


def _family(table: _FamilyTable) -> Family:
    known = load_table().families.get(table.name, ())
    if not table.targets or not set(table.targets) <= set(known):
        raise ValueError(
            f"family.{table.name}: its targets must be among {', '.join(known)}"
        )
    values = {field.name: getattr(table, field.name) for field in fields(Family)}
    family = Family(**values)
    bypass = table.bypass_tests_for_releases
    return family if bypass is None else _with_bypass(family, bypass)


def _with_bypass(family: Family, body: Mapping[str, Any]) -> Family:
    implied = {
        "index": family_of(tuple(map(GfxTarget.parse, family.targets))),
        "gates": [GATE],
        "targets": [*load_table().families[family.name]],
    }
    if redundant := sorted(implied.keys() & body.keys()):
        raise ValueError(
            f"the bypass of {family.name} has {', '.join(redundant)}, which the family"
            " determines"
        )
    source = f"{FAMILIES_FILE.name}: the bypass of {family.name} is void"
    return replace(family, bypass=parse_bypass({**body, **implied}, source))
