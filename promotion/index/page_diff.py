"""Compute the page updates that take an index from one ledger state to another.

Updates are ordered so that readers never see an unmet pin: additions first,
dependencies before dependents; then removals, dependents before dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from core.model import TIER_ORDER
from promotion.index.index_reader import IndexedWheel
from promotion.index.ledger import LedgerEntry
from promotion.index.ledger_state import IndexState
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.pages import dependencies_first, link, project_of
from promotion.storage.object_keys import ReleasedIndex

WheelFiles = Mapping[str, IndexedWheel]
"""Wheels of one project by file name."""
EntryOf = Callable[[int], LedgerEntry]
"""Function that returns the ledger entry with a number."""

_TIERS = ("none", *(tier.value for tier in TIER_ORDER))


@dataclass(frozen=True, kw_only=True, slots=True)
class PageState:
    """Wheels on a project's published pages.

    Attributes:
        files: wheels on the project's HTML page or JSON page.
        in_both: file names that are on both pages.
        trusted: whether the pages match the last recorded write, which allows an
            incremental update.
    """

    files: WheelFiles
    in_both: Collection[str]
    trusted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PageUpdate:
    """One write of a project's pages."""

    project: str
    files: WheelFiles


def indexed_wheel(
    released: ReleasedIndex, wheel: LedgerWheel, entry: LedgerEntry
) -> IndexedWheel:
    """Return the index row of a ledger wheel."""
    assert entry.promoted is not None
    return IndexedWheel(
        wheel=wheel,
        href=link(
            released.simple,
            wheel.project,
            released.wheel(wheel.project, wheel.filename),
        ),
        uploaded=entry.time,
        set_digest=entry.promoted.set_digest,
        tier=entry.promoted.tier,
        tiers=dict(sorted(entry.promoted.tiers.items())),
        sets=(entry.number,),
    )


def requirements_of_sets(
    numbers: Iterable[int], entry_of: EntryOf
) -> Mapping[str, list[str]]:
    """Return project -> required projects, for all wheels of these sets."""
    needs: dict[str, list[str]] = {}
    for number in numbers:
        promoted = entry_of(number).promoted
        for wheel in promoted.wheels if promoted else ():
            needs.setdefault(wheel.project, []).extend(
                map(project_of, wheel.requires_dist)
            )
    return needs


def sets_by_project(
    numbers: Iterable[int], entry_of: EntryOf
) -> Mapping[str, Sequence[int]]:
    """Return project -> the sets that have wheels of the project."""
    found: dict[str, list[int]] = {}
    for number in sorted(numbers):
        promoted = entry_of(number).promoted
        for project in (
            dict.fromkeys(wheel.project for wheel in promoted.wheels)
            if promoted
            else ()
        ):
            found.setdefault(project, []).append(number)
    return found


def files_of_sets(
    released: ReleasedIndex, project: str, numbers: Iterable[int], entry_of: EntryOf
) -> WheelFiles:
    """Return a project's wheels when exactly these sets are visible."""
    files: dict[str, IndexedWheel] = {}
    for number in sorted(numbers):
        entry = entry_of(number)
        for wheel in entry.promoted.wheels if entry.promoted else ():
            if wheel.project == project:
                row = indexed_wheel(released, wheel, entry)
                previous = files.get(wheel.filename)
                files[wheel.filename] = (
                    _merged(previous, row, (*previous.sets, number))
                    if previous
                    else row
                )
    return files


def _merged(
    first: IndexedWheel, second: IndexedWheel, sets: tuple[int, ...]
) -> IndexedWheel:
    """Return a wheel of several sets.

    The row of the first set with the strongest tier of each target.
    """
    tiers = {
        target: max(
            first.tiers.get(target, "none"), second.tiers.get(target, "none"), key=_rank
        )
        for target in sorted({*first.tiers, *second.tiers})
    }
    return replace(
        first, sets=sets, tiers=tiers, tier=weakest(tiers) if tiers else first.tier
    )


def weakest(tiers: Mapping[str, str]) -> str:
    """Return the weakest tier of all targets, or "none" without targets."""
    return min(tiers.values(), key=_rank, default="none")


def _rank(tier: str) -> int:
    return _TIERS.index(tier) if tier in _TIERS else -1


def with_sets(
    released: ReleasedIndex,
    files: WheelFiles,
    project: str,
    numbers: Iterable[int],
    entry_of: EntryOf,
) -> WheelFiles:
    """Return the files with the wheels of further sets.

    A shared wheel keeps its first set and gets the best tiers.
    """
    merged = dict(files)
    for name, row in files_of_sets(released, project, numbers, entry_of).items():
        if (previous := files.get(name)) is None:
            merged[name] = row
            continue
        sets = tuple(sorted({*row.sets, *previous.sets}))
        pair = (previous, row) if previous.sets[0] == sets[0] else (row, previous)
        merged[name] = _merged(*pair, sets) if len(sets) > 1 else row
    return merged


def without_sets(
    released: ReleasedIndex,
    files: WheelFiles,
    numbers: Iterable[int],
    entry_of: EntryOf,
) -> WheelFiles:
    """Return the files without some sets.

    A wheel of remaining sets gets their first set and their best tiers.
    """
    removed = frozenset(numbers)
    kept: dict[str, IndexedWheel] = {}
    for name, row in files.items():
        sets = tuple(number for number in row.sets if number not in removed)
        if len(sets) == len(row.sets):
            kept[name] = row
        elif sets:
            kept[name] = _retier(released, row, sets, entry_of)
    return kept


def _retier(
    released: ReleasedIndex, row: IndexedWheel, sets: tuple[int, ...], entry_of: EntryOf
) -> IndexedWheel:
    """Recompute a wheel's tiers for its remaining sets.

    Tiers cannot improve when sets are removed, so reading stops at the previous best.
    """
    merged: IndexedWheel | None = None
    for number in sets:
        one = files_of_sets(released, row.wheel.project, (number,), entry_of)[
            row.wheel.filename
        ]
        merged = _merged(merged, one, sets) if merged else one
        if merged.tiers == row.tiers:
            break
    assert merged is not None
    return replace(merged, sets=sets)


def with_yanks(files: WheelFiles, state: IndexState) -> WheelFiles:
    """Return the files with the yanks of a state; a wheel is yanked when all its sets are."""
    marked = {}
    for name, row in files.items():
        yanked = state.yanked.keys() >= set(row.sets)
        reason = state.yanked[row.sets[0]] if yanked else ""
        marked[name] = replace(row, yanked=reason)
    return marked


def sets_that_differ(states: Sequence[IndexState]) -> frozenset[int]:
    """Return the sets whose visibility or yank differs between any two consecutive states."""
    differing: set[int] = set()
    for before, after in pairwise(states):
        old = before.visible
        new = after.visible
        differing |= {*(old ^ new)}
        marked = (
            number
            for number in {**before.yanked, **after.yanked}
            if number in old or number in new
        )
        differing |= {
            number
            for number in marked
            if before.yanked.get(number) != after.yanked.get(number)
        }
    return frozenset(differing)


def page_updates(
    released: ReleasedIndex,
    sets: Iterable[int],
    state: IndexState,
    page_state_of: Callable[[str], PageState],
    entry_of: EntryOf,
) -> Sequence[PageUpdate]:
    """Return the updates that make pages show a state, also after an interrupted update.

    Args:
        sets: sets for which the pages may be outdated.
    """
    sets = frozenset(sets)
    visible = frozenset(state.visible)
    order = dependencies_first(requirements_of_sets(sorted(sets), entry_of))
    current = {project: page_state_of(project) for project in order}
    target: dict[str, WheelFiles] = {}
    untrusted = any(not state.trusted for state in current.values())
    sets_of = (
        sets_by_project(visible, entry_of) if untrusted else {}
    )  # it reads the entries of all visible sets
    for project in order:
        if current[project].trusted:
            extended = with_sets(
                released, current[project].files, project, sets & visible, entry_of
            )
            files = without_sets(released, extended, sets - visible, entry_of)
        else:
            files = files_of_sets(released, project, sets_of.get(project, ()), entry_of)
        target[project] = with_yanks(files, state)
    removed = {
        project: current[project].files.keys() - target[project].keys()
        for project in order
    }
    additions = [
        p for p in order if target[p].keys() - current[p].in_both or not removed[p]
    ]
    removals = [p for p in reversed(order) if removed[p]]
    return (
        *(
            PageUpdate(
                project=project, files={**current[project].files, **target[project]}
            )
            for project in additions
        ),
        *(PageUpdate(project=project, files=target[project]) for project in removals),
    )


def all_page_updates(
    released: ReleasedIndex, state: IndexState, known: Iterable[str], entry_of: EntryOf
) -> Iterator[PageUpdate]:
    """Yield the update of every project from the ledger alone.

    `known` projects without wheels come last.
    """
    needs = requirements_of_sets(state.visible, entry_of)
    sets_of = sets_by_project(state.visible, entry_of)
    for project in (*dependencies_first(needs), *sorted(set(known) - needs.keys())):
        files = files_of_sets(released, project, sets_of.get(project, ()), entry_of)
        yield PageUpdate(project=project, files=with_yanks(files, state))
