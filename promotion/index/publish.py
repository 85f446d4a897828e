"""Publishing: the pages of a released index, brought up to its ledger; the cost is that of what changed.

`status.json` says from which entry the pages were written. It comes last, so whoever comes after a crash finishes the
work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from core.errors import BusyError
from promotion.index.ledger import Entries, Head, find_head, known_head, read_ledger
from promotion.index.page_diff import PageState, files_of_sets, page_updates, sets_that_differ
from promotion.index.pages import Page, parse_project_page, project_pair, root_pair
from promotion.index.status import (
    SHOWN,
    PageRecord,
    Snapshot,
    dump_status,
    load_status,
    overview_page,
    set_marks,
    set_row,
)
from promotion.storage.bucket import Bucket, ConflictError, sha256_of
from promotion.storage.keys import ReleasedIndex, project_pages

_MAX_RACES = 100


def publish(bucket: Bucket, released: ReleasedIndex, *, everything: bool = False) -> tuple[str, ...]:
    """Bring the pages up to the ledger; safe to run at any time and by several at once.

    Args:
        bucket: where the index is.
        released: the index.
        everything: make every page anew from the ledger alone, and write those that differ.

    Returns:
        Keys that were written.

    Raises:
        BucketError: the ledger cannot be trusted.
    """
    careful = False
    for _ in range(_MAX_RACES):
        if everything:
            read_ledger(bucket, released)
        entries = Entries(bucket, released)
        snapshot = read_snapshot(bucket, released)
        head = head_after(bucket, released, entries, snapshot)
        if head.number == 0 or (head.number == snapshot.number and not everything):
            return ()
        try:
            return _Writer(bucket, released, entries, snapshot, head, careful=careful, everything=everything).write()
        except ConflictError:
            # Somebody was quicker, or died before noting down what it wrote: look at every page from now on.
            careful = True
    raise BusyError(f"The pages of {released.index} changed {_MAX_RACES} times meanwhile.", hint="Run it again.")


def read_snapshot(bucket: Bucket, released: ReleasedIndex) -> Snapshot:
    """What status.json says; nothing is known when there is none that can be read."""
    found = bucket.read(released.status)
    if found is None:
        return Snapshot()
    data, info = found
    return load_status(data, info.etag) or Snapshot(etag=info.etag)


def read_head(bucket: Bucket, released: ReleasedIndex) -> tuple[Head, Entries]:
    """The end of a ledger, as cheaply as the index lets it be found."""
    entries = Entries(bucket, released)
    return head_after(bucket, released, entries, read_snapshot(bucket, released)), entries


def head_after(bucket: Bucket, released: ReleasedIndex, entries: Entries, snapshot: Snapshot) -> Head:
    """The end of a ledger of which a snapshot knows an entry."""
    known = known_head(released, entries, snapshot.number, snapshot.ledger_sha256) if snapshot.number else None
    return find_head(bucket, released, entries, from_=known)


class _Writer:
    """One attempt to write pages."""

    def __init__(
        self,
        bucket: Bucket,
        released: ReleasedIndex,
        entries: Entries,
        snapshot: Snapshot,
        head: Head,
        *,
        careful: bool,
        everything: bool,
    ) -> None:
        self._bucket, self._released, self._entries = bucket, released, entries
        self._snapshot, self._head = snapshot, head
        # Without a snapshot nobody knows what the pages show. Where several entries came, somebody may have died
        # between them.
        everything = everything or snapshot.number == 0
        self._careful = careful or everything or head.number > snapshot.number + 1
        if everything:
            numbers = range(1, head.number + 1)
            self._sets = self._possible = frozenset(n for n in numbers if self._entries.at(n).promoted is not None)
        else:
            states = [self._entries.at(number).state for number in range(snapshot.number, head.number + 1)]
            self._sets = sets_that_differ(states)
            self._possible = frozenset(number for state in states for number in state.visible)
        self._etags: dict[str, str | None] = {}
        self._shown: dict[str, bytes] = {}
        self._written: list[str] = []

    def write(self) -> tuple[str, ...]:
        """Write what differs, in order.

        Raises:
            ConflictError: somebody else is further: the ledger or a page changed since it was read.
        """
        planned = [
            (step.project, project_pair(self._released.simple, step.project, step.shelf.values()))
            for step in page_updates(self._released, self._sets, self._head.state, self._seen, self._entries.at)
        ]
        projects = {*self._snapshot.pages, *(project for project, _ in planned)}
        root = root_pair(self._released.simple, projects) if self._lists(projects) else ()
        for page in root:
            self._look(page.key)
        if self._careful or not self._snapshot.people:
            self._look(self._released.people)
        else:
            self._etags[self._released.people] = self._snapshot.people
        # Whoever writes pages has appended before: with no new entry now, none of the pages above is newer than ours,
        # and from here on a compare-and-swap on each of them tells. What the snapshot knew of each needs no such care.
        if root and self._bucket.head(self._released.ledger_entry(self._head.number + 1)) is not None:
            raise ConflictError("The ledger grew meanwhile.")
        pages = dict(self._snapshot.pages)
        for project, (as_html, as_json) in planned:
            if not self._careful and self._shown.get(as_json.key) == as_json.data:
                continue  # the HTML page says the same
            etags = self._put(as_html), self._put(as_json)
            pages[project] = PageRecord(sha256=sha256_of(as_json.data), etags=etags)
        for page in root:
            self._put(page)
        self._finish(pages)
        return tuple(self._written)

    def _lists(self, projects: set[str]) -> bool:
        """Whether the list of projects has to be looked at."""
        return self._careful or projects != self._snapshot.pages.keys()

    def _finish(self, pages: Mapping[str, PageRecord]) -> None:
        last = self._entries.at(self._head.number)
        rows = [*self._rows()]
        people = Page(key=self._released.people, data=overview_page(self._released, rows, last))
        snapshot = replace(
            self._snapshot,
            number=self._head.number,
            ledger_sha256=self._head.sha256,
            pages=pages,
            people=self._put(people),
            rows=rows,
        )
        if self._careful:
            self._look(self._released.status)
        if self._etags.setdefault(self._released.status, self._snapshot.etag) != self._snapshot.etag:
            raise ConflictError("Somebody else has written all pages meanwhile.")
        status = dump_status(self._released, snapshot, last, self._head.state)
        self._put(Page(key=self._released.status, data=status))

    def _seen(self, project: str) -> PageState:
        """What a project's pages show: known from its JSON page alone if that is the one that was written last."""
        html_key, json_key = project_pages(self._released.simple, project)
        known = self._snapshot.pages.get(project)
        as_html = self._look(html_key) if self._careful or known is None else b""
        as_json = self._look(json_key)
        if known is not None and sha256_of(as_json) == known.sha256:
            shelf = {offer.filename: offer for offer in parse_project_page(as_json)}
            if not self._careful:
                self._etags[html_key] = known.etags[0]
            if not self._careful or as_html == project_pair(self._released.simple, project, shelf.values())[0].data:
                return PageState(shelf=shelf, both=shelf.keys(), sure=True)
        elif known is not None and not self._careful:
            raise ConflictError(f"{json_key} is not as it was written.")
        possible = files_of_sets(self._released, project, self._possible, self._entries.at)
        in_html = {name for name in possible if name.encode() in as_html}
        in_json = {name for name in possible if name.encode() in as_json}
        shelf = {name: offer for name, offer in possible.items() if name in in_html | in_json}
        return PageState(shelf=shelf, both=in_html & in_json, sure=False)

    def _look(self, key: str) -> bytes:
        """Read a page, and know from now on what it has to be when we replace it."""
        found = self._bucket.read(key)
        if found is None:
            self._etags[key] = None
            return b""
        data, info = found
        self._etags[key], self._shown[key] = info.etag, data
        return data

    def _put(self, page: Page) -> str:
        """Write a page unless it is there already; returns its etag."""
        etag = self._etags[page.key]
        if etag is not None and self._shown.get(page.key) == page.data:
            return etag
        info = self._bucket.put_if_match(page.key, page.data, etag=etag)
        self._etags[page.key], self._shown[page.key] = info.etag, page.data
        self._written.append(page.key)
        return info.etag

    def _rows(self) -> Iterator[Mapping[str, object]]:
        """The newest visible sets; what was told of them before is told again, but for its marks."""
        told = {item["entry"]: item for item in self._snapshot.rows}
        state = self._head.state
        for number in sorted(state.visible, reverse=True)[:SHOWN]:
            known = told.get(number)
            yield {**known, **set_marks(number, state)} if known else set_row(self._entries.at(number), state)
