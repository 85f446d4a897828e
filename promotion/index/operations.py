"""Undoing and keeping: rollback, yank, quarantine, pin; each is an entry at the ledger's end, then pages.

Nothing is removed by any of them, so each can be undone in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from core.errors import RequestError
from promotion.index.ledger import Entries, Head, LedgerEntry, append
from promotion.index.ledger_state import Change, EntryKind, IndexState, apply_change
from promotion.index.publish import publish, read_head
from promotion.storage.bucket import Bucket
from promotion.storage.keys import ReleasedIndex

Clock = Callable[[], datetime]
NEEDS_REASON = frozenset({EntryKind.YANK, EntryKind.QUARANTINE, EntryKind.ROLLBACK, EntryKind.PIN})
"""Who comes later has to know why."""
_SHORTEST_DIGEST = 6


def utc_now() -> datetime:
    """The time."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationResult:
    """What an operation did.

    Attributes:
        entry: the new entry, or None when the index is already as asked.
        appeared, vanished: sets, by number, that users see now and did not, and the other way round.
        withheld: sets that a rollback does not bring back: they are in quarantine, retired or removed.
        pages: keys of the pages that were written.
    """

    entry: LedgerEntry | None
    appeared: tuple[int, ...] = ()
    vanished: tuple[int, ...] = ()
    withheld: tuple[int, ...] = ()
    pages: tuple[str, ...] = ()


def rollback(
    bucket: Bucket, released: ReleasedIndex, *, to: int | None, reason: str, actor: str, now: Clock = utc_now
) -> OperationResult:
    """Let an index offer again what it did after entry `to`; None is the state before the last entry that changed it.

    Sets that are retired, swept or in quarantine do not come back, and yanked ones come back yanked. Where the last
    change was a rollback, None means that one: whoever runs it again, because the first run died, undoes nothing.

    Raises:
        RequestError: there is no such entry.
    """
    wanted: set[int] = set()

    def draft(head: Head, entries: Entries) -> Change | None:
        number = _before_last_change(head, entries) if to is None else to
        if number is None:
            return None
        if number > head.number or number < 0:
            raise RequestError(
                f"The ledger of {released.index} has {head.number} entries, so that there is none numbered {number}.",
                hint=f"`ci_build history {released.index}` lists them.",
            )
        earlier = entries.at(number).state if number else IndexState()
        wanted.clear()
        wanted.update(earlier.visible)
        return Change(kind=EntryKind.ROLLBACK, number=head.number + 1, earlier=earlier, to=number)

    return _do(bucket, released, draft, reason=reason, actor=actor, now=now, wanted=wanted)


def mark(
    bucket: Bucket,
    released: ReleasedIndex,
    kind: EntryKind,
    sets: Sequence[str],
    *,
    reason: str,
    actor: str,
    now: Clock = utc_now,
) -> OperationResult:
    """Yank, quarantine or pin sets, or take that back.

    Args:
        bucket: where the index is.
        released: the index.
        kind: what to do.
        sets: digests, or their first digits, or entry numbers.
        reason: for people.
        actor: who does it.
        now: the time.

    Raises:
        RequestError: no such set, or no reason where one is needed.
    """
    if kind in NEEDS_REASON and not reason.strip():
        raise RequestError(f"To {kind} a set needs a reason.", hint="Give --reason.")

    def draft(head: Head, entries: Entries) -> Change:
        numbers = tuple(sorted({find_set(released, text, head.state, entries) for text in sets}))
        return Change(kind=kind, number=head.number + 1, sets=numbers, reason=reason)

    return _do(bucket, released, draft, reason=reason, actor=actor, now=now)


def find_set(released: ReleasedIndex, text: str, state: IndexState, entries: Entries) -> int:
    """The number of the newest set that is held and has this digest, or the beginning of it, or this number."""
    if text.isdecimal() and int(text) in state.held and len(text) < _SHORTEST_DIGEST:
        return int(text)
    digest = text.rpartition("/")[2].lower()
    if len(digest) >= _SHORTEST_DIGEST:
        found = {
            number: promoted.set_digest
            for number in sorted(state.held, reverse=True)
            if (promoted := entries.set(number)).set_digest.startswith(digest)
        }
        if len({*found.values()}) > 1:
            raise RequestError(f"Several sets of {released.index} begin with {text}.", hint="Give more of the digest.")
        if found:
            return max(found)
    raise RequestError(
        f"{released.index} holds no set {text}.", hint=f"`ci_build history {released.index}` lists them."
    )


def change_ledger(
    bucket: Bucket,
    released: ReleasedIndex,
    draft: Callable[[Head, Entries], Change | None],
    *,
    reason: str,
    actor: str,
    now: Clock,
    removed: Callable[[], Sequence[str]] = tuple,
) -> tuple[LedgerEntry | None, IndexState]:
    """Append the entry for a change, and say from which state it led; None when it would change nothing."""
    before = [IndexState()]

    def entry(head: Head, entries: Entries) -> LedgerEntry | None:
        before[0] = head.state
        change = draft(head, entries)
        if change is None:
            return None
        state = apply_change(head.state, change)
        if state == head.state and not removed():
            return None
        return LedgerEntry(
            number=change.number,
            previous="",
            time="",
            kind=change.kind,
            state=state,
            actor=actor,
            reason=reason,
            sets=change.sets,
            to=change.to,
            removed=tuple(removed()),
        )

    appended = append(bucket, released, lambda: read_head(bucket, released), entry, now)
    return (appended[0] if appended else None), before[0]


def _do(
    bucket: Bucket,
    released: ReleasedIndex,
    draft: Callable[[Head, Entries], Change | None],
    *,
    reason: str,
    actor: str,
    now: Clock,
    wanted: Collection[int] = (),
) -> OperationResult:
    entry, before = change_ledger(bucket, released, draft, reason=reason, actor=actor, now=now)
    # Also when nothing changes: somebody may have died before the pages were written.
    pages = publish(bucket, released)
    seen, visible = {*before.visible}, {*(entry.state if entry else before).visible}
    return OperationResult(
        entry=entry,
        appeared=tuple(sorted(visible - seen)),
        vanished=tuple(sorted(seen - visible)),
        withheld=tuple(sorted({*wanted} - visible)),
        pages=pages,
    )


def _before_last_change(head: Head, entries: Entries) -> int | None:
    """The entry before the last one that changed what users see; None when that one is a rollback."""
    for number in range(head.number, 0, -1):
        entry, before = entries.at(number), entries.at(number - 1).state if number > 1 else IndexState()
        if entry.state.visible != before.visible:
            return None if entry.kind is EntryKind.ROLLBACK else number - 1
    raise RequestError("There is nothing to go back to.", hint="Nothing was ever promoted to this index.")


def history(bucket: Bucket, released: ReleasedIndex) -> Iterator[LedgerEntry]:
    """All entries, newest first; those that are asked for are read."""
    head, entries = read_head(bucket, released)
    if head.number == 0:
        raise RequestError(f"The bucket has no index {released.index}.", hint="Nothing was ever promoted to it.")
    for number in range(head.number, 0, -1):
        yield entries.at(number)
