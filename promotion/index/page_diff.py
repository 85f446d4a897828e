"""Compute the pages of an index from the sets that its ledger shows.

Updates are ordered so that readers never see an unmet pin: additions first,
dependencies before dependents; then removals, dependents before dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from core.model import TIER_ORDER
from promotion.index.ledger import LedgerEntry
from promotion.index.ledger_state import IndexState
from promotion.index.ledger_wheel import IndexedWheel
from promotion.index.pages import link, write_order
from promotion.index.rocm_packages import rocm_row
from promotion.storage.object_keys import ReleasedIndex

WheelFiles = Mapping[str, IndexedWheel]
"""Wheels of one project by file name."""
EntryOf = Callable[[int], LedgerEntry]
"""Function that returns the ledger entry with a number."""

_TIERS = ("none", *(tier.value for tier in TIER_ORDER))


def index_files(
    released: ReleasedIndex,
    numbers: Iterable[int],
    state: IndexState,
    entry_of: EntryOf,
) -> dict[str, dict[str, IndexedWheel]]:
    """Return project -> its wheels when exactly these sets are visible.

    A wheel of several sets has the row of the first one, with the strongest tier of
    each target. It is yanked when all its sets are. A wheel of ROCm has the address that
    the newest set records.
    """
    projects: dict[str, dict[str, IndexedWheel]] = {}
    for number in sorted(numbers):
        for row in _rows(released, entry_of(number)):
            files = projects.setdefault(row.wheel.project, {})
            name = row.wheel.filename
            files[name] = _merged(files[name], row) if name in files else row
    for files in projects.values():
        for name, row in files.items():
            if state.yanked.keys() >= set(row.sets):
                files[name] = replace(row, yanked=state.yanked[row.sets[0]])
    return projects


def _rows(released: ReleasedIndex, entry: LedgerEntry) -> Iterator[IndexedWheel]:
    """Yield the rows of a set's wheels, and of its ROCm's, which have no tier."""
    promoted = entry.promoted
    if promoted is None:
        return
    rows = [*map(rocm_row, promoted.rocm_packages)]
    for wheel in promoted.wheels:
        key = released.wheel(wheel.project, wheel.filename)
        row = IndexedWheel(
            wheel=wheel,
            href=link(released.simple, wheel.project, key),
            tiers=dict(sorted(promoted.tiers.items())),
        )
        rows.append(row)
    for row in rows:
        yield replace(
            row,
            uploaded=entry.time,
            set_digest=promoted.set_digest,
            sets=(entry.number,),
        )


def _merged(first: IndexedWheel, second: IndexedWheel) -> IndexedWheel:
    tiers = {}
    for target in sorted({*first.tiers, *second.tiers}):
        both = first.tiers.get(target, "none"), second.tiers.get(target, "none")
        tiers[target] = max(both, key=tier_rank)
    return replace(
        first,
        href=second.href,
        sets=(*first.sets, *second.sets),
        tiers=tiers,
    )


def tier_rank(tier: str) -> int:
    """Return the place of a tier in the order of strength; unknown tiers come first."""
    return _TIERS.index(tier) if tier in _TIERS else -1


def page_updates(
    target: Mapping[str, WheelFiles],
    possible: Mapping[str, WheelFiles],
    content_of: Callable[[str], tuple[bytes, bytes]],
) -> Sequence[tuple[str, WheelFiles]]:
    """Return the writes that make pages show a state, also after an interrupted update.

    Each is a project, and the wheels that its pages show afterwards.

    Args:
        target: project -> wheels that its pages must show.
        possible: project -> wheels of `target`, and further ones that the pages may
            show now.
        content_of: function that returns the HTML page and the JSON page of a project.
    """
    additions: list[tuple[str, WheelFiles]] = []
    removals: list[tuple[str, WheelFiles]] = []
    for project in write_order(possible):
        as_html, as_json = content_of(project)
        wanted = target.get(project, {})
        leaving = {}
        for name, row in possible[project].items():
            shown = name.encode() in as_html or name.encode() in as_json
            if shown and name not in wanted:
                leaving[name] = row
        additions.append((project, {**leaving, **wanted}))
        if leaving:
            removals.insert(0, (project, wanted))
    return (*additions, *removals)
