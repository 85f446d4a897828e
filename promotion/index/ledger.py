"""The ledger of an index.

Numbered entries that are created once, each with the sha256 of the previous one.

Each entry contains the state after it (`ledger_state`), so the newest entry alone
describes the index. `status.json` names the entry that the pages were written from;
later entries are found by number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.digests import sha256_of
from core.errors import BucketError, FormatError, RequestError
from core.frozen import frozen
from core.model import RocmPackage, to_json
from core.records import convert
from promotion.index.authority import ANYONE, ENTRY_TYPE, Authority, PolicySource
from promotion.index.json_types import PolicyRecord
from promotion.index.ledger_state import EMPTY_STATE, EntryKind, IndexState
from promotion.index.ledger_wheel import LedgerWheel
from promotion.storage.bucket import AbsentError, Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import ReleasedIndex
from promotion.storage.stored_records import dump_record, stored_record

if TYPE_CHECKING:  # Start-up time: it would load cryptography.
    from promotion.evidence.signing import Signer

SCHEMA_VERSION = 5
_RECORDED = re.compile(r"[1-9][0-9]{0,7}:[0-9a-f]{64}")
FIRST = ""
"""The `previous` digest of the first entry."""


@frozen
class PromotedSet:
    """A set at the time of its promotion.

    Attributes:
        tiers: gfx target -> tier of the target.
        policy: channel, sha256 of the policy, days until the index is stale, failing
            programs and passed tests by target, used exceptions, attested wheels by
            signer.
        files: name -> sha256 of the files of the set other than wheels, including
            evidence.
        rocm_packages: wheels of the set's ROCm, which stay on AMD's server.
    """

    set_digest: str
    rocm_version: str
    jax_version: str
    python_versions: tuple[str, ...]
    tiers: Mapping[str, str]
    policy: Mapping[str, Any]
    wheels: tuple[LedgerWheel, ...]
    files: Mapping[str, str]
    rocm_packages: tuple[RocmPackage, ...] = ()


@frozen
class LedgerEntry:
    """One change of an index.

    Attributes:
        number: number of the entry, from 1 without gaps. A promoted set is identified
            by the number of its entry.
        previous: sha256 of the bytes of entry `number - 1`, or FIRST.
        time: time of the change in UTC, ISO 8601 with Z.
        sets: numbers of the changed sets. A promotion changes its own set.
        to: for a rollback, the entry whose state is restored.
        promoted: for a promotion, the set.
        removed: for a sweep or a repair, the keys of the objects to remove.
        bucket, index: identity of the bucket, and the index, so that an entry cannot be
            moved to another one.
        channel: channel of the index.
        policy: text of the policy file.
        source: checkout of the policy.
        key: public key of the signature, or empty.
    """

    number: int
    previous: str
    time: str
    kind: EntryKind
    state: IndexState
    actor: str = ""
    reason: str = ""
    sets: tuple[int, ...] = ()
    to: int = 0
    promoted: PromotedSet | None = None
    removed: tuple[str, ...] = ()
    bucket: str = ""
    index: str = ""
    channel: str = ""
    policy: str = ""
    source: PolicySource | None = None
    key: str = ""

    def dump(self, signer: Signer | None = None) -> bytes:
        """Return the bytes to store, signed if there is a signer.

        Raises:
            RequestError: a text is not UTF-8.
        """
        body = to_json(replace(self, key=signer.key if signer else ""))
        try:
            data = _dump(body)
        except UnicodeEncodeError as error:
            raise RequestError(
                "A reason or name for the ledger is not UTF-8: it contains"
                f" {error.object[error.start : error.end]!r}.",
                hint="Write the reason or name in UTF-8.",
            ) from error
        if signer is None:
            return data
        signature = signer.sign(data, ENTRY_TYPE).signature
        return _dump({**body, "signature": signature})


def _dump(body: Mapping[str, Any]) -> bytes:
    return dump_record(body, schema=SCHEMA_VERSION)


@frozen
class Head:
    """The end of a ledger.

    Attributes:
        number: number of the last entry. 0 for an empty ledger.
        sha256: sha256 of the last entry's bytes, or FIRST.
        state: state after the last entry.
    """

    number: int = 0
    sha256: str = FIRST
    state: IndexState = EMPTY_STATE


@frozen
class Ledger:
    """All entries of a verified ledger.

    Attributes:
        digests: sha256 of the bytes of each entry.
        reader: the reader of the entries.
    """

    entries: tuple[LedgerEntry, ...]
    digests: tuple[str, ...]
    reader: Entries

    def contradiction(self, since: RecordedEntry | None) -> str:
        """Return a sentence if the ledger does not contain an entry; empty if it does."""
        if since is None:
            return ""
        there = since.number <= len(self.digests)
        present = self.digests[since.number - 1] if there else ""
        return since.problem(self.reader.released, present)


@frozen
class RecordedEntry:
    """An entry that a user recorded outside of the bucket, as SEQUENCE:HASH.

    Since each entry contains the digest of the one before it, this pins all entries up
    to it.

    Attributes:
        number: number of the entry.
        sha256: sha256 of its bytes.
    """

    number: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.number}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> RecordedEntry:
        """Parse SEQUENCE:HASH; ValueError if the text has another form."""
        if not _RECORDED.fullmatch(text):
            raise ValueError(f"{text!r} is not SEQUENCE:HASH, such as 12:{'0' * 64}.")
        number, _, digest = text.partition(":")
        return cls(number=int(number), sha256=digest)

    def problem(self, released: ReleasedIndex, present: str) -> str:
        """Return a sentence if a ledger does not contain this entry; empty if it does.

        Args:
            present: sha256 of the entry of this number; empty if there is none.
        """
        if present == self.sha256:
            return ""
        if not present:
            return (
                f"The ledger of {released.index} was cut: entry {self} was recorded, and"
                " is missing."
            )
        return (
            f"The ledger of {released.index} was rewritten: entry {self} was recorded,"
            f" its sha256 is {present}."
        )


class Entries:
    """A reader of ledger entries by number, which reads each entry once.

    Args:
        authority: accepted signatures; see `find_head`.
    """

    def __init__(
        self, bucket: Bucket, released: ReleasedIndex, authority: Authority = ANYONE
    ) -> None:
        self.bucket = bucket
        self.released = released
        self.authority = authority
        self._known: dict[int, tuple[LedgerEntry, str]] = {}

    def find(self, number: int) -> tuple[LedgerEntry, str] | None:
        """Return an entry and the sha256 of its bytes, or None if it does not exist."""
        if number not in self._known:
            key = self.released.ledger_entry(number)
            try:
                data = self.bucket.get(key)
            except AbsentError:
                return None
            entry = load_entry(data, key)
            if entry.number != number or entry.index != self.released.index:
                wrong = f"{entry.index}, {entry.number}"
                raise BucketError(
                    f"{key} contains the wrong entry: {wrong}.", hint=_RESTORE
                )
            self._known[number] = entry, sha256_of(data)
        return self._known[number]

    def at(self, number: int) -> LedgerEntry:
        """Return an entry that must exist because a later entry exists.

        BucketError if it is missing.
        """
        entry = self.find(number)
        if entry is None:
            raise BucketError(
                f"{self.released.ledger_entry(number)} is missing from the ledger.",
                hint=_RESTORE,
            )
        return entry[0]

    def sha256(self, number: int) -> str:
        """Return the sha256 of an entry that was read."""
        return self._known[number][1]

    def read(self, numbers: Iterable[int]) -> tuple[LedgerEntry, ...]:
        """Return entries that must exist, with concurrent requests."""
        return map_concurrently(self.at, numbers)

    def history(self, head: Head) -> tuple[LedgerEntry, ...]:
        """Return all entries up to a head; BucketError if one is missing or was changed."""
        for _ in _heads_after(Head(), self, head.number):
            pass
        return self.read(range(1, head.number + 1))

    def sets(self, numbers: Iterable[int]) -> Mapping[int, PromotedSet]:
        """Return number -> the set that the entry promoted; see `set`."""
        return {entry.number: self.set(entry.number) for entry in self.read(numbers)}

    def set(self, number: int) -> PromotedSet:
        """Return the set that an entry promoted.

        BucketError if the entry is missing or not a promotion.
        """
        promoted = self.at(number).promoted
        if promoted is None:
            raise BucketError(
                f"{self.released.ledger_entry(number)} does not promote a set.",
                hint=_RESTORE,
            )
        return promoted


_RESTORE = "Restore the ledger from a backup. Nothing was changed."


def load_entry(data: bytes, key: str) -> LedgerEntry:
    """Parse a stored entry.

    BucketError when a field is missing, unknown or invalid, or the signature is not
    valid.
    """
    body = stored_record(data, dict[str, Any], key, schema=SCHEMA_VERSION)
    try:
        signature = str(body.pop("signature", ""))
        entry = convert(body, LedgerEntry, key)
        if datetime.fromisoformat(entry.time).tzinfo is None:
            raise ValueError(f"{entry.time} has no time zone")
        promotes = entry.kind is EntryKind.PROMOTE
        if promotes != (entry.promoted is not None):
            raise ValueError("a promotion has a set, and no other entry has one")
        if promotes and entry.sets != (entry.number,):
            raise ValueError("a promotion changes other sets than its own")
        if entry.promoted is not None:
            convert(entry.promoted.policy, PolicyRecord, f"{key}: promoted.policy")
        if signature or entry.key:
            _check_signature(data, body, signature, key)
    except (FormatError, ValueError) as error:
        raise BucketError(
            f"{key} is not a ledger entry: {error}.", hint=_RESTORE
        ) from error
    # It has 12 kB in each entry, and few entries have another one.
    return replace(entry, policy=sys.intern(entry.policy))


def _check_signature(
    data: bytes, body: Mapping[str, Any], signature: str, key: str
) -> None:
    """Raise BucketError unless the key in an entry signed exactly its bytes."""
    # Start-up time: cryptography is loaded only for signed entries.
    from promotion.evidence.signing import Signature, is_valid_signature, public_key

    made = Signature(key=public_key(body["key"]), signature=signature)
    if _dump({**body, "signature": signature}) != data or not is_valid_signature(
        _dump(body), ENTRY_TYPE, made
    ):
        raise BucketError(f"{key} was changed after it was signed.", hint=_RESTORE)


def find_head(
    entries: Entries, *, number: int, sha256: str, everything: bool = False
) -> Head:
    """Return the end of a ledger.

    Args:
        number: number of the entry that status.json names, where the search starts. 0
            means the first entry.
        sha256: sha256 of that entry in status.json.
        everything: verify all entries. Otherwise those before entry `number` are not
            read: status.json, which is not signed, vouches for them.

    Raises:
        BucketError: the ledger has a gap, the named entry is missing or changed, or an
            entry does not match the entry before it, or the entries are signed by keys
            that the reader's authority does not accept.
    """
    released = entries.released
    count = _count(entries)
    head = Head()
    if number:
        entry = entries.find(number)
        if entry is None or entry[1] != sha256:
            problem = "is missing" if entry is None else "was changed"
            raise BucketError(
                f"{released.ledger_entry(number)}, named in {released.status},"
                f" {problem}.",
                hint=_RESTORE,
            )
        if not everything:
            head = Head(number=number, sha256=entry[1], state=entry[0].state)
    last = [head, *_heads_after(head, entries, count)][-1]
    read = [
        entries.at(number) for number in range(head.number, last.number + 1) if number
    ]
    if problems := [*signature_problems(entries, read)]:
        raise BucketError(" ".join(problems), hint=_RESTORE)
    return last


def _heads_after(head: Head, entries: Entries, count: int) -> Iterator[Head]:
    """Yield the head after each further entry, up to `count`.

    BucketError if an entry does not match the entry before it.
    """
    numbers = range(head.number + 1, count + 1)
    for number, entry in zip(numbers, entries.read(numbers), strict=True):
        if entry.previous != head.sha256:
            key = entries.released.ledger_entry(entry.number)
            raise BucketError(
                f"{key} does not match the entry before it; one of the two was"
                " changed.",
                hint=_RESTORE,
            )
        head = Head(number=number, sha256=entries.sha256(number), state=entry.state)
        yield head


def channel_of(head: Head, entries: Entries) -> str:
    """Return the channel of an index; empty before the first promotion."""
    return entries.at(head.number).channel if head.number else ""


def no_index(released: ReleasedIndex) -> RequestError:
    """Return the error of an index without a ledger."""
    return RequestError(
        f"The bucket has no index {released.index}.", hint="Promote a set to it first."
    )


def _count(entries: Entries) -> int:
    """Return the number of entries; BucketError for a gap or a foreign file."""
    released = entries.released
    keys = [*entries.bucket.list(released.ledger)]
    expected = [released.ledger_entry(number + 1) for number in range(len(keys))]
    if keys != expected:
        strange = sorted({*keys} ^ {*expected})
        raise BucketError(
            f"The ledger of {released.index} has a gap or a foreign file:"
            f" {', '.join(strange)}.",
            hint=_RESTORE,
        )
    return len(keys)


def read_ledger(
    bucket: Bucket, released: ReleasedIndex, authority: Authority = ANYONE
) -> Ledger:
    """Read all entries and verify the chain, and each signature with the key in the entry.

    Args:
        authority: accepted signatures, which `signature_problems` compares.

    Raises:
        BucketError: the ledger has a gap or a foreign file, or an entry was changed.
    """
    entries = Entries(bucket, released, authority)
    heads = [*_heads_after(Head(), entries, _count(entries))]
    return Ledger(
        entries=tuple(entries.at(head.number) for head in heads),
        digests=tuple(head.sha256 for head in heads),
        reader=entries,
    )


def signature_problems(
    reader: Entries, entries: Sequence[LedgerEntry]
) -> Iterator[str]:
    """Yield a sentence for each of some consecutive entries that the authority refuses."""
    authority = reader.authority
    if authority.keys is None:
        return
    own = reader.bucket.identity
    for name in sorted({entry.bucket for entry in entries if entry.key}):
        # Links give a folder several paths.
        if Path(name).resolve() != Path(own).resolve():
            yield (
                f"The ledger of {reader.released.index} was signed for the bucket"
                f" {name}, not for {own}: open a renamed bucket or a mirror with"
                " ?signed_as=NAME, and link the old path of a moved folder to it."
            )
    latest = ""
    for entry in entries:
        latest = max(latest, entry.time)
        if problem := authority.problem(entry.key, latest):
            yield f"{reader.released.ledger_entry(entry.number)} {problem}."
