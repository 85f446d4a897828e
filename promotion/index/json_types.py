"""Check parsed JSON against the annotations that its readers rely on: it may be damaged or forged.

The doctor runs on a bare Python, so this module uses the standard library alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict


class PolicyRecord(TypedDict, total=False):
    """The policy of a promotion, as ledger and status.json record it; see `ledger.PromotedSet`."""

    channel: str
    sha256: str
    stale_days: int
    bypasses: list[str]
    waivers: list[str]
    attested: dict[str, list[str]]


class SetRow(TypedDict):
    """A set in status.json; see `status.set_row`."""

    entry: int
    digest: str
    promoted: str
    tier: str
    tiers: dict[str, str]
    jax: str
    rocm: str
    pythons: list[str]
    policy: PolicyRecord
    evidence: list[str]
    install: str
    yanked: str


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


class ListedIndex(TypedDict):
    """An index on the page that lists all indexes; see `listing.listing_row`."""

    index: str
    channel: str
    targets: list[str]


class WrittenSetRow(SetRow):
    """All fields of a set in status.json; those of older versions lack some.

    Attributes:
        files: names of the files beside the wheels.
        figures: values of plots by kind: code, tests, gates.
    """

    files: list[str]
    figures: dict[str, dict[str, float]]
    pinned: str
    quarantined: str


class ChangeRow(TypedDict):
    """The newest ledger entry in status.json."""

    time: str
    by: str
    kind: str
    reason: str


class WrittenPages(TypedDict):
    """The pages of a project as status.json records them: digest of their wheels, and etags of both pages."""

    sha256: str
    etags: list[str]


class WrittenTree(TypedDict):
    """The Merkle tree of the ledger in status.json: number of entries, and roots of its complete subtrees."""

    size: int
    roots: list[str]


class StatusFile(TypedDict):
    """The file status.json; see `status.dump_status`.

    Attributes:
        entries: number of the newest ledger entry.
        ledger_sha256: sha256 of that entry.
        visible: number of visible sets.
        last_set: digest of the newest visible set; empty without one.
        stale_after: time from which the index counts as stale; empty if its policy has no limit.
        quarantined: number of a set -> reason.
        sets: the newest visible sets, newest first.
        hidden: the newest quarantined sets, newest first.
        history: the newest ledger entries, newest first.
        listed: row of the index on the page that lists all indexes.
        pages: project -> pages that were written last.
        people: etag of the page for people.
    """

    index: str
    entries: int
    ledger_sha256: str
    changed: ChangeRow
    visible: int
    last_set: str
    last_promoted: str
    stale_after: str
    quarantined: dict[int, str]
    sets: list[WrittenSetRow]
    hidden: list[WrittenSetRow]
    history: list[HistoryRow]
    listed: ListedIndex
    pages: dict[str, WrittenPages]
    people: str
    tree: WrittenTree


def check_type(value: object, kind: Any) -> None:  # noqa: ANN401 - any annotation
    """Raise TypeError unless a value, and every value in it, has the annotated type.

    Args:
        kind: a class, dataclass, TypedDict, or an optional, tuple, list, dict or Mapping of such types.
    """
    if type(value) is kind and kind in _SCALARS:  # most values
        return
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is not None or NoneType not in inner:
            check_type(value, next(one for one in inner if one is not NoneType))
    elif origin is not None:
        wanted = dict if origin is Mapping or origin is dict else origin
        if not isinstance(value, wanted):
            raise TypeError(f"{value!r:.80} is not a {wanted.__name__}")
        _check_items(value, inner)
    elif is_typeddict(kind) or dataclasses.is_dataclass(kind):
        for name, part, annotation in _fields(value, kind):
            try:
                check_type(part, annotation)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from error
    elif kind is not Any and type(value) is not kind:
        raise TypeError(f"{value!r:.80} is not of the type {kind.__name__}")


def _check_items(value: Any, inner: tuple[Any, ...]) -> None:  # noqa: ANN401 - a container
    for item in value:
        check_type(item, inner[0])
    for item in value.values() if isinstance(value, dict) else ():
        check_type(item, inner[1])


def _fields(value: object, kind: Any) -> Iterator[tuple[str, object, Any]]:  # noqa: ANN401 - any annotation
    """Yield name, value and annotation of each field; TypeError if the value lacks a required one."""
    if not isinstance(value, dict if is_typeddict(kind) else kind):
        raise TypeError(f"{value!r:.80} is not a {kind.__name__}")
    for name, annotation in _hints(kind).items():
        if not isinstance(value, dict):
            yield name, getattr(value, name), annotation
        elif name in value:
            yield name, value[name], annotation
        elif name in kind.__required_keys__:
            raise TypeError(f"{name} is missing")


_SCALARS = frozenset({str, int, bool, float})
_hints = functools.cache(get_type_hints)
