"""The machines that test sets on hardware (`families.toml`).

Names of families and targets are compared exactly, as in `core.targets`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal, get_args

from core.errors import FormatError, RequestError
from core.frozen import frozen
from core.model import GfxTarget
from core.records import add_names, convert, read_table
from core.targets import load_table

FAMILIES_FILE = Path(__file__).with_name("families.toml")
GATE = "device"
"""The gate that runs on these machines."""
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


@frozen
class TriggerSettings:
    """The tests of a trigger; see `families.toml`."""

    size: Size
    multi: bool
    minutes: int


@frozen
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


@frozen
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

    def __post_init__(self) -> None:
        if any(machines.devices < 2 for machines in self.multi.values()):
            raise ValueError("a runner of multi has fewer than 2 devices")

    @property
    def device_counts(self) -> tuple[int, ...]:
        """The distinct device counts of the machines, ascending."""
        runners = (*self.single.values(), *self.multi.values())
        return tuple(sorted({machines.devices for machines in runners}))


@frozen
class Families:
    """The content of `families.toml`."""

    occasions: Mapping[Trigger, TriggerSettings]
    families: Mapping[str, Family]

    def of_target(self, target: GfxTarget) -> Family | None:
        """Return the family whose machines test a target, or None."""
        for family in self.families.values():
            if target.processor in family.targets:
                return family
        return None

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


@frozen
class _FamilyFile:
    """Content of `families.toml`."""

    when: Mapping[Trigger, TriggerSettings]
    family: Mapping[str, Family]


def load_families(file: Path = FAMILIES_FILE) -> Families:
    """Load `families.toml`.

    Raises:
        FormatError: a field is missing, unknown or invalid, or a family or target is
            unknown.
    """
    body = read_table(file)
    families = body.get("family")
    add_names(families)
    content = convert(body, _FamilyFile, str(file), schema=_SCHEMA_VERSION)
    found = dict(content.family)
    try:
        if set(content.when) != set(Trigger):
            raise ValueError(f"when: expected a table for each of {', '.join(Trigger)}")
        for name, family in found.items():
            known = load_table().families.get(name, ())
            if not family.targets or not set(family.targets) <= set(known):
                raise ValueError(
                    f"family.{name}: its targets must be among {', '.join(known)}"
                )
    except ValueError as error:
        raise FormatError(f"{file}: {error}.") from error
    return Families(occasions=content.when, families=found)
