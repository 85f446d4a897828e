"""Publishing: the pages of a released index, brought up to its ledger; the cost is that of what changed.

`status.json` says from which entry the pages were written. It comes last, so whoever comes after a crash finishes the
work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ci_build.errors import BucketError, BusyError
from promotion.bucket import AbsentError, Bucket, ConflictError, sha256_of
from promotion.history import NOTHING, State
from promotion.index import Page, offers_of, project_pair, root_pair
from promotion.layout import Released, project_pages
from promotion.ledger import Entries, Head, LedgerEntry, find_head, known_head, read_ledger
from promotion.shelf import Shelf, Step, all_steps, steps, stocked
from promotion.status import SHOWN, Snapshot, Written, dump_status, load_status, marks, people_page, row

_MAX_RACES = 100


def publish(bucket: Bucket, released: Released, *, everything: bool = False) -> tuple[str, ...]:
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


def read_snapshot(bucket: Bucket, released: Released) -> Snapshot:
    """What status.json says; nothing is known when there is none that can be read."""
    found = bucket.read(released.status)
    if found is None:
        return Snapshot()
    data, info = found
    return load_status(data, info.etag) or Snapshot(etag=info.etag)


def read_head(bucket: Bucket, released: Released) -> tuple[Head, Entries]:
    """The end of a ledger, as cheaply as the index lets it be found."""
    entries = Entries(bucket, released)
    return head_after(bucket, released, entries, read_snapshot(bucket, released)), entries


def head_after(bucket: Bucket, released: Released, entries: Entries, snapshot: Snapshot) -> Head:
    """The end of a ledger of which a snapshot knows an entry."""
    known = known_head(released, entries, snapshot.number, snapshot.ledger_sha256) if snapshot.number else None
    return find_head(bucket, released, entries, from_=known)


class _Writer:
    """One attempt to write pages."""

    def __init__(
        self,
        bucket: Bucket,
        released: Released,
        entries: Entries,
        snapshot: Snapshot,
        head: Head,
        *,
        careful: bool,
        everything: bool,
    ) -> None:
        self._bucket, self._released, self._entries = bucket, released, entries
        self._snapshot, self._head = snapshot, head
        # Without a snapshot nobody knows what the pages show.
        self._everything = everything or snapshot.number == 0
        self._careful = careful or self._everything
        self._etags: dict[str, str | None] = {}
        self._shown: dict[str, bytes] = {}
        self._written: list[str] = []

    def write(self) -> tuple[str, ...]:
        """Write what differs, in order.

        Raises:
            ConflictError: somebody else is further: the ledger or a page changed since it was read.
        """
        before = self._state_before()
        planned = [
            (step, project_pair(self._released.simple, step.project, step.shelf.values()))
            for step in self._steps(before)
        ]
        projects = {*self._snapshot.pages, *(step.project for step, _ in planned)}
        root = root_pair(self._released.simple, projects) if self._lists(projects) else ()
        for page in (*(page for _, pair in planned for page in pair), *root):
            self._note_etag(page.key)
        if self._careful or not self._snapshot.people:
            self._note_etag(self._released.people)
        else:
            self._etags[self._released.people] = self._snapshot.people
        # Whoever writes pages has appended before: with no new entry now, none of the pages above is newer than ours,
        # and from here on a compare-and-swap on each of them tells.
        if self._bucket.head(self._released.ledger_entry(self._head.number + 1)) is not None:
            raise ConflictError("The ledger grew meanwhile.")
        pages = dict(self._snapshot.pages)
        for step, (as_html, as_json) in planned:
            etags = self._put(as_html), self._put(as_json)
            pages[step.project] = Written(sha256=sha256_of(as_json.data), etags=etags)
        for page in root:
            self._put(page)
        self._finish(pages)
        return tuple(self._written)

    def _lists(self, projects: set[str]) -> bool:
        """Whether the list of projects has to be looked at."""
        return self._everything or self._careful or projects != self._snapshot.pages.keys()

    def _finish(self, pages: Mapping[str, Written]) -> None:
        last = self._entry(self._head.number)
        rows = [*self._rows()]
        people = Page(key=self._released.people, data=people_page(self._released, rows, last))
        snapshot = replace(
            self._snapshot,
            number=self._head.number,
            ledger_sha256=self._head.sha256,
            pages=pages,
            people=self._put(people),
            rows=rows,
        )
        self._etags[self._released.status] = self._snapshot.etag
        status = dump_status(self._released, snapshot, last, self._head.state)
        self._put(Page(key=self._released.status, data=status))

    def _state_before(self) -> State:
        if self._snapshot.number == 0:
            return NOTHING
        return self._entry(self._snapshot.number).state

    def _steps(self, before: State) -> Sequence[Step]:
        if self._everything:
            return [*all_steps(self._released, self._head.state, self._snapshot.pages, self._entry)]
        return steps(
            self._released, before, self._head.state, lambda project: self._shelf(project, before), self._entry
        )

    def _shelf(self, project: str, before: State) -> Shelf:
        """What a project's pages show: read from its JSON page if that is the one that was written last."""
        known = self._snapshot.pages.get(project)
        if known is None:
            return {}
        _, as_json = project_pages(self._released.simple, project)
        try:
            data = self._bucket.get(as_json)
        except AbsentError:
            data = b""
        if sha256_of(data) == known.sha256:
            shelf = {offer.filename: offer for offer in offers_of(data)}
            self._shown |= {p.key: p.data for p in project_pair(self._released.simple, project, shelf.values())}
            return shelf
        self._careful = True
        return stocked(self._released, project, before.visible, self._entry)

    def _note_etag(self, key: str) -> None:
        """Know what a page has to be when we replace it: as noted down, or by asking."""
        if key in self._etags:
            return
        if not self._careful:
            noted = {
                page: etag
                for project, written in self._snapshot.pages.items()
                for page, etag in zip(project_pages(self._released.simple, project), written.etags, strict=True)
            }
            if key in noted:
                self._etags[key] = noted[key]
                return
        info = self._bucket.head(key)
        self._etags[key] = info.etag if info else None

    def _put(self, page: Page) -> str:
        """Write a page unless it is there already; returns its etag."""
        etag = self._etags[page.key]
        if self._careful:
            stored = self._bucket.head(page.key)
            if stored is not None and (stored.sha256, stored.etag) == (sha256_of(page.data), etag):
                return stored.etag
        elif etag is not None and self._shown.get(page.key) == page.data:
            return etag
        info = self._bucket.put_if_match(page.key, page.data, etag=etag)
        self._etags[page.key] = info.etag
        self._shown[page.key] = page.data
        self._written.append(page.key)
        return info.etag

    def _rows(self) -> Iterator[Mapping[str, object]]:
        """The newest visible sets; what was told of them before is told again, but for its marks."""
        told = {item["entry"]: item for item in self._snapshot.rows}
        state = self._head.state
        for number in sorted(state.visible, reverse=True)[:SHOWN]:
            known = told.get(number)
            yield {**known, **marks(number, state)} if known else row(self._entry(number), state)

    def _entry(self, number: int) -> LedgerEntry:
        found = self._entries.find(number)
        if found is None:
            raise BucketError(f"{self._released.ledger_entry(number)} is not there.", hint="Run `ci_build verify`.")
        return found[0]
