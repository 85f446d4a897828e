"""The state of an index after each ledger entry.

Sets are identified by the number of the entry that promoted them. Each entry contains
the complete state after it, so commands read the last entry only; `index verify` recomputes
all states.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container, Mapping
from dataclasses import field, replace
from typing import Any

from core.errors import RequestError
from core.frozen import frozen
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
    REPAIR = "repair"
    """Remove files that no entry names. Promotions that have not ended cannot use them any more."""


@frozen
class IndexState:
    """The state after an entry. Sets are identified by number.

    Attributes:
        held: sets with stored bytes.
        offered: sets of `held` that are visible unless quarantined.
        yanked: set -> reason.
        quarantined: set -> reason.
        pinned: set -> reason.
        retired: set that was hidden because of its age -> time when it was.
        swept: sets whose bytes were removed.
    """

    held: NumberRanges = NO_NUMBERS
    offered: NumberRanges = NO_NUMBERS
    yanked: Mapping[int, str] = field(default_factory=dict)
    quarantined: Mapping[int, str] = field(default_factory=dict)
    pinned: Mapping[int, str] = field(default_factory=dict)
    retired: Mapping[int, str] = field(default_factory=dict)
    swept: NumberRanges = NO_NUMBERS

    @property
    def visible(self) -> NumberRanges:
        """The sets that users see."""
        return self.offered.without(self.quarantined)


EMPTY_STATE = IndexState()
"""The state before the first entry."""


_MARKS = {
    EntryKind.YANK: "yanked",
    EntryKind.QUARANTINE: "quarantined",
    EntryKind.PIN: "pinned",
}
_UNMARKS = {
    EntryKind.UNYANK: "yanked",
    EntryKind.FREE: "quarantined",
    EntryKind.UNPIN: "pinned",
}
"""Kind of entry that removes a mark -> field of IndexState with the marks."""


def apply_change(
    state: IndexState,
    kind: EntryKind,
    sets: Collection[int],
    *,
    time: str = "",
    reason: str = "",
    earlier: IndexState = EMPTY_STATE,
) -> IndexState:
    """Return the state after a change.

    Args:
        sets: numbers of the changed sets. A promotion changes its own set, a rollback
            none.
        time: time of the change.
        earlier: for a rollback, the state to restore.

    Raises:
        RequestError: the change is not possible in this state.
    """
    match kind:
        case EntryKind.REPAIR:
            return state
        case EntryKind.PROMOTE:
            return replace(
                state, held=state.held.plus(sets), offered=state.offered.plus(sets)
            )
        case EntryKind.ROLLBACK:
            gone = earlier.offered.without(state.held)
            offered = earlier.offered.without(gone)
            # The bytes of a retired set are still there.
            retired = {n: at for n, at in state.retired.items() if n not in offered}
            return replace(state, offered=offered, retired=retired)
        case EntryKind.RETIRE:
            _refuse_others(
                kind, sets, state.held.without(state.pinned).without(state.retired)
            )
            return replace(
                state,
                offered=state.offered.without(sets),
                retired={**state.retired, **dict.fromkeys(sets, time)},
            )
        case EntryKind.SWEEP:
            sweepable = state.retired.keys() - state.pinned.keys()
            _refuse_others(kind, sets, sweepable)
            return replace(
                state,
                held=state.held.without(sets),
                retired={n: at for n, at in state.retired.items() if n not in sets},
                swept=state.swept.plus(sets),
            )
    _refuse_others(kind, sets, state.held)
    name = _MARKS.get(kind) or _UNMARKS[kind]
    marks = {n: why for n, why in getattr(state, name).items() if n not in sets}
    if kind in _MARKS:
        marks |= dict.fromkeys(sets, reason)
    changed: dict[str, Any] = {name: marks}
    return replace(state, **changed)


def _refuse_others(
    kind: EntryKind, sets: Collection[int], possible: Container[int]
) -> None:
    """Raise RequestError for sets to which a change cannot apply."""
    if strange := sorted(number for number in {*sets} if number not in possible):
        numbers = ", ".join(map(str, strange))
        raise RequestError(
            f"{kind} is not possible for the set of ledger entry {numbers}.",
            hint="Run `ci_build index history` to see the state of each set.",
        )
