"""Publish an index.

Bring its pages up to date with its ledger, at a cost that depends on the changes alone.

`status.json` records the ledger entry that the pages were written from. It is written
last, so the next publisher completes an interrupted update.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.digests import sha256_of
from core.errors import BucketError, BusyError
from promotion.index.authority import ANYONE, Authority
from promotion.index.index_reader import (
    Snapshot,
    newest_set,
    parse_project_page,
    parse_status,
)
from promotion.index.index_status import (
    Summaries,
    dump_status,
    overview_of,
    render_overview,
)
from promotion.index.json_types import PageRecord
from promotion.index.ledger import Entries, Head, find_head
from promotion.index.listing import listing_row, update_listing
from promotion.index.overview import overview_entry
from promotion.index.page_diff import (
    PageState,
    files_of_sets,
    page_updates,
    sets_by_project,
    sets_that_differ,
)
from promotion.index.pages import Page, project_pair, root_pair
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import PAGES, ReleasedIndex, project_pages

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
        everything: render every page from the ledger alone, and write those that
            differ.
        authority: accepted signatures of ledger entries.

    Returns:
        Keys of the written pages.

    Raises:
        BucketError: the ledger is damaged, was cut, or has an entry that the authority
            does not accept.
    """
    careful = False
    written = list[str]()
    for _ in range(_MAX_RACES):
        snapshot = read_snapshot(bucket, released)
        entries = Entries(bucket, released, authority)
        shown = (
            newest_shown(bucket, released) if everything or snapshot.number == 0 else 0
        )
        head = find_head(
            entries,
            number=snapshot.number,
            sha256=snapshot.ledger_sha256,
            everything=everything,
        )
        check_not_cut(released, head, shown)
        if head.number == 0:
            return ()
        if not everything and head.number == snapshot.number:
            return tuple(written)
        if everything:
            # status.json is not signed: only its etag is needed, to replace it.
            snapshot = Snapshot(etag=snapshot.etag)
        writer = _Writer(entries, snapshot, head, careful=careful)
        try:
            written += writer.write()
            return tuple(written)
        except ConflictError:
            # Another publisher was faster, or stopped before it recorded its writes, so
            # no page is trusted.
            careful = True
    raise BusyError(
        f"The pages of {released.index} changed during each of {_MAX_RACES} attempts.",
        hint="Run the command again.",
    )


def read_snapshot(bucket: Bucket, released: ReleasedIndex) -> Snapshot:
    """Return the content of status.json, or an empty snapshot when it is missing or damaged."""
    status = bucket.read(released.status)
    if status is None:
        return Snapshot()
    data, info = status
    return parse_status(data, info.etag) or Snapshot(etag=info.etag)


def read_head(
    bucket: Bucket, released: ReleasedIndex, authority: Authority = ANYONE
) -> tuple[Head, Entries]:
    """Return the end of the ledger, reading as few entries as possible."""
    snapshot = read_snapshot(bucket, released)
    entries = Entries(bucket, released, authority)
    head = find_head(entries, number=snapshot.number, sha256=snapshot.ledger_sha256)
    return head, entries


def newest_shown(bucket: Bucket, released: ReleasedIndex) -> int:
    """Return the highest entry number on the overview page, or else on any page.

    Read it before the ledger: a publisher appends to the ledger before it writes pages.
    """
    page = bucket.read(released.overview)
    numbers = [overview_entry(page[0]) if page else 0]
    if read_snapshot(bucket, released).number == 0:
        keys = [key for key in bucket.list(released.simple) if key.endswith(PAGES[1])]
        numbers += map(newest_set, map_concurrently(bucket.get, keys))
    return max(numbers)


def check_not_cut(released: ReleasedIndex, head: Head, shown: int) -> None:
    """Raise BucketError if a page was written from an entry after the end of the ledger."""
    if shown > head.number:
        raise BucketError(
            f"The ledger of {released.index} was cut: it ends with entry {head.number},"
            f" its pages show entry {shown}.",
            hint="Restore the missing entries from a backup. Nothing was changed.",
        )


class _Writer:
    """One attempt to write the pages of an index."""

    def __init__(
        self,
        entries: Entries,
        snapshot: Snapshot,
        head: Head,
        *,
        careful: bool,
    ) -> None:
        self._bucket = entries.bucket
        self._released = entries.released
        self._entries = entries
        self._snapshot = snapshot
        self._head = head
        # Without a snapshot the content of the pages is unknown. With several new
        # entries, a publisher may have stopped between them.
        everything = snapshot.number == 0
        self._careful = careful or everything or head.number > snapshot.number + 1
        if everything:
            numbers = range(1, head.number + 1)
            self._sets = self._possible = frozenset(
                n for n in numbers if self._entries.at(n).promoted is not None
            )
        else:
            states = [
                self._entries.at(number).state
                for number in range(snapshot.number, head.number + 1)
            ]
            self._sets = sets_that_differ(states)
            self._possible = frozenset[int]().union(
                *(state.visible for state in states)
            )
        self._etags: dict[str, str | None] = {}
        self._content: dict[str, bytes] = {}
        self._written: list[str] = []

    @functools.cached_property
    def _possible_by_project(self) -> Mapping[str, Sequence[int]]:
        return sets_by_project(self._possible, self._entries.at)

    def write(self) -> tuple[str, ...]:
        """Write the pages that differ, in order.

        Raises:
            ConflictError: the ledger or a page changed since it was read.
        """
        updates = page_updates(
            self._released,
            self._sets,
            self._head.state,
            self._page_state,
            self._entries.at,
        )
        simple = self._released.simple
        planned = [
            (
                update.project,
                project_pair(simple, update.project, update.files.values()),
            )
            for update in updates
        ]
        projects = {*self._snapshot.pages, *(project for project, _ in planned)}
        check_root = self._careful or projects != self._snapshot.pages.keys()
        root = root_pair(self._released.simple, projects) if check_root else ()
        for page in root:
            self._read(page.key)
        if self._careful or not self._snapshot.overview:
            self._read(self._released.overview)
        else:
            self._etags[self._released.overview] = self._snapshot.overview
        # A publisher appends to the ledger before it writes pages. No new entry now
        # means that the pages read above are not newer than this state; later changes
        # fail the compare-and-swap. Etags from the snapshot need no check.
        if (
            root
            and self._bucket.head(self._released.ledger_entry(self._head.number + 1))
            is not None
        ):
            raise ConflictError(
                f"The ledger of {self._released.index} has a new entry since it was"
                " read."
            )
        pages = dict(self._snapshot.pages)
        for project, (as_html, as_json) in planned:
            if not self._careful and self._content.get(as_json.key) == as_json.data:
                continue  # then the HTML page is up to date too
            etags = self._put(as_html), self._put(as_json)
            pages[project] = PageRecord(sha256=sha256_of(as_json.data), etags=etags)
        for page in root:
            self._put(page)
        self._finish(pages)
        return tuple(self._written)

    def _finish(self, pages: Mapping[str, PageRecord]) -> None:
        last = self._entries.at(self._head.number)
        state = self._head.state
        summaries = Summaries(self._bucket, self._released)
        shown = overview_of(state, self._head.number, self._entries.at, self._snapshot)
        page = render_overview(self._released, shown, last, self._entries.at, summaries)
        overview = self._put(Page(key=self._released.overview, data=page))
        listed = listing_row(self._released, shown.rows)
        if self._careful or listed != self._snapshot.listed:
            self._written += update_listing(self._bucket, listed)
        snapshot = replace(
            self._snapshot,
            number=self._head.number,
            ledger_sha256=self._head.sha256,
            pages=pages,
            overview=overview,
            rows=shown.rows,
            hidden=shown.hidden,
            history=shown.history,
            listed=listed,
        )
        if self._careful:
            self._read(self._released.status)
        if (
            self._etags.setdefault(self._released.status, self._snapshot.etag)
            != self._snapshot.etag
        ):
            raise ConflictError("Another publisher wrote all pages during this update.")
        status = dump_status(self._released, snapshot, last, state)
        self._put(Page(key=self._released.status, data=status))

    def _page_state(self, project: str) -> PageState:
        """Read a project's pages.

        The JSON page alone suffices when it matches the last recorded write.
        """
        html_key, json_key = project_pages(self._released.simple, project)
        recorded = self._snapshot.pages.get(project)
        as_html = self._read(html_key) if self._careful or recorded is None else b""
        as_json = self._read(json_key)
        if (
            recorded is None and not as_html and not as_json
        ):  # a new project; no set before these has its wheels
            return PageState(files={}, in_both=(), trusted=True)
        if recorded is not None and sha256_of(as_json) == recorded.sha256:
            files = {row.wheel.filename: row for row in parse_project_page(as_json)}
            if not self._careful:
                self._etags[html_key] = recorded.etags[0]
            if (
                not self._careful
                or as_html
                == project_pair(self._released.simple, project, files.values())[0].data
            ):
                return PageState(files=files, in_both=files.keys(), trusted=True)
        elif recorded is not None and not self._careful:
            raise ConflictError(f"{json_key} differs from its last recorded write.")
        sets = self._possible_by_project.get(project, ())
        possible = files_of_sets(self._released, project, sets, self._entries.at)
        in_html = {name for name in possible if name.encode() in as_html}
        in_json = {name for name in possible if name.encode() in as_json}
        files = {
            name: row for name, row in possible.items() if name in in_html | in_json
        }
        return PageState(files=files, in_both=in_html & in_json, trusted=False)

    def _read(self, key: str) -> bytes:
        """Read a page and keep its etag for the compare-and-swap that replaces it."""
        stored = self._bucket.read(key)
        if stored is None:
            self._etags[key] = None
            return b""
        data, info = stored
        self._etags[key], self._content[key] = info.etag, data
        return data

    def _put(self, page: Page) -> str:
        """Write a page unless it is up to date, and return its etag."""
        etag = self._etags[page.key]
        if etag is not None and self._content.get(page.key) == page.data:
            return etag
        info = self._bucket.put_if_match(page.key, page.data, etag=etag)
        self._etags[page.key], self._content[page.key] = info.etag, page.data
        self._written.append(page.key)
        return info.etag
