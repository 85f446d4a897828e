"""The ledger of an index: numbered entries, each created once and naming the one before it by its sha256."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ci_build.errors import BucketError
from ci_build.model import to_json
from promotion.bucket import Bucket, sha256_of
from promotion.index import Offer, link
from promotion.layout import Released

SCHEMA_VERSION = 1
FIRST = ""
"""What the first entry has as the digest of the one before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerWheel:
    """One wheel of a promoted set: all that an index page needs to know."""

    project: str
    filename: str
    version: str
    size: int
    sha256: str
    metadata_sha256: str
    requires_python: str
    requires_dist: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """One promotion.

    Attributes:
        number: from 1, without gaps.
        previous: sha256 of the bytes of entry `number - 1`, or FIRST.
        time: UTC, ISO 8601 with Z.
        tier: the weakest of `tiers`: what may be said of the set as a whole.
        tiers: gfx target -> how strongly it was tested.
        policy: what was asked, and the sha256 of the policy.
        files: the set's files other than wheels, evidence included -> sha256.
    """

    number: int
    previous: str
    time: str
    set_digest: str
    rocm_version: str
    jax_version: str
    python_versions: tuple[str, ...]
    tier: str
    tiers: Mapping[str, str]
    policy: Mapping[str, str]
    wheels: tuple[LedgerWheel, ...]
    files: Mapping[str, str]

    def dump(self) -> bytes:
        """The entry as it is stored."""
        return (json.dumps({"schema": SCHEMA_VERSION, **to_json(self)}, indent=1, ensure_ascii=False) + "\n").encode()


def load_entry(data: bytes, key: str) -> LedgerEntry:
    """Read a stored entry; BucketError when it is not one of this schema, field by field."""
    try:
        body = json.loads(data)
        schema = body.pop("schema")
        if schema != SCHEMA_VERSION:
            raise BucketError(f"{key} has schema {schema!r}, this program reads {SCHEMA_VERSION}.")
        body["wheels"] = tuple(
            LedgerWheel(**{**wheel, "requires_dist": tuple(wheel["requires_dist"])}) for wheel in body["wheels"]
        )
        body["python_versions"] = tuple(body["python_versions"])
        return LedgerEntry(**body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BucketError(f"{key} cannot be read: {error!r}.", hint="The ledger was changed by hand.") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """All entries, checked.

    Attributes:
        head: sha256 of the last entry's bytes, or FIRST.
    """

    entries: tuple[LedgerEntry, ...]
    head: str

    def entry_of(self, set_digest: str) -> LedgerEntry | None:
        """The entry that promoted a set."""
        return next((entry for entry in self.entries if entry.set_digest == set_digest), None)

    def wheels(self) -> Mapping[str, tuple[LedgerEntry, LedgerWheel]]:
        """File name -> the wheel and the entry that brought it first; sets may share wheels, such as jaxlib."""
        first: dict[str, tuple[LedgerEntry, LedgerWheel]] = {}
        for entry in self.entries:
            for wheel in entry.wheels:
                first.setdefault(wheel.filename, (entry, wheel))
        return first

    def offers(self, released: Released) -> Iterator[Offer]:
        """What the index offers."""
        for entry, wheel in self.wheels().values():
            yield offer_of(
                wheel, entry, href=link(released.simple, wheel.project, released.wheel(wheel.project, wheel.filename))
            )


def offer_of(wheel: LedgerWheel, entry: LedgerEntry, *, href: str) -> Offer:
    """A wheel on a page, with what the entry that brought it says of its set."""
    return Offer(
        project=wheel.project,
        filename=wheel.filename,
        version=wheel.version,
        size=wheel.size,
        sha256=wheel.sha256,
        metadata_sha256=wheel.metadata_sha256,
        requires_python=wheel.requires_python,
        requires_dist=wheel.requires_dist,
        href=href,
        uploaded=entry.time,
        set_digest=entry.set_digest,
        tier=entry.tier,
        tiers=entry.tiers,
    )


def read_ledger(bucket: Bucket, released: Released) -> Ledger:
    """Read all entries and check the chain.

    Raises:
        BucketError: a gap, a foreign file, or an entry that was changed after the next one was written.
    """
    keys = list(bucket.list(released.ledger))
    expected = [released.ledger_entry(number) for number in range(1, len(keys) + 1)]
    if keys != expected:
        strange = sorted(set(keys) ^ set(expected))
        raise BucketError(
            f"The ledger of {released.index} has a gap or a foreign file: {', '.join(strange)}.",
            hint="Restore the ledger from a backup; nothing was changed.",
        )
    entries, head = [], FIRST
    for number, key in enumerate(keys, start=1):
        data = bucket.get(key)
        entry = load_entry(data, key)
        if (entry.number, entry.previous) != (number, head):
            raise BucketError(
                f"{key} does not follow the entry before it: one of the two was changed.",
                hint="Restore the ledger from a backup; nothing was changed.",
            )
        entries.append(entry)
        head = sha256_of(data)
    return Ledger(entries=tuple(entries), head=head)
