"""Write status.json and collect the contents of the page for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import cast

from core.digests import sha256_of
from core.frozen import frozen
from core.versions import KERNELS_PROJECT
from promotion.evidence.evidence import TIME, time_of
from promotion.index.json_types import (
    STATUS_SCHEMA,
    HistoryRow,
    PolicyRecord,
    SetRow,
    StatusFile,
)
from promotion.index.ledger import Entries, LedgerEntry
from promotion.index.ledger_state import IndexState
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.overview import newest_row, overview_page
from promotion.index.page_diff import WheelFiles, index_files
from promotion.index.pages import Page, install_requirements, root_pair
from promotion.index.rocm_packages import extras_of, rocm_index
from promotion.index.set_summary import SUMMARY, SetContent, load_summary, written_with
from promotion.storage.bucket import AbsentError, Bucket
from promotion.storage.object_keys import ReleasedIndex
from promotion.storage.stored_records import dump_record

MAX_ROWS = 50
"""Number of sets with a row in status.json and on the overview page, newest first."""


def set_row(entry: LedgerEntry, state: IndexState) -> SetRow:
    """Return the row of a set in status.json."""
    assert entry.promoted is not None
    promoted = entry.promoted
    wheels = [wheel for wheel in promoted.wheels if wheel.project != KERNELS_PROJECT]
    optional = [
        f"{wheel.project}=={wheel.version}"
        for wheel in promoted.wheels
        if wheel.project == KERNELS_PROJECT
    ]
    beside = sorted(name for name in promoted.files if "/" not in name)
    extras = [*extras_of(wheels)]
    return {
        "entry": entry.number,
        "digest": promoted.set_digest,
        "promoted": entry.time,
        "tiers": dict(promoted.tiers),
        "jax": promoted.jax_version,
        "rocm": promoted.rocm_version,
        "pythons": list(promoted.python_versions),
        "policy": cast("PolicyRecord", dict(promoted.policy)),
        "files": beside,
        "install": " ".join(
            install_requirements(wheels, {"jax": promoted.jax_version})
        ),
        "optional": " ".join(optional),
        "extras": extras,
        "rocm_index": rocm_index(promoted.rocm_version, extras, promoted.rocm_packages),
        "yanked": state.yanked.get(entry.number, ""),
        "pinned": state.pinned.get(entry.number, ""),
        "quarantined": state.quarantined.get(entry.number, ""),
    }


def history_row(entry: LedgerEntry) -> HistoryRow:
    """Return the row of a ledger entry in status.json."""
    promoted = entry.promoted
    return {
        "entry": entry.number,
        "time": entry.time,
        "kind": entry.kind.value,
        "by": entry.actor,
        "reason": entry.reason,
        "sets": list(entry.sets),
        "to": entry.to,
        "title": (
            f"jax {promoted.jax_version}, ROCm {promoted.rocm_version}"
            if promoted
            else ""
        ),
    }


def status_of(
    released: ReleasedIndex,
    last: LedgerEntry,
    ledger_sha256: str,
    read: Callable[[Iterable[int]], Iterable[LedgerEntry]],
) -> StatusFile:
    """Return the content of status.json after the last entry of a ledger.

    Args:
        ledger_sha256: sha256 of the entry.
        read: reader of the ledger entries with some numbers.
    """
    state = last.state
    visible = read(sorted(state.visible, reverse=True)[:MAX_ROWS])
    rows = [set_row(entry, state) for entry in visible]
    quarantined = sorted({*state.quarantined} & {*state.held}, reverse=True)[:MAX_ROWS]
    history = range(last.number, max(last.number - MAX_ROWS, 0), -1)
    return {
        "index": released.index,
        "entries": last.number,
        "ledger_sha256": ledger_sha256,
        "visible": len(state.visible),
        "stale_after": stale_after(rows),
        "sets": rows,
        "hidden": [set_row(entry, state) for entry in read(quarantined)],
        "history": [history_row(entry) for entry in read(history)],
    }


def read_summary(
    bucket: Bucket, released: ReleasedIndex, entry: LedgerEntry
) -> SetContent | None:
    """Return the numbers of a promoted set; None if the file was lost or changed."""
    assert entry.promoted is not None
    name = written_with(SUMMARY, entry.promoted.files)
    if not name:
        return None
    key = released.set_file(entry.promoted.set_digest, name)
    try:
        data = bucket.get(key)
    except AbsentError:
        return None  # `index verify` reports it
    changed = sha256_of(data) != entry.promoted.files.get(name)
    return None if changed else load_summary(data, key)


@frozen
class IndexPages:
    """All pages of an index after an entry, rendered from the ledger alone.

    Attributes:
        projects: project -> its visible wheels.
        root: the lists of projects.
    """

    projects: Mapping[str, WheelFiles]
    root: tuple[Page, Page]
    overview: Page
    status: Page


def index_pages(entries: Entries, last: LedgerEntry, ledger_sha256: str) -> IndexPages:
    """Return the pages of an index after its last entry, which has this sha256."""
    released = entries.released
    state = last.state
    entries.read(state.visible)
    projects = index_files(released, state.visible, state, entries.at)
    status = status_of(released, last, ledger_sha256, entries.read)
    newest = newest_row(status)
    summary = None
    wheels: Sequence[LedgerWheel] = ()
    if newest is not None:
        entry = entries.at(newest["entry"])
        summary = read_summary(entries.bucket, released, entry)
        wheels = entries.set(entry.number).wheels
    overview = overview_page(status, wheels, summary)
    return IndexPages(
        projects=projects,
        root=root_pair(released.simple, projects),
        overview=Page(key=released.overview, data=overview),
        status=Page(
            key=released.status, data=dump_record(status, schema=STATUS_SCHEMA)
        ),
    )


def stale_after(rows: Sequence[SetRow]) -> str:
    """Return the UTC time when an index becomes stale; empty if its policy has no limit."""
    days = rows[0]["policy"].get("stale_days") if rows else None
    last = time_of(rows[0]["promoted"]) if rows else None
    return (last + timedelta(days=days)).strftime(TIME) if last and days else ""
