"""The types of the JSON in status.json, on the page of indexes and in ledger entries.

Readers accept unknown keys, so that a monitor may read the files of a newer version.
"""

from __future__ import annotations

from typing import TypedDict

STATUS_SCHEMA = 4


class PolicyRecord(TypedDict, total=False):
    """The policy of a promotion, as ledger and status.json record it; see `ledger.PromotedSet`."""

    channel: str
    sha256: str
    stale_days: int
    failing: dict[str, str]
    tested: dict[str, str]
    exceptions: list[str]
    attested: dict[str, list[str]]


class SetRow(TypedDict):
    """A set in status.json; see `status.set_row`.

    Attributes:
        files: names of the files beside the wheels.
        optional: requirements of the wheels that `install` leaves out, with spaces
            between them.
        extras: extras of the plugin in `install` that install the ROCm, such as
            device-gfx942; empty if it must be installed as system packages.
        rocm_index: AMD's index with the ROCm of the extras; empty if this index lists
            its wheels.
    """

    entry: int
    digest: str
    promoted: str
    tiers: dict[str, str]
    jax: str
    rocm: str
    pythons: list[str]
    policy: PolicyRecord
    install: str
    yanked: str
    files: list[str]
    optional: str
    extras: list[str]
    rocm_index: str
    pinned: str
    quarantined: str


class HistoryRow(TypedDict):
    """A ledger entry in status.json; see `status.history_row`."""

    entry: int
    time: str
    kind: str
    by: str
    reason: str
    sets: list[int]
    to: int
    title: str


class StatusFile(TypedDict):
    """The file status.json; see `status.dump_status`.

    Attributes:
        entries: number of the newest ledger entry.
        ledger_sha256: sha256 of that entry.
        visible: number of visible sets.
        stale_after: time from which the index counts as stale; empty if its policy has
            no limit.
        sets: the newest visible sets, newest first.
        hidden: the newest quarantined sets, newest first.
        history: the newest ledger entries, newest first.
    """

    index: str
    entries: int
    ledger_sha256: str
    visible: int
    stale_after: str
    sets: list[SetRow]
    hidden: list[SetRow]
    history: list[HistoryRow]
