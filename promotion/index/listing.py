"""The page `v2/index.html`, which lists the indexes of a bucket.

The page contains its rows as JSON, so it is its own record: a publisher replaces the
row of its index, and other rows stay. It changes only with the targets of an index.
After damage, each index adds its row when it is published or repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from core.errors import BusyError, FormatError, RequestError
from core.records import read_json
from core.targets import load_table
from promotion.index.json_types import ListedIndex, SetRow
from promotion.index.overview import natural_key
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.object_keys import LISTING, ReleasedIndex
from promotion.website.render import render

_ROWS = re.compile(
    rb'<script type="application/json" id="indexes">(.*?)</script>', re.DOTALL
)
_MAX_RACES = 100


def listing_row(released: ReleasedIndex, rows: Sequence[SetRow]) -> ListedIndex:
    """Return the row of an index.

    Args:
        rows: the newest visible sets; see `status.set_row`.
    """
    served = (row["tiers"] for row in rows if not row["yanked"])
    targets = sorted(set[str]().union(*served), key=natural_key)
    channel = str(rows[0]["policy"].get("channel", "")) if rows else ""
    return {"index": released.index, "channel": channel, "targets": targets}


def listing_page(rows: Iterable[ListedIndex]) -> bytes:
    """Return the page of some indexes."""
    known = load_table().targets
    ordered = sorted(rows, key=lambda row: row["index"])
    products = {}
    for target in chain.from_iterable(row["targets"] for row in ordered):
        if target in known and known[target].product:
            products[target] = known[target].product
    return render(
        "indexes.html",
        {"title": "JAX for ROCm: indexes", "indexes": ordered, "products": products},
    )


def parse_listing(page: bytes) -> tuple[ListedIndex, ...] | None:
    """Return the rows of a page, or None if it is not exactly the page of its rows."""
    found = _ROWS.search(page)
    try:
        rows = read_json(found[1] if found else b"null", list[ListedIndex], LISTING)
        for row in rows:
            ReleasedIndex(index=row["index"])
    except (FormatError, RequestError):
        return None
    return tuple(rows) if listing_page(rows) == page else None


def update_listing(bucket: Bucket, row: ListedIndex) -> tuple[str, ...]:
    """Write the row of an index, and return the key of the page if it changed.

    Raises:
        BusyError: other publishers changed the page all the time.
    """
    for _ in range(_MAX_RACES):
        stored = bucket.read(LISTING)
        others = (parse_listing(stored[0]) if stored else None) or ()
        page = listing_page(
            [*(one for one in others if one["index"] != row["index"]), row]
        )
        if stored and stored[0] == page:
            return ()
        try:
            bucket.put_if_match(LISTING, page, etag=stored[1].etag if stored else None)
        except ConflictError:
            continue
        return (LISTING,)
    raise BusyError(
        f"{LISTING} changed during each of {_MAX_RACES} attempts.",
        hint="Run the command again.",
    )


def lists_index(bucket: Bucket, row: ListedIndex) -> bool:
    """Return whether the page is intact and has this row."""
    stored = bucket.read(LISTING)
    return row in ((parse_listing(stored[0]) if stored else None) or ())
