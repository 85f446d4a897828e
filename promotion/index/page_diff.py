"""What changes on an index's pages from one state to another: pure, and in the order in which it must be written.

Additions come first, dependencies before what needs them; then removals, dependents before what they need. So whatever
a page offers at any instant, the pages of everything that it pins offer it too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from promotion.index.ledger import LedgerEntry, LedgerWheel
from promotion.index.ledger_state import State
from promotion.index.pages import Offer, dependencies_first, link, project_of
from promotion.policy.tiers import best, weakest
from promotion.storage.keys import Released

Shelf = Mapping[str, Offer]
"""What a project offers: file name -> wheel."""
EntryOf = Callable[[int], LedgerEntry]
"""The entry that promoted a set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a project's pages show.

    Attributes:
        shelf: each wheel that its HTML page or its JSON page shows.
        both: names of those that both show.
        sure: whether it is what was written last, so that what changed since tells the rest.
    """

    shelf: Shelf
    both: Collection[str]
    sure: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One writing of a project's pages."""

    project: str
    shelf: Shelf


def offer_of(released: Released, wheel: LedgerWheel, entry: LedgerEntry) -> Offer:
    """A wheel on a page, with what the entry that brought it says of its set."""
    assert entry.promoted is not None
    return Offer(
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
                shelf[wheel.filename] = _shared(known, offer, (*known.sets, number)) if known else offer
    return shelf


def _shared(first: Offer, second: Offer, sets: tuple[int, ...]) -> Offer:
    """A wheel that several sets have: what brought it first, and for each target the best that any was tested at."""
    tiers = best(first.tiers, second.tiers)
    return replace(first, sets=sets, tiers=tiers, tier=weakest(tiers) if tiers else first.tier)


def added(released: Released, shelf: Shelf, project: str, numbers: Iterable[int], entry_of: EntryOf) -> Shelf:
    """The shelf with the wheels of further sets; a wheel shows the set that brought it first, and the best tiers."""
    new = stocked(released, project, numbers, entry_of)
    both = dict(shelf)
    for name, offer in new.items():
        if (known := shelf.get(name)) is None:
            both[name] = offer
            continue
        sets = tuple(sorted({*offer.sets, *known.sets}))
        pair = (known, offer) if known.sets[0] == sets[0] else (offer, known)
        both[name] = _shared(*pair, sets) if len(sets) > 1 else offer
    return both


def without(released: Released, shelf: Shelf, numbers: Iterable[int], entry_of: EntryOf) -> Shelf:
    """The shelf without some sets; a wheel that others have too shows the first of those, and their best tiers."""
    gone = frozenset(numbers)
    left: dict[str, Offer] = {}
    for name, offer in shelf.items():
        sets = tuple(number for number in offer.sets if number not in gone)
        if len(sets) == len(offer.sets):
            left[name] = offer
        elif sets:
            left[name] = _again(released, offer, sets, entry_of)
    return left


def _again(released: Released, offer: Offer, sets: tuple[int, ...], entry_of: EntryOf) -> Offer:
    """A wheel with the sets that are left; only so many entries are read as it takes to know the best tiers.

    They cannot be better than with the sets that go, so that what reaches those ends the search.
    """
    found: Offer | None = None
    for number in sets:
        one = stocked(released, offer.project, (number,), entry_of)[offer.filename]
        found = _shared(found, one, sets) if found else one
        if found.tiers == offer.tiers:
            break
    assert found is not None
    return replace(found, sets=sets)


def marked(shelf: Shelf, state: State) -> Shelf:
    """The shelf with the marks of a state: a wheel is yanked when all sets that have it are."""
    return {
        name: replace(
            offer,
            yanked=state.yanked[offer.sets[0]] if all(number in state.yanked for number in offer.sets) else "",
        )
        for name, offer in shelf.items()
    }


def changed(states: Sequence[State]) -> frozenset[int]:
    """Sets that come, go, or are marked otherwise anywhere on the way through some states."""
    found: set[int] = set()
    for before, now in pairwise(states):
        seen, visible = {*before.visible}, {*now.visible}
        found |= seen ^ visible
        found |= {number for number in seen | visible if before.yanked.get(number) != now.yanked.get(number)}
    return frozenset(found)


def steps(
    released: Released, sets: Iterable[int], now: State, seen_of: Callable[[str], Seen], entry_of: EntryOf
) -> Sequence[Step]:
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
    order = dependencies_first(projects_of(sorted(sets), entry_of))
    seen = {project: seen_of(project) for project in order}
    wanted: dict[str, Shelf] = {}
    for project in order:
        if seen[project].sure:
            more = added(released, seen[project].shelf, project, sets & visible, entry_of)
            wanted[project] = marked(without(released, more, sets - visible, entry_of), now)
        else:
            wanted[project] = marked(stocked(released, project, visible, entry_of), now)
    fewer = {project: seen[project].shelf.keys() - wanted[project].keys() for project in order}
    additions = [p for p in order if wanted[p].keys() - seen[p].both or not fewer[p]]
    removals = [p for p in reversed(order) if fewer[p]]
    return (
        *(Step(project=project, shelf={**seen[project].shelf, **wanted[project]}) for project in additions),
        *(Step(project=project, shelf=wanted[project]) for project in removals),
    )


def all_steps(released: Released, now: State, known: Iterable[str], entry_of: EntryOf) -> Iterator[Step]:
    """Every page of an index from its entries alone; projects that are `known` and offer nothing come last."""
    needs = projects_of(now.visible, entry_of)
    for project in (*dependencies_first(needs), *sorted(set(known) - needs.keys())):
        yield Step(project=project, shelf=marked(stocked(released, project, now.visible, entry_of), now))
