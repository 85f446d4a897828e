"""Retention.

Remove old sets from the pages first, and their bytes some days later, when no
installation needs them.

Names of removed wheels are never used again: the ledger names them, and promotion
refuses them. A sweep holds the claim of the index, like a promotion; if
another entry takes its number, it is planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import chain

from core.frozen import frozen
from promotion.index.authority import ANYONE, Authority
from promotion.index.claim import claimed
from promotion.index.ledger import Entries, Head, PromotedSet, no_index
from promotion.index.ledger_state import EntryKind, IndexState
from promotion.index.operations import Change, Clock, change_ledger, utc_now
from promotion.index.publish import publish, read_head
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex

GRACE_DAYS = 7
"""Default days between removal from the pages and removal of the bytes."""


@frozen
class RetentionRule:
    """A rule that selects the sets to remove.

    Attributes:
        days: age in days after which sets leave the pages.
        keep_newest: number of newest visible sets that always stay.
        grace_days: days between leaving the pages and removal of the bytes.
    """

    days: float
    keep_newest: int = 1
    grace_days: float = GRACE_DAYS


@frozen
class RetentionPlan:
    """The changes that a retention rule requires at a time.

    Attributes:
        retire: numbers of the sets to remove from the pages.
        sweep: numbers of the sets whose bytes to remove.
        remove: key -> sha256 of the objects to remove.
        kept: number of an old set -> reason why it stays.
    """

    retire: tuple[int, ...]
    sweep: tuple[int, ...]
    remove: Mapping[str, str]
    kept: Mapping[int, str]


def plan(
    bucket: Bucket,
    released: ReleasedIndex,
    rule: RetentionRule,
    *,
    now: Clock = utc_now,
    authority: Authority = ANYONE,
) -> RetentionPlan:
    """Return the plan of a rule without applying it.

    RequestError if the bucket does not have the index.
    """
    head, entries = read_head(bucket, released, authority)
    if head.number == 0:
        raise no_index(released)
    return _plan(head, entries, rule, now())


def apply(
    bucket: Bucket,
    released: ReleasedIndex,
    rule: RetentionRule,
    *,
    now: Clock = utc_now,
    authority: Authority = ANYONE,
) -> RetentionPlan:
    """Apply a rule: update the pages, then remove bytes. Also complete interrupted sweeps."""
    authority.check_signer(now())
    _complete_sweep(bucket, released, authority)
    retention = plan(bucket, released, rule, now=now, authority=authority)
    reason = f"older than {rule.days:g} days"

    def retire(head: Head, entries: Entries) -> Change | None:
        sets = _plan(head, entries, rule, now()).retire
        return Change(kind=EntryKind.RETIRE, sets=sets, reason=reason) if sets else None

    def sweep(head: Head, entries: Entries) -> Change | None:
        claim.renew()
        fresh = _plan(head, entries, rule, now())
        if not fresh.sweep:
            return None
        keys = tuple(sorted(fresh.remove))
        return Change(
            kind=EntryKind.SWEEP, sets=fresh.sweep, reason=reason, removed=keys
        )

    change_ledger(bucket, released, retire, now=now, authority=authority)
    publish(bucket, released, authority=authority)
    if not retention.sweep:
        return retention
    with claimed(bucket, released, "retention", now=now) as claim:
        change_ledger(bucket, released, sweep, now=now, authority=authority)
        _complete_sweep(bucket, released, authority)
    publish(bucket, released, authority=authority)
    return retention


def _complete_sweep(
    bucket: Bucket, released: ReleasedIndex, authority: Authority
) -> None:
    """Remove the objects of the newest sweep, which may have been interrupted.

    Each retention completes the one before it.
    """
    head, entries = read_head(bucket, released, authority)
    for number in range(head.number, 0, -1) if head.state.swept else ():
        entry = entries.at(number)
        if entry.kind is EntryKind.SWEEP:
            swept = {number: entries.set(number) for number in entry.sets}
            others = entries.sets(head.state.held.without(swept))
            digests = bytes_of(released, swept, others)
            for key in entry.removed:
                if key in digests:
                    bucket.delete(key, sha256=digests[key])
        if entry.kind in (EntryKind.SWEEP, EntryKind.RETIRE):
            return


def _plan(
    head: Head, entries: Entries, rule: RetentionRule, now: datetime
) -> RetentionPlan:
    state = head.state
    newest = sorted(state.visible, reverse=True)[: rule.keep_newest]
    kept: dict[int, str] = {}
    retire = []
    limit = now - timedelta(days=rule.days)
    shown = state.held.without(state.retired)
    entries.sets(shown)  # refuses entries that promote no set
    for number in shown:
        if datetime.fromisoformat(entries.at(number).time) >= limit:
            continue
        why = _why_kept(number, state, newest)
        if why:
            kept[number] = why
        else:
            retire.append(number)
    hidden = now - timedelta(days=rule.grace_days)
    sweep = entries.sets(
        number
        for number, time in state.retired.items()
        if datetime.fromisoformat(time) < hidden
        and not _why_kept(number, state, newest)
    )
    others = entries.sets(state.held.without(sweep)) if sweep else {}
    remove = bytes_of(entries.released, sweep, others)
    return RetentionPlan(
        retire=tuple(retire), sweep=tuple(sweep), remove=remove, kept=kept
    )


def _why_kept(number: int, state: IndexState, newest: Iterable[int]) -> str:
    if number in state.pinned:
        return f"pinned: {state.pinned[number]}"
    if number in newest:
        return "among the newest"
    return ""


def bytes_of(
    released: ReleasedIndex,
    sweep: Mapping[int, PromotedSet],
    others: Mapping[int, PromotedSet],
) -> Mapping[str, str]:
    """Return key -> sha256 of the objects that no other set uses.

    Wheels published by other projects stay.
    """
    wheels = chain.from_iterable(other.wheels for other in others.values())
    shared = {wheel.filename for wheel in wheels}
    digests = {other.set_digest for other in others.values()}
    remove: dict[str, str] = {}
    for gone in sweep.values():
        for wheel in gone.wheels:
            if wheel.filename not in shared and not wheel.as_published:
                remove |= wheel.objects(released)
        if gone.set_digest not in digests:
            remove |= {
                released.set_file(gone.set_digest, name): sha256
                for name, sha256 in gone.files.items()
            }
    return remove
