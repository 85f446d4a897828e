"""Operations that roll back, yank, quarantine and pin sets.

Each operation appends a ledger entry and publishes the pages. No operation removes
data, so each can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime

from core.digests import sha256_of
from core.errors import BusyError, MachineError, RequestError
from core.frozen import frozen
from promotion.evidence.evidence import CLOCK_SKEW, TIME
from promotion.index.authority import ANYONE, Authority
from promotion.index.ledger import (
    Entries,
    Head,
    LedgerEntry,
    PromotedSet,
    channel_of,
    load_entry,
    no_index,
    read_ledger,
)
from promotion.index.ledger_state import (
    EMPTY_STATE,
    EntryKind,
    IndexState,
    apply_change,
)
from promotion.index.publish import publish, read_head
from promotion.index.set_lookup import entries_of_set, find_set
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.object_keys import ReleasedIndex

Clock = Callable[[], datetime]
NEEDS_REASON = frozenset(
    {EntryKind.YANK, EntryKind.QUARANTINE, EntryKind.ROLLBACK, EntryKind.PIN}
)
"""Kinds of entries that require a reason."""
_MAX_RACES = 100


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


@frozen
class OperationResult:
    """The result of an operation.

    Attributes:
        entry: the new entry, or None when the index was already in the requested state.
        appeared: numbers of the sets that became visible.
        vanished: numbers of the sets that became hidden.
        withheld: number of a set that a rollback cannot restore -> reason.
        pages: keys of the written pages.
    """

    entry: LedgerEntry | None
    appeared: tuple[int, ...] = ()
    vanished: tuple[int, ...] = ()
    withheld: Mapping[int, str] = field(default_factory=dict)
    pages: tuple[str, ...] = ()


@frozen
class Change:
    """A planned ledger entry.

    Attributes:
        sets: numbers of the changed sets; see `ledger_state.apply_change`.
        earlier, to: for a rollback, the state to restore and the number of its entry.
        promoted: for a promotion, the set.
        removed: for a sweep or a repair, the keys of the objects to remove.
    """

    kind: EntryKind
    sets: tuple[int, ...] = ()
    reason: str = ""
    earlier: IndexState = EMPTY_STATE
    to: int = 0
    promoted: PromotedSet | None = None
    removed: tuple[str, ...] = ()


Draft = Callable[[Head, Entries], Change | None]
"""Function that plans the entry after the end of a ledger; None if nothing changes."""


@frozen
class LedgerChange:
    """The result of appending to a ledger.

    Attributes:
        change: the change, or None when none was planned.
        entry: the new entry, or None when nothing changed.
        before: state before the entry.
        new: whether this call created the entry. False if another process already wrote
            the same entry.
    """

    change: Change | None
    entry: LedgerEntry | None
    before: IndexState
    new: bool = False


def rollback(
    bucket: Bucket,
    released: ReleasedIndex,
    *,
    to: int | None,
    reason: str,
    now: Clock = utc_now,
    authority: Authority = ANYONE,
) -> OperationResult:
    """Restore the visible sets of entry `to`, or for None those before the last change.

    Sets that retention hid return while their bytes are there. Swept and quarantined
    sets stay hidden, and yanked sets stay yanked. With None, a rollback that directly
    follows a rollback changes nothing, so an interrupted command can be repeated.

    Raises:
        RequestError: the ledger has no such entry, or all sets of the entry are swept or
            quarantined.
    """

    def draft(head: Head, entries: Entries) -> Change | None:
        number = _before_last_change(head, entries) if to is None else to
        if number is None:
            return None
        if number > head.number or number < 0:
            raise RequestError(
                f"The ledger of {released.index} has no entry {number}; the last one is"
                f" {head.number}.",
                hint=f"Run `ci_build index history {released.index}` to see its entries.",
            )
        earlier = entries.at(number).state if number else EMPTY_STATE
        withheld = _withheld(earlier, head.state)
        if withheld and len(withheld) == len([*earlier.visible]):
            reasons = [f"the set of entry {n} is {why}" for n, why in withheld.items()]
            raise RequestError(
                f"No set of entry {number} can be offered again: {', '.join(reasons)}.",
                hint="Promote another set, or name another entry.",
            )
        return Change(
            kind=EntryKind.ROLLBACK, reason=reason, earlier=earlier, to=number
        )

    return _do(bucket, released, draft, now=now, authority=authority)


def mark(
    bucket: Bucket,
    released: ReleasedIndex,
    kind: EntryKind,
    sets: Sequence[str],
    *,
    reason: str,
    now: Clock = utc_now,
    authority: Authority = ANYONE,
) -> OperationResult:
    """Yank, quarantine or pin sets, or remove these marks.

    Args:
        sets: digests of sets, first digits of digests, or entry numbers.

    Raises:
        RequestError: the index has no such set, or a required reason is missing.
    """
    if kind in NEEDS_REASON and not reason.strip():
        raise RequestError(f"{kind} requires a reason.", hint="Give --reason.")

    def draft(head: Head, entries: Entries) -> Change:
        numbers = {find_set(text, head.state, entries) for text in sets}
        if kind not in (EntryKind.PIN, EntryKind.UNPIN):
            # A set that left the pages and was promoted again has several entries, and
            # a rollback can restore each.
            digests = {entries.set(number).set_digest for number in numbers}
            for digest in digests:
                numbers.update(entries_of_set(digest, head.state, entries))
        return Change(kind=kind, sets=tuple(sorted(numbers)), reason=reason)

    return _do(bucket, released, draft, now=now, authority=authority)


def _time_after(head: Head, entries: Entries, now: datetime) -> str:
    """Return the time of a new entry, which is never before that of the entry before it.

    MachineError if the clock of this machine contradicts the ledger or the store: ages of
    evidence and of sets would be wrong, and retention would remove too much.
    """
    time = now.astimezone(UTC).strftime(TIME)
    stored = entries.bucket.clock()
    if stored is not None and abs(stored - now) > CLOCK_SKEW:
        raise MachineError(
            f"The clock of this machine says {time}, that of the store"
            f" {stored.strftime(TIME)}.",
            hint="Set the clock of the machine that is wrong.",
        )
    if not head.number:
        return time
    last = entries.at(head.number).time
    if datetime.fromisoformat(last) > now + CLOCK_SKEW:
        raise MachineError(
            f"The clock of this machine says {time}, before entry {head.number} of the"
            f" ledger, {last}.",
            hint="Set the clock of the machine that is wrong.",
        )
    return max(time, last)


def change_ledger(
    bucket: Bucket,
    released: ReleasedIndex,
    draft: Draft,
    *,
    now: Clock,
    authority: Authority = ANYONE,
) -> LedgerChange:
    """Append the entry of a change to the ledger.

    After a lost race, read the new entries and draft the change again.

    Args:
        authority: signer of the entry, and accepted signatures of the entries before
            it.

    Raises:
        BucketError: the ledger has a gap, was cut, or has an entry that the authority
            does not accept.
        RequestError: the authority may not sign.
        MachineError: the clock contradicts the ledger.
    """
    for _ in range(_MAX_RACES):
        head, entries = read_head(bucket, released, authority)
        change = draft(head, entries)
        unchanged = LedgerChange(change=change, entry=None, before=head.state)
        if change is None:
            return unchanged
        time = _time_after(head, entries, now())
        state = apply_change(
            head.state,
            change.kind,
            change.sets,
            time=time,
            reason=change.reason,
            earlier=change.earlier,
        )
        if state == head.state and not change.removed:
            return unchanged
        authority.check_signer(datetime.fromisoformat(time))
        entry = LedgerEntry(
            number=head.number + 1,
            previous=head.sha256,
            time=time,
            kind=change.kind,
            state=state,
            actor=authority.actor,
            reason=change.reason,
            sets=change.sets,
            to=change.to,
            promoted=change.promoted,
            removed=change.removed,
            bucket=bucket.identity,
            index=released.index,
            channel=authority.channel or channel_of(head, entries),
            policy=authority.policy,
            source=authority.source,
        )
        data = entry.dump(authority.signer)
        key = released.ledger_entry(entry.number)
        try:
            new = bucket.put_if_absent(key, data, sha256=sha256_of(data))
        except ConflictError:
            continue
        return replace(unchanged, entry=load_entry(data, key), new=new)
    raise BusyError(
        f"The ledger of {released.index} changed during each of {_MAX_RACES} attempts.",
        hint="Run the command again.",
    )


def _do(
    bucket: Bucket,
    released: ReleasedIndex,
    draft: Draft,
    *,
    now: Clock,
    authority: Authority,
) -> OperationResult:
    changed = change_ledger(bucket, released, draft, now=now, authority=authority)
    # Publish without a new entry too: an earlier command may have stopped before it
    # wrote the pages.
    pages = publish(bucket, released, authority=authority)
    old = {*changed.before.visible}
    visible = {*(changed.entry.state if changed.entry else changed.before).visible}
    earlier = changed.change.earlier if changed.change else EMPTY_STATE
    return OperationResult(
        entry=changed.entry,
        appeared=tuple(sorted(visible - old)),
        vanished=tuple(sorted(old - visible)),
        withheld=_withheld(earlier, changed.before),
        pages=pages,
    )


def _withheld(earlier: IndexState, state: IndexState) -> Mapping[int, str]:
    """Return the visible sets of an earlier state that cannot be visible now, and why."""
    withheld: dict[int, str] = {}
    for number in earlier.visible:
        if number in state.quarantined:
            withheld[number] = f"quarantined ({state.quarantined[number]})"
        elif number not in state.held:
            withheld[number] = "removed by retention"
    return withheld


def _before_last_change(head: Head, entries: Entries) -> int | None:
    """Return the entry before the last change of visible sets, or None after rollback."""
    for number in range(head.number, 0, -1):
        entry = entries.at(number)
        before = entries.at(number - 1).state if number > 1 else EMPTY_STATE
        if entry.state.visible != before.visible:
            return None if entry.kind is EntryKind.ROLLBACK else number - 1
    raise RequestError("The index has no earlier state.", hint="Promote a set first.")


def history(bucket: Bucket, released: ReleasedIndex) -> tuple[LedgerEntry, ...]:
    """Return all entries, newest first."""
    entries = read_ledger(bucket, released).entries
    if not entries:
        raise no_index(released)
    return entries[::-1]
