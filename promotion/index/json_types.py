"""Check parsed JSON against the annotations that its readers rely on: it may be damaged or forged.

The doctor runs on a bare Python, so this module uses the standard library alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    Any,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


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
        optional: requirements of the wheels that `install` leaves out, with spaces
            between them.
    """

    files: list[str]
    optional: str
    pinned: str
    quarantined: str


class ChangeRow(TypedDict):
    """The newest ledger entry in status.json."""

    time: str
    by: str
    kind: str
    reason: str


class WrittenPages(TypedDict):
    """The pages of a project as status.json records them.

    Digest of their wheels, and etags of both pages.
    """

    sha256: str
    etags: list[str]


class StatusFile(TypedDict):
    """The file status.json; see `status.dump_status`.

    Attributes:
        entries: number of the newest ledger entry.
        ledger_sha256: sha256 of that entry.
        visible: number of visible sets.
        last_set: digest of the newest visible set; empty without one.
        stale_after: time from which the index counts as stale; empty if its policy has
            no limit.
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


def check_type(value: object, kind: Any) -> None:  # noqa: ANN401 - any annotation
    """Raise TypeError unless a value, and every value in it, has the annotated type.

    Args:
        kind: a class, dataclass, TypedDict, or an optional, tuple, list, dict or
            Mapping of such types.
    """
    _check_of(kind)(value)


@functools.cache
def _check_of(kind: Any) -> _Check:  # noqa: ANN401 - any annotation
    """Return the function that checks a value of an annotated type.

    Analysing the annotation takes longer than that.
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        check = _check_of(next(one for one in inner if one is not NoneType))
        return functools.partial(_check_optional, check) if NoneType in inner else check
    if origin is not None:
        wanted = dict if origin is Mapping or origin is dict else origin
        return functools.partial(
            _check_items, wanted, [_part(one) for one in inner if one is not Ellipsis]
        )
    if is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return functools.partial(_check_fields, kind)
    return _check_nothing if kind is Any else functools.partial(_check_class, kind)


def _part(kind: Any) -> tuple[type | None, _Check]:  # noqa: ANN401 - any annotation
    """Return the class that needs no further check, and the check of other values."""
    return kind if kind in _SCALARS else None, _check_of(kind)


def _check_nothing(_: object) -> None:
    pass


def _check_class(kind: type, value: object) -> None:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is not of the type {kind.__name__}")


def _check_optional(check: _Check, value: object) -> None:
    if value is not None:
        check(value)


def _check_items(
    wanted: Any,  # noqa: ANN401
    inner: Sequence[tuple[type | None, _Check]],
    value: Any,  # noqa: ANN401
) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"{value!r:.80} is not a {wanted.__name__}")
    parts = (value, value.values()) if isinstance(value, dict) else (value,)
    for (scalar, check), items in zip(inner, parts, strict=False):
        for item in items:
            if type(item) is not scalar:
                check(item)


def _check_fields(kind: Any, value: object) -> None:  # noqa: ANN401 - a TypedDict or dataclass
    """Check each field; TypeError if the value lacks a required one."""
    if not isinstance(value, dict if is_typeddict(kind) else kind):
        raise TypeError(f"{value!r:.80} is not a {kind.__name__}")
    for name, scalar, check in _fields(kind):
        if not isinstance(value, dict):
            part = getattr(value, name)
        elif name in value:
            part = value[name]
        elif name in kind.__required_keys__:
            raise TypeError(f"{name} is missing")
        else:
            continue
        if type(part) is not scalar:
            try:
                check(part)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from error


@functools.cache
def _fields(
    kind: Any,  # noqa: ANN401
) -> tuple[tuple[str, type | None, _Check], ...]:
    return tuple(
        (name, *_part(annotation)) for name, annotation in get_type_hints(kind).items()
    )


_Check = Callable[[Any], None]
_SCALARS = frozenset({str, int, bool, float})
