"""Find the ledger entries of a set, without reading the entries of all other sets.

The pages of a project name the ledger entries of each wheel. So only the entries of hidden sets, and of sets that
appeared since the pages were written, are read to know their digests.
"""

from __future__ import annotations

import re

from core.errors import CiBuildError, RequestError
from core.model import WHEELS_JSON
from core.number_ranges import NO_NUMBERS, NumberRanges
from core.wheels_json import load_wheel_set
from promotion.index.ledger import Entries
from promotion.index.ledger_state import IndexState
from promotion.index.publish import read_snapshot
from promotion.index.reader import parse_project_page
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import ReleasedIndex, project_pages

SHORTEST_DIGEST = 6
"""Minimum number of first digits that name a set."""


def find_set(bucket: Bucket, released: ReleasedIndex, text: str, state: IndexState, entries: Entries) -> int:
    """Return the number of the newest held set for a number, a digest or the first digits of a digest."""
    if text.isdecimal() and len(text) < SHORTEST_DIGEST and int(text) in state.held:
        return int(text)
    digits = text.rpartition("/")[2].lower()
    if re.fullmatch(rf"[0-9a-f]{{{SHORTEST_DIGEST},64}}", digits):
        top = released.set_file("", "").removesuffix("/")
        digests = {key.removeprefix(top).partition("/")[0] for key in bucket.list(f"{top}{digits}")}
        matches = [numbers for one in digests if (numbers := entries_of_set(bucket, released, one, state, entries))]
        if len(matches) > 1:
            raise RequestError(
                f"The digests of several sets of {released.index} start with {text}.", hint="Give more digits."
            )
        if matches:
            return matches[0][0]
    raise RequestError(
        f"The index {released.index} has no set {text}.",
        hint=f"Run `ci_build history {released.index}` to see its entries.",
    )


def entries_of_set(
    bucket: Bucket, released: ReleasedIndex, digest: str, state: IndexState, entries: Entries
) -> tuple[int, ...]:
    """Return the numbers of the held entries that promoted a set, newest first."""
    candidates = state.held.without(_shown_without(bucket, released, digest, entries))
    return tuple(number for number in sorted(candidates, reverse=True) if entries.set(number).set_digest == digest)


def _shown_without(bucket: Bucket, released: ReleasedIndex, digest: str, entries: Entries) -> NumberRanges:
    """Return the sets that the pages show, and that lack a wheel of a set; none if the pages are not as recorded."""
    snapshot, stored = read_snapshot(bucket, released), bucket.read(released.set_file(digest, WHEELS_JSON))
    last = entries.find(snapshot.number) if snapshot.number else None
    if stored is None or last is None or last[1] != snapshot.ledger_sha256:
        return NO_NUMBERS
    try:
        wheels = load_wheel_set(stored[0]).wheels
    except CiBuildError:
        return NO_NUMBERS
    wheel = min(wheels, key=lambda wheel: wheel.as_published)  # other sets may contain a published one
    recorded = snapshot.pages.get(wheel.name)
    if recorded is None:
        return last[0].state.visible
    page = bucket.read([*project_pages(released.simple, wheel.name)][1])
    if page is None or sha256_of(page[0]) != recorded.sha256:
        return NO_NUMBERS
    rows = parse_project_page(page[0])
    numbers = {number for row in rows if row.wheel.filename == wheel.filename for number in row.sets}
    return last[0].state.visible.without(numbers)
