"""Find the ledger entries of a set, without reading the entries of all other sets.

The pages of a project name the ledger entries of each wheel. So only the entries of
hidden sets, and of sets that appeared since the pages were written, are read to know
their digests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from core.digests import sha256_of
from core.errors import CiBuildError, RequestError
from core.model import WHEELS_JSON
from core.number_ranges import NO_NUMBERS, NumberRanges
from core.wheels_json import load_wheel_set
from promotion.index.index_reader import Snapshot, parse_project_page
from promotion.index.ledger import Entries, PromotedSet
from promotion.index.ledger_state import IndexState
from promotion.index.publish import read_snapshot
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex, project_pages

SHORTEST_DIGEST = 6
"""Minimum number of first digits that name a set."""


def find_set(
    bucket: Bucket,
    released: ReleasedIndex,
    text: str,
    state: IndexState,
    entries: Entries,
) -> int:
    """Return the newest held set's number for a number, or a digest or its start."""
    if text.isdecimal() and len(text) < SHORTEST_DIGEST and int(text) in state.held:
        return int(text)
    digits = text.rpartition("/")[2].lower()
    if re.fullmatch(rf"[0-9a-f]{{{SHORTEST_DIGEST},64}}", digits):
        top = released.set_file("", "").removesuffix("/")
        digests = {
            key.removeprefix(top).partition("/")[0]
            for key in bucket.list(f"{top}{digits}")
        }
        matches = [
            numbers
            for one in digests
            if (numbers := entries_of_set(bucket, released, one, state, entries))
        ]
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


def entries_of_set(
    bucket: Bucket,
    released: ReleasedIndex,
    digest: str,
    state: IndexState,
    entries: Entries,
) -> tuple[int, ...]:
    """Return the numbers of the held entries that promoted a set, newest first."""
    candidates = state.held.without(_shown_without(bucket, released, digest, entries))
    return tuple(
        number
        for number in sorted(candidates, reverse=True)
        if entries.set(number).set_digest == digest
    )


def sharing_sets(
    bucket: Bucket,
    released: ReleasedIndex,
    sets: Mapping[int, PromotedSet],
    state: IndexState,
    entries: Entries,
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
    snapshot = read_snapshot(bucket, released)
    for project, names in filenames.items():
        page = _page_sets(bucket, released, project, entries, snapshot)
        with_wheels = set[int]().union(*(page.sets_of.get(name, ()) for name in names))
        found = found.plus(state.held.without(page.shown.without(with_wheels)))
    return {number: entries.set(number) for number in found.without(sets)}


@dataclass(frozen=True, kw_only=True, slots=True)
class _PageSets:
    """The sets that a project's page shows.

    Attributes:
        shown: sets whose wheels of the project are all on the page. Empty if the page
            is not as recorded.
        sets_of: file name -> sets with this wheel.
    """

    shown: NumberRanges = NO_NUMBERS
    sets_of: Mapping[str, Collection[int]] = field(default_factory=dict)


def _page_sets(
    bucket: Bucket,
    released: ReleasedIndex,
    project: str,
    entries: Entries,
    snapshot: Snapshot,
) -> _PageSets:
    last = entries.find(snapshot.number) if snapshot.number else None
    if last is None or last[1] != snapshot.ledger_sha256:
        return _PageSets()
    visible = last[0].state.visible
    recorded = snapshot.pages.get(project)
    page = bucket.read([*project_pages(released.simple, project)][1])
    if recorded is None and page is None:
        return _PageSets(shown=visible)
    if recorded is None or page is None or sha256_of(page[0]) != recorded.sha256:
        return _PageSets()
    return _PageSets(
        shown=visible,
        sets_of={row.wheel.filename: row.sets for row in parse_project_page(page[0])},
    )


def _shown_without(
    bucket: Bucket, released: ReleasedIndex, digest: str, entries: Entries
) -> NumberRanges:
    """Return the sets that the pages show without a wheel of the set with this digest."""
    stored = bucket.read(released.set_file(digest, WHEELS_JSON))
    try:
        wheels = load_wheel_set(stored[0]).wheels if stored else ()
    except CiBuildError:
        wheels = ()
    if not wheels:
        return NO_NUMBERS
    wheel = min(
        wheels, key=lambda wheel: wheel.as_published
    )  # other sets may contain a published one
    page = _page_sets(
        bucket, released, wheel.name, entries, read_snapshot(bucket, released)
    )
    return page.shown.without(page.sets_of.get(wheel.filename, ()))
