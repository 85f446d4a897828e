"""Roll back, yank, quarantine and pin sets: each appends a ledger entry and publishes the pages.

No operation removes data, so each can be undone.
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
"""Operations that record why they were done."""
_SHORTEST_DIGEST = 6


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationResult:
    """The result of an operation.

    Attributes:
        entry: the new entry, or None when the index was already in the requested state.
        appeared: numbers of the sets that became visible.
        vanished: numbers of the sets that became hidden.
        withheld: sets that a rollback cannot restore: they are quarantined, retired or removed.
        pages: keys of the written pages.
    """

    entry: LedgerEntry | None
    appeared: tuple[int, ...] = ()
    vanished: tuple[int, ...] = ()
    withheld: tuple[int, ...] = ()
    pages: tuple[str, ...] = ()


def rollback(
    bucket: Bucket, released: ReleasedIndex, *, to: int | None, reason: str, actor: str, now: Clock = utc_now
) -> OperationResult:
    """Restore the visible sets of entry `to`; None means the state before the last entry that changed them.

    Retired, swept and quarantined sets stay hidden, and yanked sets stay yanked. With None, a rollback that directly
    follows a rollback changes nothing, so an interrupted command can be repeated.

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
                f"The ledger of {released.index} has no entry {number}; the last one is {head.number}.",
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
    """Yank, quarantine or pin sets, or undo that.

    Args:
        bucket: the bucket of the index.
        released: the index.
        kind: the operation.
        sets: digests, their first digits, or entry numbers.
        reason: for people.
        actor: who requested it.
        now: the clock.

    Raises:
        RequestError: there is no such set, or a required reason is missing.
    """
    if kind in NEEDS_REASON and not reason.strip():
        raise RequestError(f"{kind} requires a reason.", hint="Give --reason.")

    def draft(head: Head, entries: Entries) -> Change:
        numbers = tuple(sorted({find_set(released, text, head.state, entries) for text in sets}))
        return Change(kind=kind, number=head.number + 1, sets=numbers, reason=reason)

    return _do(bucket, released, draft, reason=reason, actor=actor, now=now)


def find_set(released: ReleasedIndex, text: str, state: IndexState, entries: Entries) -> int:
    """Return the number of the newest held set with this digest, prefix of a digest, or number."""
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
            raise RequestError(f"Several sets of {released.index} start with {text}.", hint="Give more digits.")
        if found:
            return max(found)
    raise RequestError(
        f"The index {released.index} has no set {text}.", hint=f"`ci_build history {released.index}` lists them."
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
    """Append the entry of a change and return it with the state before; None when nothing changes."""
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
    # Also without a new entry: an earlier command may have stopped before it wrote the pages.
    pages = publish(bucket, released)
    old, visible = {*before.visible}, {*(entry.state if entry else before).visible}
    return OperationResult(
        entry=entry,
        appeared=tuple(sorted(visible - old)),
        vanished=tuple(sorted(old - visible)),
        withheld=tuple(sorted({*wanted} - visible)),
        pages=pages,
    )


def _before_last_change(head: Head, entries: Entries) -> int | None:
    """Return the entry before the last change of the visible sets, or None when that change was a rollback."""
    for number in range(head.number, 0, -1):
        entry, before = entries.at(number), entries.at(number - 1).state if number > 1 else IndexState()
        if entry.state.visible != before.visible:
            return None if entry.kind is EntryKind.ROLLBACK else number - 1
    raise RequestError("The index has no earlier state.", hint="Promote a set first.")


def history(bucket: Bucket, released: ReleasedIndex) -> Iterator[LedgerEntry]:
    """Yield all entries, newest first, reading each when it is needed."""
    head, entries = read_head(bucket, released)
    if head.number == 0:
        raise RequestError(f"The bucket has no index {released.index}.", hint="Promote a set to it first.")
    for number in range(head.number, 0, -1):
        yield entries.at(number)
