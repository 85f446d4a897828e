"""What changes on an index's pages from one state to another: pure, and in the order in which it must be written.

Additions come first, dependencies before what needs them; then removals, dependents before what they need. So whatever
a page offers at any instant, the pages of everything that it pins offer it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from promotion.history import State
from promotion.index import Offer, dependencies_first, project_of
from promotion.layout import Released
from promotion.ledger import LedgerEntry, offer_of

Shelf = Mapping[str, Offer]
"""What a project offers: file name -> wheel."""
EntryOf = Callable[[int], LedgerEntry]
"""The entry that promoted a set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One writing of a project's pages."""

    project: str
    shelf: Shelf


def projects_of(numbers: Iterable[int], entry_of: EntryOf) -> Mapping[str, list[str]]:
    """Project -> the projects that it requires, of all wheels of some sets."""
    needs: dict[str, list[str]] = {}
    for number in numbers:
        promoted = entry_of(number).promoted
        for wheel in promoted.wheels if promoted else ():
            needs.setdefault(wheel.project, []).extend(map(project_of, wheel.requires_dist))
    return needs


def stocked(released: Released, project: str, numbers: Iterable[int], entry_of: EntryOf) -> Shelf:
    """What a project offers when these sets are visible, from their entries alone."""
    shelf: dict[str, Offer] = {}
    for number in sorted(numbers):
        entry = entry_of(number)
        for wheel in entry.promoted.wheels if entry.promoted else ():
            if wheel.project == project:
                offer = offer_of(released, wheel, entry)
                known = shelf.get(wheel.filename)
                shelf[wheel.filename] = replace(known, sets=(*known.sets, number)) if known else offer
    return shelf


def added(released: Released, shelf: Shelf, project: str, numbers: Iterable[int], entry_of: EntryOf) -> Shelf:
    """The shelf with the wheels of further sets; a wheel shows the set that brought it first."""
    new = stocked(released, project, numbers, entry_of)
    both = dict(shelf)
    for name, offer in new.items():
        known = shelf.get(name)
        sets = tuple(sorted({*offer.sets, *(known.sets if known else ())}))
        first = known if known and known.sets[0] == sets[0] else offer
        both[name] = replace(first, sets=sets)
    return both


def without(released: Released, shelf: Shelf, numbers: Iterable[int], entry_of: EntryOf) -> Shelf:
    """The shelf without some sets; a wheel that others have too shows the first of those."""
    gone = frozenset(numbers)
    left: dict[str, Offer] = {}
    for name, offer in shelf.items():
        sets = tuple(number for number in offer.sets if number not in gone)
        if sets and sets[0] == offer.sets[0]:
            left[name] = replace(offer, sets=sets)
        elif sets:
            again = stocked(released, offer.project, sets[:1], entry_of)[name]
            left[name] = replace(again, sets=sets)
    return left


def marked(shelf: Shelf, state: State) -> Shelf:
    """The shelf with the marks of a state: a wheel is yanked when all sets that have it are."""
    return {
        name: replace(
            offer,
            yanked=state.yanked[offer.sets[0]] if all(number in state.yanked for number in offer.sets) else "",
        )
        for name, offer in shelf.items()
    }


def steps(
    released: Released, before: State, now: State, shelf_of: Callable[[str], Shelf], entry_of: EntryOf
) -> Sequence[Step]:
    """What to write to get from one state to another.

    Args:
        released: the index.
        before: what the pages show.
        now: what they shall show.
        shelf_of: what a project's pages show.
        entry_of: reads an entry.
    """
    came = [number for number in now.visible if number not in before.visible]
    went = [number for number in before.visible if number not in now.visible]
    both = {*before.visible, *now.visible}
    remarked = [n for n in both if before.yanked.get(n) != now.yanked.get(n)]
    gaining, losing = projects_of(came, entry_of), projects_of(went, entry_of)
    touched = {**projects_of(remarked, entry_of), **gaining}
    shelves = {project: shelf_of(project) for project in {**touched, **losing}}
    written: list[Step] = []
    for project in dependencies_first(touched):
        shelves[project] = added(released, shelves[project], project, came, entry_of)
        written.append(Step(project=project, shelf=marked(shelves[project], now)))
    for project in reversed(dependencies_first(losing)):
        shelves[project] = without(released, shelves[project], went, entry_of)
        written.append(Step(project=project, shelf=marked(shelves[project], now)))
    return written


def all_steps(released: Released, now: State, known: Iterable[str], entry_of: EntryOf) -> Iterator[Step]:
    """Every page of an index from its entries alone; projects that are `known` and offer nothing come last."""
    needs = projects_of(now.visible, entry_of)
    for project in (*dependencies_first(needs), *sorted(set(known) - needs.keys())):
        yield Step(project=project, shelf=marked(stocked(released, project, now.visible, entry_of), now))
