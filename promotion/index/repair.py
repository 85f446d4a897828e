"""`verify --repair`: restore pages and tombstones, and remove what interrupted sweeps and promotions left.

The ledger, the files of held sets, and published wheels of other projects are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from core.errors import BucketError, RequestError
from promotion.index.authority import ANYONE, Authority
from promotion.index.inventory import read_inventory
from promotion.index.ledger import RecordedEntry, read_ledger
from promotion.index.leftovers import Leftover, find_leftovers
from promotion.index.operations import Clock, utc_now
from promotion.index.publish import publish, read_snapshot
from promotion.index.reservations import removing
from promotion.index.retention import complete_sweeps
from promotion.index.status import Summaries
from promotion.storage.bucket import Bucket
from promotion.storage.keys import ReleasedIndex

GRACE_HOURS = 24
"""Default minimum age of the files that are removed; promotions take at most `reservations.MOST_HOURS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRepair:
    """The result of a repair.

    Attributes:
        written: keys of the restored pages.
        removed: keys of the removed objects.
        kept: key of an object that the ledger does not name -> reason why it stays.
    """

    written: tuple[str, ...]
    removed: tuple[str, ...]
    kept: Mapping[str, str]


def repair(
    bucket: Bucket,
    released: ReleasedIndex,
    *,
    grace: timedelta,
    foreign: bool = False,
    now: Clock = utc_now,
    authority: Authority = ANYONE,
    since: RecordedEntry | None = None,
) -> IndexRepair:
    """Restore the pages of an index, and remove the files that its ledger does not name. Safe at any time.

    Args:
        grace: minimum age of the files to remove, longer than any promotion takes. Zero also ignores reservations, so
            no promotion may be running.
        foreign: remove also objects that no promotion copied.
        authority: accepted signatures of ledger entries.
        since: entry that the ledger must contain, or None.

    Raises:
        RequestError: the bucket does not have the index.
        BucketError: the ledger is damaged, was cut or rewritten, or has entries that the authority does not accept: the
            files of a lost entry would look like leftovers.
        BusyError: another repair is removing files.
    """
    ledger = read_ledger(bucket, released)
    if since and (problem := since.problem(released, ledger)):
        raise BucketError(problem, hint="Restore the ledger from a backup. Nothing was changed.")
    if not ledger.entries:
        raise RequestError(f"The bucket has no index {released.index}.", hint="Promote a set to it first.")
    written = publish(bucket, released, everything=True, authority=authority)
    if problems := [*authority.problems(released, read_ledger(bucket, released).entries)]:
        hint = "\nOnly pages were repaired: no file is removed without a sound ledger."
        raise BucketError("\n  ".join(("The ledger has problems:", *problems)), hint=hint)
    swept = complete_sweeps(bucket, released, authority)

    def reasons(reserved: Mapping[str, datetime]) -> Iterator[tuple[Leftover, str]]:
        for one in _leftovers(bucket, released):
            limit = now() - grace if grace else datetime.max.replace(tzinfo=UTC)
            yield one, _reason_to_keep(one, reserved, limit, foreign=foreign)

    found = [*reasons({})]
    kept = {one.key: reason for one, reason in found if reason}
    if len(kept) == len(found):
        return IndexRepair(written=written, removed=swept, kept=kept)
    removed = [*swept]
    with removing(bucket, released, promoted=_promoted(bucket, released), now=now) as removal:
        # Read again: a promotion that ended before the removal began has a ledger entry now.
        kept = {}
        for one, reason in reasons(removal.reserved):
            removal.check()
            if reason or one.info is None:
                kept[one.key] = reason
                continue
            try:
                removed += [one.key] * bucket.delete(one.key, sha256=one.info.sha256)
            except BucketError as error:  # such as a foreign object that the promoter may not remove
                kept[one.key] = f"it cannot be removed: {error.message}"
    return IndexRepair(written=written, removed=tuple(removed), kept=kept)


def _promoted(bucket: Bucket, released: ReleasedIndex) -> frozenset[str]:
    """Return the digests of all promoted sets."""
    entries = read_ledger(bucket, released).entries
    return frozenset(entry.promoted.set_digest for entry in entries if entry.promoted)


def _leftovers(bucket: Bucket, released: ReleasedIndex) -> tuple[Leftover, ...]:
    """Return the objects that the ledger does not name, each wheels.json after the files that it describes."""
    entries = read_ledger(bucket, released).entries
    inventory = read_inventory(released, entries, read_snapshot(bucket, released), Summaries(bucket, released))
    keys = [key for key in inventory.unnamed(bucket, released) if key not in inventory.kept]
    found = find_leftovers(bucket, released, keys, inventory.files)
    return tuple(sorted(found, key=lambda one: (one.key.endswith("/wheels.json"), one.key)))


def _reason_to_keep(one: Leftover, reserved: Mapping[str, datetime], limit: datetime, *, foreign: bool) -> str:
    """Return the reason why an object stays, or an empty text.

    Args:
        reserved: digest of a set -> time of its last reservation.
        limit: time before which files must have been written, and reserved, to be removed.
    """
    if one.info is None:
        return "it cannot be read; remove it by hand"
    if not one.origin and not foreign:
        return "it is foreign; --remove-foreign removes it"
    if one.info.modified > limit:
        return f"it was written at {one.info.modified:%Y-%m-%d %H:%M} UTC, and a promotion may need it"
    for digest, time in reserved.items():
        if time > limit:
            return f"a promotion of set {digest[:12]}, which ran at {time:%Y-%m-%d %H:%M} UTC, may need it"
    return ""
