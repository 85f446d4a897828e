"""The state of an index after each ledger entry.

Sets are identified by the number of the entry that promoted them. Each entry contains
the complete state after it, so commands read the last entry only; `index verify` recomputes
all states.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from core.errors import RequestError
from core.number_ranges import NO_NUMBERS, NumberRanges


class EntryKind(enum.StrEnum):
    """A kind of ledger entry."""

    PROMOTE = "promote"
    """Make a set visible."""
    ROLLBACK = "rollback"
    """Restore the visible sets of an earlier entry."""
    YANK = "yank"
    """Offer a set only to users who pin it (PEP 592)."""
    UNYANK = "unyank"
    QUARANTINE = "quarantine"
    """Hide a set until the quarantine ends, also after rollbacks. Its bytes stay."""
    FREE = "free"
    PIN = "pin"
    """Exempt a set from retention."""
    UNPIN = "unpin"
    RETIRE = "retire"
    """Hide a set because of its age. Its bytes stay until the sweep."""
    SWEEP = "sweep"
    """Remove the bytes of retired sets. The names of their wheels are never used again."""
    SIGN = "sign"
    """Vouch for the unsigned entries before it."""
    REPAIR = "repair"
    """Remove files that no entry names. Promotions that have not ended cannot use them any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexState:
    """The state after an entry. Sets are identified by number.

    Attributes:
        held: sets with stored bytes.
        offered: sets of `held` that are visible unless quarantined.
        yanked: set -> reason.
        quarantined: set -> reason.
        pinned: set -> reason.
        retired: sets that were hidden because of their age.
        swept: sets whose bytes were removed.
    """

    held: NumberRanges = NO_NUMBERS
    offered: NumberRanges = NO_NUMBERS
    yanked: Mapping[int, str] = field(default_factory=dict)
    quarantined: Mapping[int, str] = field(default_factory=dict)
    pinned: Mapping[int, str] = field(default_factory=dict)
    retired: NumberRanges = NO_NUMBERS
    swept: NumberRanges = NO_NUMBERS

    @property
    def visible(self) -> NumberRanges:
        """The sets that users see."""
        return self.offered.without(self.quarantined)


EMPTY_STATE = IndexState()
"""The state before the first entry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of a state.

    Attributes:
        number: number of the new entry.
        sets: numbers of the changed sets. A promotion changes its own set, a rollback
            none.
        reason: explanation for people.
        earlier, to: for a rollback, the state to restore and the number of its entry.
    """

    kind: EntryKind
    number: int
    sets: tuple[int, ...] = ()
    reason: str = ""
    earlier: IndexState | None = None
    to: int = 0


def apply_change(state: IndexState, change: Change) -> IndexState:
    """Return the state after a change.

    Raises:
        RequestError: the change is not possible in this state.
    """
    _refuse(state, change)
    marks: Mapping[int, str] = getattr(state, _MARKS.get(change.kind, "pinned"))
    kept = {
        number: reason for number, reason in marks.items() if number not in change.sets
    }
    match change.kind:
        case EntryKind.PROMOTE:
            return replace(
                state,
                held=state.held.plus(change.sets),
                offered=state.offered.plus(change.sets),
            )
        case EntryKind.ROLLBACK:
            assert change.earlier is not None
            gone = change.earlier.offered.without(state.held)
            return replace(
                state,
                offered=change.earlier.offered.without(gone).without(state.retired),
            )
        case EntryKind.YANK:
            return replace(
                state,
                yanked={**state.yanked, **dict.fromkeys(change.sets, change.reason)},
            )
        case EntryKind.UNYANK:
            return replace(state, yanked=kept)
        case EntryKind.QUARANTINE:
            return replace(
                state,
                quarantined={
                    **state.quarantined,
                    **dict.fromkeys(change.sets, change.reason),
                },
            )
        case EntryKind.FREE:
            return replace(state, quarantined=kept)
        case EntryKind.PIN:
            return replace(
                state,
                pinned={**state.pinned, **dict.fromkeys(change.sets, change.reason)},
            )
        case EntryKind.UNPIN:
            return replace(state, pinned=kept)
        case EntryKind.RETIRE:
            return replace(
                state,
                offered=state.offered.without(change.sets),
                retired=state.retired.plus(change.sets),
            )
        case EntryKind.SIGN | EntryKind.REPAIR:
            return state
        case EntryKind.SWEEP:
            return replace(
                state,
                held=state.held.without(change.sets),
                retired=state.retired.without(change.sets),
                swept=state.swept.plus(change.sets),
            )


_MARKS = {
    EntryKind.UNYANK: "yanked",
    EntryKind.FREE: "quarantined",
    EntryKind.UNPIN: "pinned",
}
"""Kind of entry that removes a mark -> field of IndexState with the marks."""


def _refuse(state: IndexState, change: Change) -> None:
    """Raise RequestError for an impossible change."""
    if change.kind in (
        EntryKind.PROMOTE,
        EntryKind.ROLLBACK,
        EntryKind.SIGN,
        EntryKind.REPAIR,
    ):
        return
    held = state.held
    if change.kind is EntryKind.RETIRE:
        held = state.held.without(state.pinned).without(state.retired)
    elif change.kind is EntryKind.SWEEP:
        held = state.retired.without(state.pinned)
    if strange := sorted(number for number in {*change.sets} if number not in held):
        numbers = ", ".join(map(str, strange))
        raise RequestError(
            f"{change.kind} is not possible for the set of ledger entry {numbers}.",
            hint="Run `ci_build index history` to see the state of each set.",
        )
