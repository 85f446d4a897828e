"""Bypasses: temporary permissions to promote sets without certain gates.

Incomplete entries are void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from core.errors import FormatError
from core.model import WheelSet
from core.records import convert
from promotion.evidence.exemption import Exemption

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bypass(Exemption):
    """An entry `[[bypass_tests_for_releases]]` of the policy.

    Attributes:
        channel, index: channel and index to which the bypass applies.
        gates: names of the bypassed gates.
        targets: gfx targets, or "any" for gates that do not depend on a target.
        set: digest of the bypassed set. Empty if the bypass is for a version.
        version: jax version of the bypassed sets. Empty if the bypass is for one set.
    """

    OPTIONAL = frozenset({"set", "version"})

    channel: str
    index: str
    gates: tuple[str, ...]
    targets: tuple[str, ...]
    set: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        Exemption.__post_init__(self)
        if bool(self.set) == bool(self.version):
            raise ValueError("exactly one of set and version is required")

    def is_for(self, wheel_set: WheelSet) -> bool:
        """Return whether the bypass applies to a set and its index."""
        named = (
            wheel_set.digest == self.set
            if self.set
            else wheel_set.jax_version == self.version
        )
        return named and wheel_set.index == self.index

    def covers(self, gate: str, target: str) -> bool:
        """Return whether the bypass applies to a gate for a target."""
        return gate in self.gates and not {target, target.partition(":")[0]}.isdisjoint(
            self.targets
        )


def parse_bypass(body: Any, source: str = "bypass") -> Bypass:  # noqa: ANN401 - any value of TOML
    """Return an entry; FormatError for a missing, unknown or invalid field."""
    return convert(body, Bypass, source)


def parse_each(
    bodies: Iterable[Any], parse: Callable[[Any, str], _T], kind: str
) -> tuple[tuple[_T, ...], tuple[str, ...]]:
    """Return the valid entries of a table of the policy, and a sentence for each void entry.

    Args:
        parse: parser of one entry, which raises FormatError if the entry is invalid.
        kind: noun for an entry, such as Bypass.
    """
    good = []
    void = []
    for number, body in enumerate(bodies, start=1):
        try:
            good.append(parse(body, f"{kind} {number} of the policy is void"))
        except FormatError as error:
            void.append(error.message)
    return tuple(good), tuple(void)
