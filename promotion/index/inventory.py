"""The objects that an index has according to its ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from core.digests import sha256_of
from promotion.index.index_reader import Snapshot
from promotion.index.index_status import (
    Overview,
    SummaryOf,
    overview_of,
    render_overview,
)
from promotion.index.ledger import LedgerEntry
from promotion.index.ledger_state import EntryKind, IndexState
from promotion.index.listing import listing_row
from promotion.index.page_diff import all_page_updates
from promotion.index.pages import Page, project_pair, root_pair
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import PAGES, TOMBSTONE_SUFFIX, ReleasedIndex


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The objects that an index has according to its ledger.

    Attributes:
        files: key -> sha256 of the files of held sets.
        pages: key -> accepted sha256 of every page.
        swept: keys that sweeps removed and no held set needs.
        tombstones: keys of the tombstones of removed wheels.
        kept: key -> sha256 of files that sweeps leave, since other sets may contain
            them too.
        others: keys of objects with their own checks, such as status.json.
    """

    files: Mapping[str, str]
    pages: Mapping[str, Sequence[str]]
    swept: Collection[str]
    tombstones: Sequence[str]
    kept: Mapping[str, str]
    others: Collection[str]

    def unnamed(self, bucket: Bucket, released: ReleasedIndex) -> tuple[str, ...]:
        """Return the sorted keys of stored objects that nothing held or shown needs."""
        named = {*self.files, *self.pages, *self.tombstones, *self.others}
        keys = bucket.list(released.root)
        return tuple(
            key
            for key in keys
            if key not in named and not key.startswith(released.ledger)
        )


def read_inventory(
    released: ReleasedIndex,
    entries: Sequence[LedgerEntry],
    snapshot: Snapshot,
    summary_of: SummaryOf,
) -> Inventory:
    """Return the objects that an index has according to its ledger, which must have entries.

    Args:
        summary_of: reader of the numbers of promoted sets.
    """
    state = entries[-1].state
    promoted = {
        entry.number: entry.promoted for entry in entries if entry.promoted is not None
    }
    files: dict[str, str] = {}
    for one in (promoted[number] for number in state.held):
        files |= {
            released.set_file(one.set_digest, name): sha256
            for name, sha256 in one.files.items()
        }
        for wheel in one.wheels:
            files |= wheel.objects(released)
    sweeps = (entry for entry in entries if entry.kind is EntryKind.SWEEP)
    swept = set[str]().union(*(entry.removed for entry in sweeps))
    # A sweep keeps wheels that another project published.
    kept: dict[str, str] = {}
    for wheel in chain.from_iterable(one.wheels for one in promoted.values()):
        if wheel.as_published:
            kept |= wheel.objects(released)
    return Inventory(
        files=files,
        pages=_pages(released, snapshot, entries, state, summary_of),
        swept=swept - files.keys(),
        tombstones=sorted(
            key + TOMBSTONE_SUFFIX for key in swept if key.endswith(".whl")
        ),
        kept=kept,
        others=(released.status,),
    )


def _pages(
    released: ReleasedIndex,
    snapshot: Snapshot,
    entries: Sequence[LedgerEntry],
    state: IndexState,
    summary_of: SummaryOf,
) -> Mapping[str, Sequence[str]]:
    """Return key -> accepted sha256 of every page, rendered from the ledger alone."""
    by_number = {entry.number: entry for entry in entries}
    # status.json is not signed: it may name projects that the index never had.
    sets = (one.promoted for one in entries if one.promoted)
    wheels = chain.from_iterable(promoted.wheels for promoted in sets)
    known = snapshot.pages.keys() & {wheel.project for wheel in wheels}
    updates = [*all_page_updates(released, state, known, by_number.__getitem__)]
    pages: list[Page] = []
    for update in updates:
        files = update.files.values()
        pages += project_pair(released.simple, update.project, files)
    digests = {page.key: [sha256_of(page.data)] for page in pages}
    root = root_pair(released.simple, [update.project for update in updates])
    digests |= {page.key: [sha256_of(page.data)] for page in root}
    shown = shown_of(entries)
    overview = render_overview(
        released, shown, entries[-1], by_number.__getitem__, summary_of
    )
    digests[released.overview] = [sha256_of(overview)]
    return digests


def shown_of(entries: Sequence[LedgerEntry]) -> Overview:
    """Return the rows of status.json; entries must be all entries."""
    return overview_of(
        entries[-1].state, len(entries), lambda number: entries[number - 1]
    )


def status_differs(
    released: ReleasedIndex,
    entries: Sequence[LedgerEntry],
    snapshot: Snapshot,
    pages: Mapping[str, Sequence[str]],
) -> bool:
    """Return whether the last entry's status.json disagrees with the ledger.

    Publishers reuse these values.

    Args:
        pages: key -> accepted sha256 of every page.
    """
    json_page = PAGES[1]
    recorded = {
        f"{released.simple}{name}/{json_page}": record.sha256
        for name, record in snapshot.pages.items()
    }
    shown = shown_of(entries)
    found = (snapshot.rows, snapshot.hidden, snapshot.history, snapshot.listed)
    listed = listing_row(released, shown.rows)
    if found != (shown.rows, shown.hidden, shown.history, listed):
        return True
    return any(sha256 not in pages.get(key, ()) for key, sha256 in recorded.items())
