"""`verify`: recompute the states, digests and pages of an index, and report differences without any change."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from core.errors import BucketError, RequestError
from core.model import Progress
from promotion.evidence.attestation_verification import Verify, lazy_verifier
from promotion.index.authority import ANYONE, Authority
from promotion.index.checkpoint_audit import CheckpointAudit
from promotion.index.ledger import Head, LedgerEntry, PromotedSet, read_ledger
from promotion.index.ledger_state import EMPTY_STATE, Change, EntryKind, IndexState, apply_change
from promotion.index.page_diff import all_page_updates
from promotion.index.pages import older_json_page, project_pair, root_pair
from promotion.index.publish import check_not_cut, newest_shown, read_snapshot
from promotion.index.reader import Snapshot
from promotion.index.status import MAX_ROWS, overview_page, set_row
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import PROVENANCE_SUFFIX, TOMBSTONE_SUFFIX, ReleasedIndex


def verify(
    bucket: Bucket,
    released: ReleasedIndex,
    progress: Progress | None = None,
    *,
    read: bool = False,
    verify_attestations: Verify | None = None,
    authority: Authority = ANYONE,
    checkpoints: CheckpointAudit | None = None,
    tier_problems: Callable[[LedgerEntry], Iterable[str]] = lambda _: (),
) -> Iterator[str]:
    """Yield a sentence for each problem of the ledger, tiers, files of sets, attestations, pages and foreign objects.

    The ledger is checked first. Everything else is compared with the ledger, so a damaged ledger ends the check.

    Args:
        progress: receiver of the number of checked objects.
        verify_attestations: verifier of attestations. The default uses Sigstore's public instance.
        authority: accepted signatures of ledger entries, and the channel of the index.
        read: download and hash every file, even where the store reports a trusted checksum.
        checkpoints: comparison with checkpoints. The default reads the published one.
        tier_problems: check of the tiers of a held set, see `policy.recorded_tiers`.

    Raises:
        RequestError: the bucket does not have the index, or a kept checkpoint is not signed by an accepted key.
    """
    checkpoints = checkpoints or CheckpointAudit(bucket, released, authority)
    try:
        ledger = read_ledger(bucket, released)
    except BucketError as error:
        yield error.message
        return
    entries, head = ledger.entries, ledger.head
    yield from _states(released, entries)
    yield from authority.problems(released, entries)
    yield from _policies(released, entries, authority.channel)
    contradicted = [*checkpoints.problems(ledger)]
    yield from contradicted
    if not entries:
        count = sum(1 for _ in bucket.list(released.root))
        if not count:
            if contradicted:
                return
            raise RequestError(f"The bucket has no index {released.index}.", hint="Promote a set to it first.")
        yield f"{released.ledger} is empty, but the index has {count} objects: the ledger was lost or never written."
        return
    try:
        check_not_cut(released, Head(number=len(entries)), newest_shown(bucket, released))
    except BucketError as error:
        yield error.message
    state = entries[-1].state
    promoted = {entry.number: entry.promoted for entry in entries if entry.promoted is not None}
    expected: dict[str, str] = {}
    for one in (promoted[number] for number in state.held):
        expected |= {released.set_file(one.set_digest, name): sha256 for name, sha256 in one.files.items()}
        for wheel in one.wheels:
            expected |= wheel.objects(released)
    for done, (key, sha256) in enumerate(sorted(expected.items()), start=1):
        if progress is not None:
            progress.advance(done, len(expected))
        yield from _object(bucket, key, [sha256], read=read)
    for number in state.held:
        yield from tier_problems(entries[number - 1])
    held = [promoted[number] for number in state.held]
    yield from _attestations(bucket, released, held, verify_attestations or lazy_verifier())
    snapshot = read_snapshot(bucket, released)
    if (snapshot.number, snapshot.ledger_sha256) != (len(entries), head):
        yield f"{released.status} was written from entry {snapshot.number} of {len(entries)}: publish the index."
    pages = _pages(released, snapshot, entries, state)
    for key, accepted in pages.items():
        yield from _object(bucket, key, accepted, read=read)
    swept = {key for entry in entries if entry.kind is EntryKind.SWEEP for key in entry.removed}
    tombstones = {key + TOMBSTONE_SUFFIX for key in swept if key.endswith(".whl")}
    unremoved = swept - expected.keys()
    # A sweep keeps wheels that another project published, since other sets may contain them too.
    published = (wheel for one in promoted.values() for wheel in one.wheels if wheel.as_published)
    shared = {key: sha256 for wheel in published for key, sha256 in wheel.objects(released).items()}
    expected_keys = {*expected, *pages, *tombstones, released.status, released.checkpoint}
    for key in bucket.list(released.root):
        if key.startswith(released.ledger) or key in expected_keys:
            continue
        if key in shared:
            yield from _object(bucket, key, [shared[key]], read=read)
        elif key in unremoved:
            yield f"{key} was not removed by an interrupted sweep: run `ci_build retention --apply`."
        else:
            yield f"{key} does not belong to a set of this index: it is foreign, or a promotion was interrupted."
    for key in sorted(tombstones):
        if bucket.head(key) is None:
            yield f"{key} is missing, so the name of a removed wheel could be used again."


def _policies(released: ReleasedIndex, entries: Sequence[LedgerEntry], channel: str) -> Iterator[str]:
    """Yield a sentence for each entry of another channel, and for each promotion whose policy has another text."""
    for entry in entries:
        key, policy = released.ledger_entry(entry.number), entry.promoted.policy if entry.promoted else {}
        own = entry.channel or policy.get("channel", "")
        if channel and own not in ("", channel):
            yield f"{key} belongs to channel {own}, not {channel}."
        if entry.policy and policy and sha256_of(entry.policy.encode()) != policy["sha256"]:
            yield f"{key} contains another policy than the one that it names: {policy['sha256']}."


def _object(bucket: Bucket, key: str, accepted: Sequence[str], *, read: bool) -> Iterator[str]:
    info = bucket.head(key)
    if info is None:
        yield f"{key} is missing."
    elif info.sha256 not in accepted:
        yield f"{key} has sha256 {info.sha256}; {accepted[0]} was expected."
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


def _attestations(
    bucket: Bucket, released: ReleasedIndex, held: Sequence[PromotedSet], verify: Verify
) -> Iterator[str]:
    """Yield a sentence for each attestation that is invalid or differs from the ledger."""
    signers: dict[str, set[str]] = {}
    for promoted in held:
        for who, names in promoted.policy.get("attested", {}).items():
            for name in names:
                signers.setdefault(name, set()).add(who)
    wheels = {wheel.filename: wheel for promoted in held for wheel in promoted.wheels if wheel.provenance}
    for name, wheel in sorted(wheels.items()):
        file = bucket.read(released.wheel(wheel.project, name) + PROVENANCE_SUFFIX)
        if file is None:
            continue  # reported as a missing object
        report = verify(file[0], name, wheel.sha256)
        yield from report.problems
        for signer in report.signers:
            if str(signer) not in signers.get(name, {str(signer)}):
                yield f"{name} was attested by {signer}; the ledger names {', '.join(sorted(signers[name]))}."


def _states(released: ReleasedIndex, entries: Sequence[LedgerEntry]) -> Iterator[str]:
    """Compute the state after each entry from the state before it, and yield a sentence for each difference."""
    state, states = EMPTY_STATE, {0: EMPTY_STATE}
    for entry in entries:
        change = Change(
            kind=entry.kind,
            number=entry.number,
            sets=entry.sets,
            reason=entry.reason,
            earlier=states.get(entry.to) if entry.kind is EntryKind.ROLLBACK else None,
            to=entry.to,
        )
        try:
            state = apply_change(state, change)
        except (RequestError, AssertionError) as error:
            yield f"{released.ledger_entry(entry.number)} contradicts the entries before it: {error}"
        if entry.state != state:
            yield f"{released.ledger_entry(entry.number)} records another state than the entries up to it produce."
            state = entry.state
        states[entry.number] = state


def _pages(
    released: ReleasedIndex, snapshot: Snapshot, entries: Sequence[LedgerEntry], state: IndexState
) -> Mapping[str, Sequence[str]]:
    """Return key -> accepted sha256 of every page, rendered from the ledger alone by this and older versions."""
    by_number = {entry.number: entry for entry in entries}
    updates = [*all_page_updates(released, state, snapshot.pages, by_number.__getitem__)]
    pages = [
        page for update in updates for page in project_pair(released.simple, update.project, update.files.values())
    ]
    digests = {page.key: [sha256_of(page.data)] for page in pages}
    for page in pages:
        if page.key.endswith(".json"):
            digests[page.key].append(sha256_of(older_json_page(page.data)))
    root = root_pair(released.simple, [update.project for update in updates])
    digests |= {page.key: [sha256_of(page.data)] for page in root}
    rows = [set_row(by_number[number], state) for number in sorted(state.visible, reverse=True)[:MAX_ROWS]]
    digests[released.overview] = [sha256_of(overview_page(released, rows, entries[-1]))]
    return digests
