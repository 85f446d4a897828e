"""Wheel sets of an index that the doctor can recommend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.errors import CiBuildError, InputError
from promotion.index.reader import find_indexes


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedSet:
    """A wheel set of an index.

    Attributes:
        simple: URL for pip's `--extra-index-url`.
        tiers: gfx target -> how strongly it was tested.
        packages: name -> version, of the wheels of the set and of its pins.
    """

    digest: str
    simple: str
    jax: str
    rocm: str
    pythons: tuple[str, ...]
    tiers: Mapping[str, str]
    packages: Mapping[str, str]

    @property
    def major(self) -> int:
        """The major version of its ROCm."""
        return int(self.rocm.partition(".")[0])


def read(place: str) -> tuple[OfferedSet, ...]:
    """Return the visible sets at a place, newest first.

    Args:
        place: see `promotion.index.reader.find_indexes`.

    Raises:
        InputError: there is no index of this project, or it cannot be read.
    """
    found: list[OfferedSet] = []
    try:
        for index in find_indexes(place):
            for row in index.status()["sets"]:
                wheel_set = index.wheel_set(row["digest"])
                found.append(
                    OfferedSet(
                        digest=row["digest"],
                        simple=index.simple,
                        jax=row["jax"],
                        rocm=row["rocm"],
                        pythons=tuple(row["pythons"]),
                        tiers=dict(row["tiers"]),
                        packages={wheel.name: wheel.version for wheel in wheel_set.wheels} | dict(wheel_set.pins),
                    )
                )
    except InputError as error:
        raise InputError(f"The index {place} cannot be read: {error.message}", hint="Check --index.") from error
    except (OSError, ValueError, KeyError, TypeError, CiBuildError) as error:
        raise InputError(f"{place} is not an index of this project: {error}.", hint="Check --index.") from error
    return tuple(found)
