"""`index verify` and its `--repair`.

Verification recomputes the states, digests and pages of an index, and reports differences
without any change. A repair restores pages, and removes what interrupted sweeps and
promotions left. The ledger, the files of held sets, and published wheels of other projects
are never changed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path

from core.digests import sha256_of
from core.errors import ArchiveError, BucketError, RequestError
from core.frozen import frozen
from core.model import Progress
from promotion.evidence.attestation_verification import Verify, lazy_verifier
from promotion.evidence.evidence import CLOCK_SKEW
from promotion.index.authority import ANYONE, Authority
from promotion.index.claim import Claim, claimed
from promotion.index.core_metadata import core_metadata
from promotion.index.inventory import Inventory, read_inventory
from promotion.index.ledger import (
    Entries,
    Head,
    Ledger,
    LedgerEntry,
    PromotedSet,
    RecordedEntry,
    no_index,
    read_ledger,
    signature_problems,
)
from promotion.index.ledger_state import EMPTY_STATE, EntryKind, apply_change
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.operations import Change, Clock, change_ledger, utc_now
from promotion.index.publish import check_not_cut, newest_shown, publish
from promotion.index.retention import bytes_of
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import (
    METADATA_SUFFIX,
    PROVENANCE_SUFFIX,
    ReleasedIndex,
)

_RESTORE = "Restore it from a backup."


def verify(
    bucket: Bucket,
    released: ReleasedIndex,
    progress: Progress | None = None,
    *,
    read: bool = False,
    verify_attestations: Verify | None = None,
    authority: Authority = ANYONE,
    since: RecordedEntry | None = None,
    entry_problems: Callable[[LedgerEntry], Iterable[str]] = lambda _: (),
    now: Clock = utc_now,
) -> Iterator[str]:
    """Yield a sentence for each problem of the ledger or of the stored objects.

    The ledger is checked first. Everything else is compared with the ledger, so a
    damaged ledger ends the check.

    Args:
        progress: receiver of the number of checked objects.
        verify_attestations: verifier of attestations. The default uses Sigstore's
            public instance.
        authority: accepted signatures of ledger entries, and the channel of the index.
        read: download and hash every file, even where the store reports a trusted
            checksum.
        since: entry that the ledger must contain, or None.
        entry_problems: check of the promotion of a held set, see `policy.recorded_promotion`.

    Raises:
        RequestError: the bucket does not have the index.
    """
    try:
        shown = newest_shown(bucket, released)
        ledger = read_ledger(bucket, released, authority)
    except BucketError as error:
        yield error.message
        return
    entries = ledger.entries
    yield from _states(released, entries)
    yield from signature_problems(ledger.reader, entries)
    yield from _dates_and_policies(released, entries, authority.channel, now())
    contradicted = ledger.contradiction(since)
    if contradicted:
        yield contradicted
    if not entries:
        count = sum(1 for _ in bucket.list(released.root))
        if not count:
            if contradicted:
                return
            raise no_index(released)
        yield (
            f"{released.ledger} is empty, but the index has {count} objects: the ledger"
            " was lost or never written."
        )
        return
    try:
        check_not_cut(released, len(entries), shown)
    except BucketError as error:
        yield error.message
    state = entries[-1].state
    promoted = {entry.number for entry in entries if entry.promoted is not None}
    if strange := sorted({*state.held, *state.offered} - promoted):
        last = released.ledger_entry(len(entries))
        yield (
            f"{last} names sets that no entry promoted: {', '.join(map(str, strange))}."
        )
        return
    yield from _sweeps(ledger)
    try:
        inventory = read_inventory(ledger)
    except ValueError as error:  # such as an invalid version or requirement
        yield f"The ledger of {released.index} does not describe pages: {error}."
        return
    for done, (key, sha256) in enumerate(sorted(inventory.files.items()), start=1):
        if progress is not None:
            progress.advance(done, len(inventory.files))
        yield from _object(bucket, key, sha256, _RESTORE, read=read)
    held_entries = [entry for entry in entries if entry.number in state.held]
    for entry in held_entries:
        yield from entry_problems(entry)
    held = [entry.promoted for entry in held_entries if entry.promoted is not None]
    wheels = {wheel.filename: wheel for one in held for wheel in one.wheels}
    if read:
        yield from _metadata(bucket, released, wheels.values())
    yield from _attestations(
        bucket, released, held, verify_attestations or lazy_verifier()
    )
    repair = f"`ci_build index verify {released.index} --repair`"
    for key, sha256 in inventory.pages.items():
        yield from _object(bucket, key, sha256, f"{repair} restores it.", read=read)
    yield from _unnamed(bucket, released, inventory, read=read)


def _unnamed(
    bucket: Bucket, released: ReleasedIndex, inventory: Inventory, *, read: bool
) -> Iterator[str]:
    """Yield a sentence for each object outside of the ledger or damaged file."""
    for key in inventory.unnamed(bucket, released):
        if key in inventory.kept:
            yield from _object(bucket, key, inventory.kept[key], _RESTORE, read=read)
        elif key.startswith(released.folders):
            repair = f"`ci_build index verify {released.index} --repair`"
            yield f"{key} belongs to no set that the index holds: {repair} removes it."
        else:
            yield f"{key} is no file of an index. Remove it by hand."


def _dates_and_policies(
    released: ReleasedIndex, entries: Sequence[LedgerEntry], channel: str, now: datetime
) -> Iterator[str]:
    """Yield a sentence for each entry with a wrong time, of another channel or policy."""
    last = ""
    for entry in entries:
        key = released.ledger_entry(entry.number)
        if entry.time < last:
            yield f"{key} is of {entry.time}, before the entry before it, {last}."
        if datetime.fromisoformat(entry.time) > now + CLOCK_SKEW:
            yield f"{key} is of {entry.time}, in the future."
        last = entry.time
        policy = entry.promoted.policy if entry.promoted else {}
        for own in {entry.channel, policy.get("channel", "")} - {"", channel}:
            if channel:
                yield f"{key} belongs to channel {own}, not {channel}."
        if (
            entry.policy
            and policy
            and sha256_of(entry.policy.encode()) != policy.get("sha256")
        ):
            yield (
                f"{key} contains another policy than the one that it names:"
                f" {policy.get('sha256', 'none')}."
            )


def _sweeps(ledger: Ledger) -> Iterator[str]:
    """Yield a sentence for each sweep that names files of other sets.

    Names of removed wheels are never used again.
    """
    released = ledger.reader.released
    for entry in ledger.entries:
        if entry.kind is EntryKind.SWEEP:
            own = bytes_of(released, ledger.reader.sets(entry.sets), {})
            if not own.keys() >= {*entry.removed}:
                yield f"{released.ledger_entry(entry.number)} removes files of other sets."


def _object(
    bucket: Bucket, key: str, sha256: str, remedy: str, *, read: bool
) -> Iterator[str]:
    """Yield a sentence if an object is missing or has other bytes, with the remedy."""
    info = bucket.head(key)
    if info is None:
        yield f"{key} is missing. {remedy}"
    elif info.sha256 != sha256:
        yield f"{key} has sha256 {info.sha256}; {sha256} was expected. {remedy}"
    elif read:
        with tempfile.TemporaryDirectory(prefix="verify-") as folder:
            try:
                actual = sha256_of(bucket.fetch(key, Path(folder)))
            except BucketError as error:
                yield error.message
            except OSError as error:  # of the store's own file
                yield f"{key} cannot be read: {error.strerror}."
            else:
                if actual != info.sha256:
                    yield f"{key} has sha256 {actual}; the store reports {info.sha256}."


def _metadata(
    bucket: Bucket, released: ReleasedIndex, wheels: Iterable[LedgerWheel]
) -> Iterator[str]:
    """Yield a sentence for each wheel with other core metadata than the file beside it."""
    for wheel in wheels:
        key = released.wheel(wheel.project, wheel.filename)
        own = wheel.metadata_sha256
        # The digest of a wheel that cannot be read is reported too.
        with contextlib.suppress(BucketError, ArchiveError), bucket.open(key) as file:
            own = sha256_of(core_metadata(file, wheel.filename))
        if own != wheel.metadata_sha256:
            yield f"{key}{METADATA_SUFFIX} is not the core metadata of the wheel."


def _attestations(
    bucket: Bucket, released: ReleasedIndex, held: Sequence[PromotedSet], verify: Verify
) -> Iterator[str]:
    """Yield a sentence for each attestation that is invalid or differs from the ledger."""
    signers: dict[str, set[str]] = {}
    for promoted in held:
        for who, names in promoted.policy.get("attested", {}).items():
            for name in names:
                signers.setdefault(name, set()).add(who)
    of_sets = chain.from_iterable(promoted.wheels for promoted in held)
    wheels = {wheel.filename: wheel for wheel in of_sets if wheel.provenance}
    for name, wheel in sorted(wheels.items()):
        file = bucket.read(released.wheel(wheel.project, name) + PROVENANCE_SUFFIX)
        if file is None:
            continue  # reported as a missing object
        report = verify(file[0], name, wheel.sha256)
        yield from report.problems
        for signer in report.signers:
            if str(signer) not in signers.get(name, {str(signer)}):
                yield (
                    f"{name} was attested by {signer}; the ledger names"
                    f" {', '.join(sorted(signers[name]))}."
                )


def _states(released: ReleasedIndex, entries: Sequence[LedgerEntry]) -> Iterator[str]:
    """Recompute the state after each entry, and yield a sentence per difference."""
    state = EMPTY_STATE
    states = {0: EMPTY_STATE}
    for entry in entries:
        try:
            state = apply_change(
                state,
                entry.kind,
                entry.sets,
                time=entry.time,
                reason=entry.reason,
                earlier=states[entry.to],
            )
        except (RequestError, KeyError) as error:
            yield (
                f"{released.ledger_entry(entry.number)} contradicts the entries before"
                f" it: {error}"
            )
        if entry.state != state:
            yield (
                f"{released.ledger_entry(entry.number)} records another state than the"
                " entries up to it produce."
            )
            state = entry.state
        states[entry.number] = state


@frozen
class IndexRepair:
    """The result of a repair.

    Attributes:
        written: keys of the restored pages, and of those that show the ledger entry of
            the repair.
        removed: keys of the removed objects.
        kept: key of an object that the ledger does not name -> reason why it stays.
    """

    written: tuple[str, ...]
    removed: tuple[str, ...]
    kept: Mapping[str, str]


def repair(
    bucket: Bucket,
    released: ReleasedIndex,
    *,
    now: Clock = utc_now,
    authority: Authority = ANYONE,
    since: RecordedEntry | None = None,
) -> IndexRepair:
    """Restore the pages of an index, and remove the files that its ledger does not name.

    Safe at any time.

    Before files are removed, a ledger entry names them, so that no promotion that began
    earlier can use them; see `claim`.

    Args:
        authority: accepted signatures of ledger entries, and the signer of the new one.
        since: entry that the ledger must contain, or None.

    Raises:
        RequestError: the bucket does not have the index, or files must be removed and
            the authority may not sign.
        BucketError: the ledger is damaged, was cut or rewritten, or has entries that
            the authority does not accept: the files of a lost entry would look like
            leftovers.
        BusyError: a promotion or another repair is running.
    """
    ledger = read_ledger(bucket, released)
    if problem := ledger.contradiction(since):
        raise BucketError(
            problem, hint="Restore the ledger from a backup. Nothing was changed."
        )
    if not ledger.entries:
        raise no_index(released)
    written = publish(bucket, released, everything=True, authority=authority)
    removed: tuple[str, ...] = ()
    removing, kept = _leftovers(bucket, released)

    def draft(_head: Head, _entries: Entries) -> Change:
        nonlocal removing
        claim.renew()
        removing, _ = _leftovers(bucket, released)
        keys = tuple(removing)
        return Change(kind=EntryKind.REPAIR, reason="leftovers", removed=keys)

    if removing:
        with claimed(bucket, released, "repair", now=now) as claim:
            change_ledger(bucket, released, draft, now=now, authority=authority)
            removed, denied = _remove(bucket, claim, removing)
        kept |= denied
        written += publish(bucket, released, authority=authority)
    return IndexRepair(
        written=tuple(dict.fromkeys(written)), removed=removed, kept=kept
    )


def _remove(
    bucket: Bucket, claim: Claim, removing: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the keys of removed objects, and key -> reason of those not removed.

    Args:
        removing: key -> sha256 of the objects.
    """
    removed: list[str] = []
    kept: dict[str, str] = {}
    for key, sha256 in removing.items():
        claim.confirm()
        try:
            if bucket.delete(key, sha256=sha256):
                removed.append(key)
        except BucketError as error:  # the promoter may remove no pages
            kept[key] = f"it cannot be removed: {error.message}"
    return tuple(removed), kept


def _leftovers(
    bucket: Bucket, released: ReleasedIndex
) -> tuple[dict[str, str], dict[str, str]]:
    """Return key -> sha256 of the objects to remove, and key -> reason of others.

    Only promotions write to the folders of an index, so everything there that the ledger
    does not name was left by a promotion or a sweep, or is foreign.
    """
    inventory = read_inventory(read_ledger(bucket, released))
    removing: dict[str, str] = {}
    kept: dict[str, str] = {}
    for key in inventory.unnamed(bucket, released):
        if key in inventory.kept:
            continue
        if not key.startswith(released.folders):
            kept[key] = "it is no file of an index; remove it by hand"
            continue
        try:
            info = bucket.head(key)
        except BucketError:  # such as a symbolic link
            kept[key] = "it cannot be read; remove it by hand"
            continue
        if info is not None:
            removing[key] = info.sha256
    return removing, kept
