"""What an index offers, as its ledger tells it: each entry changes a state, and carries the state that it leads to.

Sets go by the number of the entry that promoted them. A state is small and each entry has its own, so that no work
needs more than the last entry; `verify` computes all of them again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from core.errors import RequestError


class EntryKind(enum.StrEnum):
    """What an entry does."""

    PROMOTE = "promote"
    """A set is offered."""
    ROLLBACK = "rollback"
    """The index offers again what it did after an earlier entry."""
    YANK = "yank"
    """A set stays for those who pin it (PEP 592)."""
    UNYANK = "unyank"
    QUARANTINE = "quarantine"
    """A set is not offered until it is freed, whatever is rolled back; its bytes stay."""
    FREE = "free"
    PIN = "pin"
    """Retention leaves a set alone."""
    UNPIN = "unpin"
    RETIRE = "retire"
    """A set is not offered any more because of its age; its bytes stay until they are swept."""
    SWEEP = "sweep"
    """The bytes of retired sets go, and the names of their wheels with them, for ever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexState:
    """What holds after an entry; sets go by number.

    Attributes:
        held: sets whose bytes are there, in the order in which they came.
        offered: those of them that the pages show unless they are quarantined.
        yanked: set -> reason.
        quarantined: set -> reason.
        pinned: set -> reason.
        retired: sets that are gone from the pages because of their age.
        swept: sets whose bytes are gone.
    """

    held: tuple[int, ...] = ()
    offered: tuple[int, ...] = ()
    yanked: Mapping[int, str] = field(default_factory=dict)
    quarantined: Mapping[int, str] = field(default_factory=dict)
    pinned: Mapping[int, str] = field(default_factory=dict)
    retired: tuple[int, ...] = ()
    swept: tuple[int, ...] = ()

    @property
    def visible(self) -> tuple[int, ...]:
        """Sets that users see."""
        return tuple(number for number in self.offered if number not in self.quarantined)


EMPTY_STATE = IndexState()
"""Before the first entry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What an entry does to a state.

    Attributes:
        number: of the entry itself.
        sets: the sets that it is about; a promotion is about itself, a rollback about none.
        reason: for people.
        earlier, to: for a rollback, the state to go back to and the entry that led to it.
    """

    kind: EntryKind
    number: int
    sets: tuple[int, ...] = ()
    reason: str = ""
    earlier: IndexState | None = None
    to: int = 0


def apply_change(state: IndexState, change: Change) -> IndexState:
    """The state that a change leads to.

    Raises:
        RequestError: the change makes no sense in this state, so that nothing would come of it.
    """
    _refuse(state, change)
    kept = _mentioned(state, change)
    match change.kind:
        case EntryKind.PROMOTE:
            return replace(state, held=(*state.held, change.number), offered=(*state.offered, change.number))
        case EntryKind.ROLLBACK:
            assert change.earlier is not None
            there = {*state.held} - {*state.retired}
            return replace(state, offered=tuple(number for number in change.earlier.offered if number in there))
        case EntryKind.YANK:
            return replace(state, yanked={**state.yanked, **dict.fromkeys(change.sets, change.reason)})
        case EntryKind.UNYANK:
            return replace(state, yanked=kept)
        case EntryKind.QUARANTINE:
            return replace(state, quarantined={**state.quarantined, **dict.fromkeys(change.sets, change.reason)})
        case EntryKind.FREE:
            return replace(state, quarantined=kept)
        case EntryKind.PIN:
            return replace(state, pinned={**state.pinned, **dict.fromkeys(change.sets, change.reason)})
        case EntryKind.UNPIN:
            return replace(state, pinned=kept)
        case EntryKind.RETIRE:
            offered = tuple(number for number in state.offered if number not in change.sets)
            return replace(state, offered=offered, retired=tuple(sorted({*state.retired, *change.sets})))
        case EntryKind.SWEEP:
            return replace(
                state,
                held=tuple(number for number in state.held if number not in change.sets),
                retired=tuple(number for number in state.retired if number not in change.sets),
                swept=tuple(sorted({*state.swept, *change.sets})),
            )


_MARKS = {EntryKind.UNYANK: "yanked", EntryKind.FREE: "quarantined", EntryKind.UNPIN: "pinned"}
"""Kind that takes a mark away -> the mark."""


def _mentioned(state: IndexState, change: Change) -> Mapping[int, str]:
    """The marks that stay when a change takes some away."""
    marks: Mapping[int, str] = getattr(state, _MARKS.get(change.kind, "pinned"))
    return {number: reason for number, reason in marks.items() if number not in change.sets}


def _refuse(state: IndexState, change: Change) -> None:
    """Raise RequestError for a change that makes no sense."""
    if change.kind is EntryKind.ROLLBACK:
        return
    if change.kind is EntryKind.PROMOTE:
        if change.sets != (change.number,):
            raise RequestError(f"Entry {change.number} promotes itself and nothing else.")
        return
    if not change.sets:
        raise RequestError(f"There is no set to {change.kind}.")
    known = {*state.held}
    if change.kind is EntryKind.RETIRE:
        known = {*state.held} - {*state.pinned} - {*state.retired}
    elif change.kind is EntryKind.SWEEP:
        known = {*state.retired} - {*state.pinned}
    if strange := sorted({*change.sets} - known):
        numbers = ", ".join(map(str, strange))
        raise RequestError(
            f"The set of ledger entry {numbers} cannot be the subject of {change.kind} now.",
            hint="`ci_build history` shows what each set is.",
        )
