"""The objects that an index has according to its ledger, and those that it does not name.

These are leftovers of promotions, and foreign objects.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from core.digests import sha256_of
from core.errors import CiBuildError
from core.frozen import frozen
from core.model import SHA256SUMS, WHEELS_JSON, WheelSet
from core.wheels_json import load_wheel_set
from promotion.index.index_status import index_pages
from promotion.index.json_types import ListedIndex
from promotion.index.ledger import Ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.pages import project_pair
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


@frozen
class Inventory:
    """The objects that an index has according to its ledger.

    Attributes:
        files: key -> sha256 of the files of held sets.
        pages: key -> sha256 of every page and of status.json.
        swept: keys that sweeps removed and no held set needs.
        kept: key -> sha256 of files that sweeps leave, since other sets may contain
            them too.
        listed: row of the index on the page that lists all indexes.
    """

    files: Mapping[str, str]
    pages: Mapping[str, str]
    swept: Collection[str]
    kept: Mapping[str, str]
    listed: ListedIndex

    def unnamed(self, bucket: Bucket, released: ReleasedIndex) -> tuple[str, ...]:
        """Return the sorted keys of stored objects that nothing held or shown needs."""
        named = {*self.files, *self.pages}
        keys = bucket.list(released.root)
        return tuple(
            key
            for key in keys
            if key not in named and not key.startswith(released.ledger)
        )


def read_inventory(ledger: Ledger) -> Inventory:
    """Return the objects that an index has according to its ledger, which must have entries."""
    released = ledger.reader.released
    state = ledger.entries[-1].state
    promoted = {
        entry.number: entry.promoted for entry in ledger.entries if entry.promoted
    }
    files: dict[str, str] = {}
    for one in (promoted[number] for number in state.held):
        files |= {
            released.set_file(one.set_digest, name): sha256
            for name, sha256 in one.files.items()
        }
        for wheel in one.wheels:
            files |= wheel.objects(released)
    swept: set[str] = set()
    for entry in ledger.entries:
        if entry.kind is EntryKind.SWEEP:
            swept.update(entry.removed)
    # A sweep keeps wheels that another project published.
    kept: dict[str, str] = {}
    wheels = [*chain.from_iterable(one.wheels for one in promoted.values())]
    for wheel in wheels:
        if wheel.as_published:
            kept |= wheel.objects(released)
    rendered = index_pages(ledger.reader, ledger.entries[-1], ledger.digests[-1])
    pages = [*rendered.root, rendered.overview, rendered.status]
    projects = {wheel.project for wheel in wheels}
    for one in promoted.values():
        projects.update(package.project for package in one.rocm_packages)
    for project in projects:
        rows = rendered.projects.get(project, {}).values()
        pages += project_pair(released.simple, project, rows)
    return Inventory(
        files=files,
        pages={page.key: sha256_of(page.data) for page in pages},
        swept=swept - files.keys(),
        kept=kept,
        listed=rendered.listed,
    )


@frozen
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
