"""Publishing: the pages of a released index, from its ledger, as far as they are not written yet."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ci_build.errors import BucketError, BusyError
from promotion.bucket import Bucket, ConflictError, sha256_of
from promotion.index import Page, pages
from promotion.layout import Released
from promotion.ledger import Ledger, LedgerEntry, read_ledger

SCHEMA_VERSION = 1
_MAX_RACES = 100


def publish(bucket: Bucket, released: Released, *, everything: bool = False) -> tuple[str, ...]:
    """Bring the pages up to the ledger; safe to run at any time and by several at once.

    `status.json` tells up to which entry the pages are written. It is written last, so whoever comes after a crash
    finishes the work.

    Args:
        bucket: where the index is.
        released: the index.
        everything: look at every page, not only at those of projects with new entries.

    Returns:
        Keys that were written.

    Raises:
        BucketError: the ledger cannot be trusted.
    """
    for _ in range(_MAX_RACES):
        written_up_to = _written_up_to(bucket, released)
        ledger = read_ledger(bucket, released)
        if written_up_to > len(ledger.entries):
            raise BucketError(
                f"{released.status} speaks of {written_up_to} ledger entries; there are {len(ledger.entries)}.",
                hint="Restore the ledger from a backup; nothing was changed.",
            )
        new = ledger.entries if everything else ledger.entries[written_up_to:]
        if not new:
            return ()
        try:
            return _write(bucket, released, ledger, new)
        except ConflictError:
            continue
    raise BusyError(f"The pages of {released.index} changed {_MAX_RACES} times meanwhile.", hint="Run it again.")


def status_json(released: Released, ledger: Ledger) -> bytes:
    """What the index offers, newest set first, for people and monitors."""
    sets = [
        {
            "digest": entry.set_digest,
            "promoted": entry.time,
            "tier": entry.tier,
            "tiers": dict(entry.tiers),
            "jax": entry.jax_version,
            "rocm": entry.rocm_version,
            "pythons": list(entry.python_versions),
            "policy": dict(entry.policy),
        }
        for entry in reversed(ledger.entries)
    ]
    body = {
        "schema": SCHEMA_VERSION,
        "index": released.index,
        "entries": len(ledger.entries),
        "ledger_sha256": ledger.head,
        "sets": sets,
    }
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def _written_up_to(bucket: Bucket, released: Released) -> int:
    """The entry up to which the pages are written; 0 when nobody knows."""
    if bucket.head(released.status) is None:
        return 0
    try:
        entries = json.loads(bucket.get(released.status))["entries"]
    except (ValueError, KeyError, TypeError):
        return 0
    return entries if type(entries) is int and entries > 0 else 0


def _write(bucket: Bucket, released: Released, ledger: Ledger, new: Sequence[LedgerEntry]) -> tuple[str, ...]:
    """Write what differs, in order.

    Raises:
        ConflictError: somebody else is further: the ledger or a page changed since it was read.
    """
    changed = frozenset(wheel.project for entry in new for wheel in entry.wheels)
    wanted = [*pages(released.simple, ledger.offers(released), only=changed)]
    wanted.append(Page(key=released.status, data=status_json(released, ledger)))
    stored = {page.key: bucket.head(page.key) for page in wanted}
    # Whoever writes pages has appended before: with no new entry now, none of the pages above is newer than ours, and
    # from here on a compare-and-swap on each of them tells.
    if bucket.head(released.ledger_entry(len(ledger.entries) + 1)) is not None:
        raise ConflictError("The ledger grew meanwhile.")
    written = []
    for page in wanted:
        before = stored[page.key]
        if before is None or before.sha256 != sha256_of(page.data):
            bucket.put_if_match(page.key, page.data, etag=before.etag if before else None)
            written.append(page.key)
    return tuple(written)
