"""The objects that an index has according to its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from core.digests import sha256_of
from core.frozen import frozen
from promotion.index.index_status import index_pages
from promotion.index.ledger import Ledger
from promotion.index.pages import project_pair
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import (
    ReleasedIndex,
)


@frozen
class Inventory:
    """The objects that an index has according to its ledger.

    Attributes:
        files: key -> sha256 of the files of held sets.
        pages: key -> sha256 of every page and of status.json.
        kept: key -> sha256 of files that sweeps leave, since other sets may contain
            them too.
    """

    files: Mapping[str, str]
    pages: Mapping[str, str]
    kept: Mapping[str, str]

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
        kept=kept,
    )
