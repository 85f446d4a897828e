"""Which wheel sets an index offers, newest first: from `status.json` and each set's wheels.json; a URL or a folder."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import CiBuildError, InputError
from core.model import WheelSet, load_wheel_set

_SECONDS = 15.0
_LIMIT = 64 << 20
"""Bytes of an answer; a status file or a wheels.json is far smaller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One wheel set of an index.

    Attributes:
        simple: URL that pip is pointed at.
        tiers: gfx target -> how strongly it was tested.
        packages: name -> version: the wheels of the set and what it pins.
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
        """Of its ROCm."""
        return int(self.rocm.partition(".")[0])


def read(where: str) -> tuple[Offer, ...]:
    """All sets of an index.

    Args:
        where: URL of an index (`…/v2/<index>/`, with or without `simple/`), that index as a folder, or a whole bucket.

    Raises:
        InputError: it cannot be read, or is not an index of this project.
    """
    try:
        return tuple(offer for base in _bases(where) for offer in _offers(base))
    except urllib.error.URLError as error:
        reason = str(error) if isinstance(error, urllib.error.HTTPError) else str(error.reason)
        raise InputError(f"The index {where} cannot be read: {reason}.", hint="Check --index.") from error
    except http.client.HTTPException as error:
        raise InputError(f"The index {where} cannot be read: {error}.", hint="Check --index.") from error
    except OSError as error:
        raise InputError(
            f"The index {where} cannot be read: {error.strerror or error}.", hint="Check --index."
        ) from error
    except (ValueError, KeyError, TypeError, CiBuildError) as error:
        raise InputError(
            f"{where} is not an index of this project ({error}).", hint="Give the URL above its simple/."
        ) from error


def _bases(where: str) -> Sequence[str]:
    base = where.rstrip("/").removesuffix("/simple") + "/"
    if "://" in base:
        return (base,)
    folder = Path(base).resolve()
    buckets = sorted(folder.glob("v2/*/status.json"))
    return [f"{path.parent.as_uri()}/" for path in buckets] or [f"{folder.as_uri()}/"]


def _get(url: str) -> Any:  # noqa: ANN401 - JSON
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - the user's own word
        return json.loads(answer.read(_LIMIT))


def _offers(base: str) -> Sequence[Offer]:
    found = []
    for row in _get(f"{base}status.json")["sets"]:
        wheel_set = load_wheel_set(json.dumps(_get(f"{base}sets/{row['digest']}/wheels.json")))
        found.append(
            Offer(
                digest=row["digest"],
                simple=f"{base}simple/",
                jax=row["jax"],
                rocm=row["rocm"],
                pythons=tuple(row["pythons"]),
                tiers=dict(row["tiers"]),
                packages=_packages(wheel_set),
            )
        )
    return found


def _packages(wheel_set: WheelSet) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in wheel_set.wheels} | dict(wheel_set.pins)
