"""Objects of a released index that its ledger does not name.

Leftovers of promotions, and foreign objects.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from core.errors import CiBuildError
from core.model import SHA256SUMS, WHEELS_JSON, WheelSet
from core.wheels_json import load_wheel_set
from promotion.index.set_summary import REPORT, REQUIREMENTS, SUMMARY
from promotion.storage.bucket import Bucket, ObjectInfo
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import (
    EVIDENCE_FOLDER,
    METADATA_SUFFIX,
    PROVENANCE_SUFFIX,
    ReleasedIndex,
)

_WRITTEN = (f"{EVIDENCE_FOLDER}/", REPORT, SUMMARY, REQUIREMENTS)
"""First parts of the names of a set's files that its wheels.json does not name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """An object that the ledger does not name.

    Attributes:
        info: its properties, or None if it cannot be read, such as a symbolic link.
        origin: what left it, half a sentence; empty for a foreign object.
    """

    key: str
    info: ObjectInfo | None
    origin: str


def find_leftovers(
    bucket: Bucket, released: ReleasedIndex, keys: Iterable[str]
) -> tuple[Leftover, ...]:
    """Return the objects with these keys, and the promotions and sweeps that they come from.

    A promotion copies wheels.json first, so that it describes the other files.

    Args:
        keys: keys below the root of the index that the ledger does not name.
    """
    keys = tuple(keys)
    found = zip(
        keys, map_concurrently(functools.partial(_head, bucket), keys), strict=True
    )
    infos = {key: info for key, (exists, info) in found if exists}
    top = released.set_file("", "").removesuffix("/")
    digests = sorted(
        {key.removeprefix(top).partition("/")[0] for key in keys if key.startswith(top)}
    )
    owners = _owners(
        bucket,
        released,
        infos,
        [released.set_file(digest, WHEELS_JSON) for digest in digests],
    )
    origins = {
        key: f"a promotion of set {digest[:12]} did not end"
        for key, digest in owners.items()
    }
    return tuple(
        Leftover(key=key, info=info, origin=origins.get(key, ""))
        for key, info in infos.items()
    )


def _head(bucket: Bucket, key: str) -> tuple[bool, ObjectInfo | None]:
    """Return whether an object still exists, and its properties if it can be read."""
    try:
        info = bucket.head(key)
    except CiBuildError:
        return True, None
    return info is not None, info


def _owners(
    bucket: Bucket,
    released: ReleasedIndex,
    infos: Mapping[str, ObjectInfo | None],
    descriptions: Iterable[str],
) -> dict[str, str]:
    """Return key -> digest of the set that it is a copy of.

    Args:
        descriptions: keys of wheels.json files.
    """
    owners = {}
    for wheel_set in map_concurrently(
        functools.partial(_description, bucket), tuple(descriptions)
    ):
        if wheel_set is None or wheel_set.index != released.index:
            continue
        copies = dict(_copies(released, wheel_set))
        own = tuple(released.set_file(wheel_set.digest, name) for name in _WRITTEN)
        for key, info in infos.items():
            if info is not None and (
                key.startswith(own) or copies.get(key) in ("", info.sha256)
            ):
                owners[key] = wheel_set.digest
    return owners


def _description(bucket: Bucket, key: str) -> WheelSet | None:
    """Return the set of a wheels.json.

    None if it is missing or damaged, or lies in the folder of another set.
    """
    try:
        wheel_set = load_wheel_set(bucket.get(key), key)
    except CiBuildError:
        return None
    return wheel_set if key.endswith(f"/{wheel_set.digest}/{WHEELS_JSON}") else None


def _copies(released: ReleasedIndex, wheel_set: WheelSet) -> Iterator[tuple[str, str]]:
    """Yield the key and the sha256 of each file that a promotion of a set copies.

    An empty sha256 is unknown.
    """
    for name, sha256 in {WHEELS_JSON: "", SHA256SUMS: "", **wheel_set.files}.items():
        yield released.set_file(wheel_set.digest, name), sha256
    for wheel in wheel_set.wheels:
        key = released.wheel(wheel.name, wheel.filename)
        yield key, wheel.sha256
        yield key + METADATA_SUFFIX, ""
        yield key + PROVENANCE_SUFFIX, ""
