"""The machines that test sets on hardware (`families.toml`).

Names of families and targets are compared exactly, as in `core.targets`.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import RequestError
from core.model import GfxTarget
from core.targets import family_of, load_table
from promotion.policy.bypasses import Bypass, parse_bypass, whole_number

FAMILIES_FILE = Path(__file__).with_name("families.toml")
GATE = "device"
"""The gate that runs on these machines."""
IMAGE = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
"""Name of the container image in which the gate runs, with its digest."""
SIZES = ("small", "medium", "large")
SANITY = "smoke"
"""The suite of `sanity_only` families."""

_SCHEMA_VERSION = 1
_BYPASS = "bypass_tests_for_releases"
_MOST_MINUTES = 24 * 60
_MOST_DEVICES = 1024


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

    size: str
    shards: int
    multi: bool
    minutes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """The machines behind a label of runners.

    Attributes:
        weight: how often the label is drawn, relative to other labels.
        devices: number of devices of each machine.
    """

    weight: int
    devices: int


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


def load_families(file: Path = FAMILIES_FILE) -> Families:
    """Load `families.toml`.

    Raises:
        RequestError: a field is missing, unknown or invalid, or a family or target is
            unknown.
    """
    try:
        return _parse(file.read_text(encoding="utf-8"))
    except (KeyError, TypeError, ValueError, OSError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise RequestError(
            f"{file} is invalid: {problem}.",
            hint="See the comment at the top of the file.",
        ) from error


@cache
def _parse(text: str) -> Families:
    tables = tomllib.loads(text)
    if tables.pop("schema") != _SCHEMA_VERSION:
        raise ValueError(f"schema is not {_SCHEMA_VERSION}")
    occasions = {
        Trigger(name): _occasion(body) for name, body in tables.pop("when").items()
    }
    if set(occasions) != set(Trigger):
        raise ValueError("[when.*] needs a table for each of " + ", ".join(Trigger))
    families = {
        name: _family(name, body) for name, body in tables.pop("family").items()
    }
    if tables:
        raise ValueError(f"{', '.join(tables)} is unknown")
    return Families(occasions=occasions, families=families)


def _occasion(body: Mapping[str, Any]) -> TriggerSettings:
    occasion = TriggerSettings(**body)
    if occasion.size not in SIZES or type(occasion.multi) is not bool:
        raise ValueError(f"the settings of a trigger are invalid: {dict(body)}")
    whole_number(occasion.shards, most=64)
    whole_number(occasion.minutes, most=_MOST_MINUTES)
    return occasion


def _family(name: str, body: Mapping[str, Any]) -> Family:
    families_of_table = load_table().families
    if name not in families_of_table:
        raise ValueError(f"{name!r} is not a family of core/targets.toml")
    values = dict(body)
    bypass = values.pop(_BYPASS, None)
    targets = values.pop("targets")
    if (
        not isinstance(targets, list)
        or not targets
        or not {*targets} <= {*families_of_table[name]}
    ):
        raise ValueError(
            f"the targets of {name} must be among {', '.join(families_of_table[name])},"
            f" not {targets!r}"
        )
    single, multi = (
        _machines(name, values.pop(kind, {}), fewest)
        for kind, fewest in (("single", 1), ("multi", 2))
    )
    when = Trigger(values.pop("when"))
    family = Family(
        name=name,
        targets=tuple(targets),
        when=when,
        single=single,
        multi=multi,
        **values,
    )
    if type(family.sanity_only) is not bool:
        raise ValueError(
            f"sanity_only of {name} must be true or false, not {family.sanity_only!r}"
        )
    if family.minutes is not None:
        whole_number(family.minutes, most=_MOST_MINUTES)
    return family if bypass is None else _with_bypass(family, bypass)


def _machines(name: str, body: Any, fewest: int) -> dict[str, Machines]:  # noqa: ANN401 - any value of TOML
    try:
        runners = {label: Machines(**values) for label, values in body.items()}
    except (TypeError, AttributeError):
        runners = {"": Machines(weight=0, devices=0)}
    if not all(runners):
        raise ValueError(
            f"the runners of {name} must be labels with weight and devices, not"
            f" {body!r}"
        )
    for machines in runners.values():
        whole_number(machines.weight, most=1000)
        whole_number(machines.devices, least=fewest, most=_MOST_DEVICES)
    return runners


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
    try:
        return replace(family, bypass=parse_bypass({**body, **implied}))
    except ValueError as error:
        raise ValueError(f"the bypass of {family.name} is void: {error}") from error
