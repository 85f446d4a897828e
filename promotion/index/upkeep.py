"""The times at which the upkeep of an index ran last, also if there was nothing to do."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from core.errors import BucketError, BusyError
from promotion.evidence.evidence import TIME, time_of
from promotion.index.operations import utc_now
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import UPKEEP, ReleasedIndex


def record_upkeep(bucket: Bucket, released: ReleasedIndex, work: str) -> None:
    """Record that work of UPKEEP ended now, if the caller may write the bucket."""
    key = released.upkeep(work)
    text = f"{utc_now().strftime(TIME)}\n"
    # Everyone may verify an index, and a second run at the same time records it too.
    with contextlib.suppress(BucketError, BusyError):
        stored = bucket.head(key)
        bucket.put_if_match(key, text.encode(), etag=stored.etag if stored else None)


def last_upkeep(bucket: Bucket, released: ReleasedIndex) -> Mapping[str, str]:
    """Return work -> time of its last recorded run in UTC; empty if none is recorded."""
    times = {}
    for work in UPKEEP:
        stored = bucket.read(released.upkeep(work))
        text = stored[0].decode(errors="replace").strip() if stored else ""
        times[work] = text if time_of(text) else ""
    return times
