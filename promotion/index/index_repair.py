"""`index verify --repair`.

Restore pages, and remove what interrupted sweeps and promotions left.

The ledger, the files of held sets, and published wheels of other projects are never
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.errors import BucketError
from promotion.index.authority import ANYONE, Authority
from promotion.index.claim import Claim, claimed
from promotion.index.inventory import read_inventory
from promotion.index.ledger import Entries, Head, RecordedEntry, no_index, read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.leftovers import Leftover, find_leftovers
from promotion.index.operations import Change, Clock, change_ledger, utc_now
from promotion.index.publish import publish
from promotion.index.retention import complete_sweeps
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRepair:
    """The result of a repair.

    Attributes:
        written: keys of the restored pages, and of those that show the ledger entry of
            the repair.
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
    actor: str = "",
    foreign: bool = False,
    now: Clock = utc_now,
    authority: Authority = ANYONE,
    since: RecordedEntry | None = None,
) -> IndexRepair:
    """Restore the pages of an index, and remove the files that its ledger does not name.

    Safe at any time.

    Before files are removed, a ledger entry names them, so that no promotion that began
    earlier can use them; see `claim`.

    Args:
        actor: name of the person or job that repairs the index, for the ledger.
        foreign: remove also objects that no promotion copied.
        authority: accepted signatures of ledger entries, and the signer of the new one.
        since: entry that the ledger must contain, or None.

    Raises:
        RequestError: the bucket does not have the index, or files must be removed and
            the authority may not sign.
        BucketError: the ledger is damaged, was cut or rewritten, or has entries that
            the authority does not accept: the files of a lost entry would look like
            leftovers.
        BusyError: a promotion or another repair is running.
    """
    ledger = read_ledger(bucket, released)
    present = ledger.digest_of(since.number) if since else ""
    if since and (problem := since.problem(released, present)):
        raise BucketError(
            problem, hint="Restore the ledger from a backup. Nothing was changed."
        )
    if not ledger.entries:
        raise no_index(released)
    written = publish(bucket, released, everything=True, authority=authority)
    removed = complete_sweeps(bucket, released, authority)
    removing, kept = _leftovers(bucket, released, foreign=foreign)

    def draft(_head: Head, _entries: Entries) -> Change:
        claim.renew()
        removing[:] = _leftovers(bucket, released, foreign=foreign)[0]
        keys = tuple(one.key for one in removing)
        return Change(kind=EntryKind.REPAIR, reason="leftovers", removed=keys)

    if removing:
        with claimed(bucket, released, "repair", now=now) as claim:
            change_ledger(
                bucket, released, draft, actor=actor, now=now, authority=authority
            )
            gone, denied = _remove(bucket, claim, removing)
        removed += gone
        kept = {**_leftovers(bucket, released, foreign=foreign)[1], **denied}
        written += publish(bucket, released, authority=authority)
    return IndexRepair(
        written=tuple(dict.fromkeys(written)), removed=removed, kept=kept
    )


def _remove(
    bucket: Bucket, claim: Claim, removing: Sequence[Leftover]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the keys of removed objects, and key -> reason of those not removed."""
    removed: list[str] = []
    kept: dict[str, str] = {}
    for one in removing:
        assert one.info is not None
        claim.confirm()
        try:
            if bucket.delete(one.key, sha256=one.info.sha256):
                removed.append(one.key)
        except (
            BucketError
        ) as error:  # such as a foreign object that the promoter may not remove
            kept[one.key] = f"it cannot be removed: {error.message}"
    return tuple(removed), kept


def _leftovers(
    bucket: Bucket, released: ReleasedIndex, *, foreign: bool
) -> tuple[list[Leftover], Mapping[str, str]]:
    """Return the objects to remove in safe order, and key -> reason of others."""
    inventory = read_inventory(read_ledger(bucket, released))
    keys = [
        key for key in inventory.unnamed(bucket, released) if key not in inventory.kept
    ]
    removing: list[Leftover] = []
    kept: dict[str, str] = {}
    for one in find_leftovers(bucket, released, keys):
        if one.info is None:
            kept[one.key] = "it cannot be read; remove it by hand"
        elif not one.origin and not foreign:
            kept[one.key] = "it is foreign; --remove-foreign removes it"
        else:
            removing.append(one)
    removing.sort(key=lambda one: (one.key.endswith("/wheels.json"), one.key))
    return removing, kept
