"""Find the ledger entries of a set, without reading the entries of all other sets.

The pages of a project name the ledger entries of each wheel. So only the entries of
hidden sets, and of sets that appeared since the pages were written, are read to know
their digests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import chain

from core.digests import sha256_of
from core.errors import CiBuildError, RequestError
from core.model import WHEELS_JSON
from core.number_ranges import NO_NUMBERS, NumberRanges
from core.wheels_json import load_wheel_set
from promotion.index.index_reader import IndexedWheel, Snapshot, parse_project_page
from promotion.index.ledger import Entries, PromotedSet
from promotion.index.ledger_state import IndexState
from promotion.index.publish import read_snapshot
from promotion.storage.object_keys import project_pages

SHORTEST_DIGEST = 6
"""Minimum number of first digits that name a set."""


def find_set(text: str, state: IndexState, entries: Entries) -> int:
    """Return the newest held set's number for a number, or a digest or its start."""
    if text.isdecimal() and len(text) < SHORTEST_DIGEST and int(text) in state.held:
        return int(text)
    released = entries.released
    digits = text.rpartition("/")[2].lower()
    if re.fullmatch(rf"[0-9a-f]{{{SHORTEST_DIGEST},64}}", digits):
        top = released.set_file("", "").removesuffix("/")
        digests = {
            key.removeprefix(top).partition("/")[0]
            for key in entries.bucket.list(f"{top}{digits}")
        }
        found = [entries_of_set(digest, state, entries) for digest in digests]
        matches = [numbers for numbers in found if numbers]
        if len(matches) > 1:
            raise RequestError(
                f"The digests of several sets of {released.index} start with {text}.",
                hint="Give more digits.",
            )
        if matches:
            return matches[0][0]
    raise RequestError(
        f"The index {released.index} has no set {text}.",
        hint=f"Run `ci_build index history {released.index}` to see its entries.",
    )


def entries_of_set(digest: str, state: IndexState, entries: Entries) -> tuple[int, ...]:
    """Return the numbers of the held entries that promoted a set, newest first."""
    candidates = state.held.without(_shown_without(digest, entries))
    return tuple(
        number
        for number in sorted(candidates, reverse=True)
        if entries.set(number).set_digest == digest
    )


def sharing_sets(
    sets: Mapping[int, PromotedSet], state: IndexState, entries: Entries
) -> Mapping[int, PromotedSet]:
    """Return the held sets other than `sets` that may share a digest or a built wheel with them."""
    filenames: dict[str, set[str]] = {}
    for promoted in sets.values():
        own = [
            wheel for wheel in promoted.wheels if not wheel.as_published
        ] or promoted.wheels
        for wheel in own:
            filenames.setdefault(wheel.project, set()).add(wheel.filename)
    found = NO_NUMBERS
    snapshot = read_snapshot(entries.bucket, entries.released)
    for project, names in filenames.items():
        without = _sets_without(project, names, entries, snapshot)
        found = found.plus(state.held.without(without))
    return {number: entries.set(number) for number in found.without(sets)}


def page_rows(
    project: str, entries: Entries, snapshot: Snapshot
) -> tuple[IndexedWheel, ...] | None:
    """Return the rows of a project's page; None if the page is not as status.json records it."""
    recorded = snapshot.pages.get(project)
    _, key = project_pages(entries.released.simple, project)
    page = entries.bucket.read(key)
    if recorded is None and page is None:
        return ()
    if recorded is None or page is None or sha256_of(page[0]) != recorded.sha256:
        return None
    return parse_project_page(page[0])


def _sets_without(
    project: str, names: Collection[str], entries: Entries, snapshot: Snapshot
) -> NumberRanges:
    """Return the sets that the pages show without wheels of these names."""
    last = entries.find(snapshot.number) if snapshot.number else None
    rows = page_rows(project, entries, snapshot)
    if last is None or last[1] != snapshot.ledger_sha256 or rows is None:
        return NO_NUMBERS
    having = (row.sets for row in rows if row.wheel.filename in names)
    return last[0].state.visible.without(chain.from_iterable(having))


def _shown_without(digest: str, entries: Entries) -> NumberRanges:
    """Return the sets that the pages show without a wheel of the set with this digest."""
    stored = entries.bucket.read(entries.released.set_file(digest, WHEELS_JSON))
    try:
        wheels = load_wheel_set(stored[0]).wheels if stored else ()
    except CiBuildError:
        wheels = ()
    if not wheels:
        return NO_NUMBERS
    # Other sets may contain a published one.
    wheel = min(wheels, key=lambda wheel: wheel.as_published)
    snapshot = read_snapshot(entries.bucket, entries.released)
    return _sets_without(wheel.name, [wheel.filename], entries, snapshot)
