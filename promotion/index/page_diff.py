"""What changes on an index's pages from one state to another: pure, and in the order in which it must be written.

Additions come first, dependencies before what needs them; then removals, dependents before what they need. So whatever
a page offers at any instant, the pages of everything that it pins offer it too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from promotion.index.ledger import LedgerEntry, LedgerWheel
from promotion.index.ledger_state import IndexState
from promotion.index.pages import IndexedWheel, dependencies_first, link, project_of
from promotion.policy.tiers import strongest, weakest
from promotion.storage.keys import ReleasedIndex

WheelFiles = Mapping[str, IndexedWheel]
"""What a project offers: file name -> wheel."""
EntryOf = Callable[[int], LedgerEntry]
"""The entry that promoted a set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageState:
    """What a project's pages show.

    Attributes:
        shelf: each wheel that its HTML page or its JSON page shows.
        both: names of those that both show.
        sure: whether it is what was written last, so that what changed since tells the rest.
    """

    shelf: WheelFiles
    both: Collection[str]
    sure: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PageUpdate:
    """One writing of a project's pages."""

    project: str
    shelf: WheelFiles


def indexed_wheel(released: ReleasedIndex, wheel: LedgerWheel, entry: LedgerEntry) -> IndexedWheel:
    """A wheel on a page, with what the entry that brought it says of its set."""
    assert entry.promoted is not None
    return IndexedWheel(
        project=wheel.project,
        filename=wheel.filename,
        version=wheel.version,
        size=wheel.size,
        sha256=wheel.sha256,
        metadata_sha256=wheel.metadata_sha256,
        requires_python=wheel.requires_python,
        requires_dist=wheel.requires_dist,
        href=link(released.simple, wheel.project, released.wheel(wheel.project, wheel.filename)),
        uploaded=entry.time,
        set_digest=entry.promoted.set_digest,
        tier=entry.promoted.tier,
        tiers=dict(sorted(entry.promoted.tiers.items())),
        sets=(entry.number,),
        provenance=wheel.provenance,
    )


def requirements_of_sets(numbers: Iterable[int], entry_of: EntryOf) -> Mapping[str, list[str]]:
    """Project -> the projects that it requires, of all wheels of some sets."""
    needs: dict[str, list[str]] = {}
    for number in numbers:
        promoted = entry_of(number).promoted
        for wheel in promoted.wheels if promoted else ():
            needs.setdefault(wheel.project, []).extend(map(project_of, wheel.requires_dist))
    return needs


def files_of_sets(released: ReleasedIndex, project: str, numbers: Iterable[int], entry_of: EntryOf) -> WheelFiles:
    """What a project offers when these sets are visible, from their entries alone."""
    shelf: dict[str, IndexedWheel] = {}
    for number in sorted(numbers):
        entry = entry_of(number)
        for wheel in entry.promoted.wheels if entry.promoted else ():
            if wheel.project == project:
                offer = indexed_wheel(released, wheel, entry)
                known = shelf.get(wheel.filename)
                shelf[wheel.filename] = _merged(known, offer, (*known.sets, number)) if known else offer
    return shelf


def _merged(first: IndexedWheel, second: IndexedWheel, sets: tuple[int, ...]) -> IndexedWheel:
    """A wheel that several sets have: what brought it first, and for each target the best that any was tested at."""
    tiers = strongest(first.tiers, second.tiers)
    return replace(first, sets=sets, tiers=tiers, tier=weakest(tiers) if tiers else first.tier)


def with_sets(
    released: ReleasedIndex, shelf: WheelFiles, project: str, numbers: Iterable[int], entry_of: EntryOf
) -> WheelFiles:
    """The shelf with the wheels of further sets; a wheel shows the set that brought it first, and the best tiers."""
    new = files_of_sets(released, project, numbers, entry_of)
    both = dict(shelf)
    for name, offer in new.items():
        if (known := shelf.get(name)) is None:
            both[name] = offer
            continue
        sets = tuple(sorted({*offer.sets, *known.sets}))
        pair = (known, offer) if known.sets[0] == sets[0] else (offer, known)
        both[name] = _merged(*pair, sets) if len(sets) > 1 else offer
    return both


def without_sets(released: ReleasedIndex, shelf: WheelFiles, numbers: Iterable[int], entry_of: EntryOf) -> WheelFiles:
    """The shelf without some sets; a wheel that others have too shows the first of those, and their best tiers."""
    gone = frozenset(numbers)
    left: dict[str, IndexedWheel] = {}
    for name, offer in shelf.items():
        sets = tuple(number for number in offer.sets if number not in gone)
        if len(sets) == len(offer.sets):
            left[name] = offer
        elif sets:
            left[name] = _retier(released, offer, sets, entry_of)
    return left


def _retier(released: ReleasedIndex, offer: IndexedWheel, sets: tuple[int, ...], entry_of: EntryOf) -> IndexedWheel:
    """A wheel with the sets that are left; only so many entries are read as it takes to know the best tiers.

    They cannot be better than with the sets that go, so that what reaches those ends the search.
    """
    found: IndexedWheel | None = None
    for number in sets:
        one = files_of_sets(released, offer.project, (number,), entry_of)[offer.filename]
        found = _merged(found, one, sets) if found else one
        if found.tiers == offer.tiers:
            break
    assert found is not None
    return replace(found, sets=sets)


def with_yanks(shelf: WheelFiles, state: IndexState) -> WheelFiles:
    """The shelf with the marks of a state: a wheel is yanked when all sets that have it are."""
    return {
        name: replace(
            offer,
            yanked=state.yanked[offer.sets[0]] if all(number in state.yanked for number in offer.sets) else "",
        )
        for name, offer in shelf.items()
    }


def sets_that_differ(states: Sequence[IndexState]) -> frozenset[int]:
    """Sets that come, go, or are marked otherwise anywhere on the way through some states."""
    found: set[int] = set()
    for before, now in pairwise(states):
        seen, visible = {*before.visible}, {*now.visible}
        found |= seen ^ visible
        found |= {number for number in seen | visible if before.yanked.get(number) != now.yanked.get(number)}
    return frozenset(found)


def page_updates(
    released: ReleasedIndex,
    sets: Iterable[int],
    now: IndexState,
    seen_of: Callable[[str], PageState],
    entry_of: EntryOf,
) -> Sequence[PageUpdate]:
    """What to write so that pages show a state, whatever somebody who died on the way to another one wrote of it.

    Args:
        released: the index.
        sets: those about which the pages may be wrong.
        now: what the pages shall show.
        seen_of: what a project's pages show.
        entry_of: reads an entry.
    """
    sets = frozenset(sets)
    visible = frozenset(now.visible)
    order = dependencies_first(requirements_of_sets(sorted(sets), entry_of))
    seen = {project: seen_of(project) for project in order}
    wanted: dict[str, WheelFiles] = {}
    for project in order:
        if seen[project].sure:
            more = with_sets(released, seen[project].shelf, project, sets & visible, entry_of)
            wanted[project] = with_yanks(without_sets(released, more, sets - visible, entry_of), now)
        else:
            wanted[project] = with_yanks(files_of_sets(released, project, visible, entry_of), now)
    fewer = {project: seen[project].shelf.keys() - wanted[project].keys() for project in order}
    additions = [p for p in order if wanted[p].keys() - seen[p].both or not fewer[p]]
    removals = [p for p in reversed(order) if fewer[p]]
    return (
        *(PageUpdate(project=project, shelf={**seen[project].shelf, **wanted[project]}) for project in additions),
        *(PageUpdate(project=project, shelf=wanted[project]) for project in removals),
    )


def all_page_updates(
    released: ReleasedIndex, now: IndexState, known: Iterable[str], entry_of: EntryOf
) -> Iterator[PageUpdate]:
    """Every page of an index from its entries alone; projects that are `known` and offer nothing come last."""
    needs = requirements_of_sets(now.visible, entry_of)
    for project in (*dependencies_first(needs), *sorted(set(known) - needs.keys())):
        yield PageUpdate(
            project=project, shelf=with_yanks(files_of_sets(released, project, now.visible, entry_of), now)
        )
