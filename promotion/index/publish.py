"""Publish an index: bring its pages up to date with its ledger.

`status.json` records the ledger entry that the pages were written from. It is written
last, so the next publisher completes an interrupted update.
"""

from __future__ import annotations

import json
from itertools import chain

from core.errors import BucketError, BusyError, FormatError
from core.records import read_json
from promotion.index.authority import ANYONE, Authority
from promotion.index.index_status import index_pages
from promotion.index.json_types import STATUS_SCHEMA, StatusFile
from promotion.index.ledger import FIRST, Entries, Head, find_head
from promotion.index.overview import overview_entry
from promotion.index.page_diff import index_files, page_updates
from promotion.index.pages import Page, project_pair
from promotion.storage.bucket import Bucket, ConflictError, ObjectInfo
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import PAGES, ReleasedIndex, page_keys

_MAX_RACES = 100


def publish(
    bucket: Bucket,
    released: ReleasedIndex,
    *,
    everything: bool = False,
    authority: Authority = ANYONE,
) -> tuple[str, ...]:
    """Bring pages up to date with the ledger; safe at any time and with concurrent publishers.

    Args:
        everything: verify the whole ledger, and compare every page with it. Otherwise
            only those that changed since the entry in status.json.
        authority: accepted signatures of ledger entries.

    Returns:
        Keys of the written pages.

    Raises:
        BucketError: the ledger is damaged, was cut, or has an entry that the authority
            does not accept.
    """
    written: list[str] = []
    for race in range(_MAX_RACES):
        number, _ = published_entry(bucket, released)
        head, entries = read_head(bucket, released, authority, everything=everything)
        if head.number == 0:
            return ()
        # After a lost race, this publisher may have replaced a page of a newer state
        # that the faster one did not have to write.
        if not everything and not race and head.number == number:
            return ()
        pages = _Pages(bucket)
        try:
            _write(pages, entries, head, 1 if everything else max(number, 1))
        except ConflictError:
            continue
        finally:
            written += pages.written
        return tuple(dict.fromkeys(written))
    raise BusyError(
        f"The pages of {released.index} changed during each of {_MAX_RACES} attempts.",
        hint="Run the command again.",
    )


def published_entry(bucket: Bucket, released: ReleasedIndex) -> tuple[int, str]:
    """Return number and sha256 of the ledger entry that the pages were written from.

    0 and FIRST if status.json is missing or damaged.
    """
    stored = bucket.read(released.status)
    try:
        data = stored[0] if stored else b""
        status = read_json(data, StatusFile, released.status, schema=STATUS_SCHEMA)
    except FormatError:
        return 0, FIRST
    return status["entries"], status["ledger_sha256"]


def read_head(
    bucket: Bucket,
    released: ReleasedIndex,
    authority: Authority = ANYONE,
    *,
    everything: bool = False,
) -> tuple[Head, Entries]:
    """Return the end of the ledger, reading as few entries as possible.

    Args:
        everything: verify all entries, see `find_head`.

    Raises:
        BucketError: the ledger is damaged, was cut, or has an entry that the authority
            does not accept.
    """
    shown = newest_shown(bucket, released)
    number, sha256 = published_entry(bucket, released)
    entries = Entries(bucket, released, authority)
    head = find_head(entries, number=number, sha256=sha256, everything=everything)
    check_not_cut(released, head.number, shown)
    return head, entries


def newest_shown(bucket: Bucket, released: ReleasedIndex) -> int:
    """Return the highest entry number on the overview page, or else on any page.

    Read it before the ledger: a publisher appends to the ledger before it writes pages.
    """
    page = bucket.read(released.overview)
    numbers = [overview_entry(page[0]) if page else 0]
    if published_entry(bucket, released)[0] == 0:
        keys = [key for key in bucket.list(released.simple) if key.endswith(PAGES[1])]
        numbers += map(_newest_set, map_concurrently(bucket.get, keys))
    return max(numbers)


def _newest_set(page: bytes) -> int:
    """Return the highest number of a set on a JSON page; 0 in another format."""
    try:
        rows = json.loads(page)["files"]
        return max(chain.from_iterable(row["_sets"] for row in rows), default=0)
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def check_not_cut(released: ReleasedIndex, last: int, shown: int) -> None:
    """Raise BucketError if a page was written from an entry after the end of the ledger."""
    if shown > last:
        raise BucketError(
            f"The ledger of {released.index} was cut: it ends with entry {last},"
            f" its pages show entry {shown}.",
            hint="Restore the missing entries from a backup. Nothing was changed.",
        )


def _write(pages: _Pages, entries: Entries, head: Head, since: int) -> None:
    """Write the pages that differ, in order.

    Args:
        since: number of the entry whose pages, or those of a later entry, are stored.

    Raises:
        ConflictError: the ledger or a page changed since it was read.
    """
    released = entries.released
    simple = released.simple
    earlier = entries.read(range(since, head.number + 1))
    numbers = set[int]().union(*(entry.state.visible for entry in earlier))
    entries.read(numbers)
    last = entries.at(head.number)
    possible = index_files(released, numbers, head.state, entries.at)
    new = index_pages(entries, last, head.sha256)

    def content_of(project: str) -> tuple[bytes, bytes]:
        html_key, json_key = page_keys(f"{simple}{project}/")
        return pages.read(html_key), pages.read(json_key)

    updates = page_updates(new.projects, possible, content_of)
    for page in (*new.root, new.overview, new.status):
        pages.read(page.key)
    # A publisher appends to the ledger before it writes pages. No new entry now means
    # that the pages read above are not newer than this state; later changes fail the
    # compare-and-swap.
    if entries.bucket.head(released.ledger_entry(head.number + 1)) is not None:
        raise ConflictError(
            f"The ledger of {released.index} has a new entry since it was read."
        )
    for project, files in updates:
        for page in project_pair(simple, project, files.values()):
            pages.put(page)
    for page in (*new.root, new.overview):
        pages.put(page)
    pages.put(new.status)


class _Pages:
    """The stored pages, each of which is replaced by compare-and-swap with its read etag.

    Attributes:
        written: keys of the written pages.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._stored: dict[str, tuple[bytes, ObjectInfo] | None] = {}
        self.written: list[str] = []

    def read(self, key: str) -> bytes:
        """Read a page, or an empty one if there is none."""
        stored = self._stored[key] = self._bucket.read(key)
        return stored[0] if stored else b""

    def put(self, page: Page) -> None:
        """Write a page that was read unless it is up to date."""
        stored = self._stored[page.key]
        if stored and stored[0] == page.data:
            return
        etag = stored[1].etag if stored else None
        info = self._bucket.put_if_match(page.key, page.data, etag=etag)
        self._stored[page.key] = page.data, info
        self.written.append(page.key)
