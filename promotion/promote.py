"""Promotion: make a staged set that satisfies its policy visible to users, with unchanged bytes.

The order of writes keeps the index consistent at every instant, also after a crash:
files first, then the ledger entry, then pages, dependencies before dependents. Every
step is idempotent.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain

from core.digests import sha256_of
from core.errors import BucketError, BusyError, PromotionBlockedError
from core.frozen import frozen
from core.model import SHA256SUMS, WHEELS_JSON, Progress, Verdict, WheelSet
from core.number_ranges import NumberRanges
from core.report import NoProgress
from core.wheels_json import dump_wheel_set
from core.wheelset import sha256sums
from promotion.check import check, metadata_of, raise_if_blocked
from promotion.evidence.attestation_verification import Verify
from promotion.evidence.attestations import provenance_name
from promotion.evidence.signing import Signer
from promotion.index.authority import PolicySource
from promotion.index.claim import Claim, claimed
from promotion.index.ledger import Entries, Head, LedgerEntry, PromotedSet, channel_of
from promotion.index.ledger_state import EntryKind
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.operations import Change, Clock, Draft, change_ledger, utc_now
from promotion.index.pages import install_requirements, metadata_name
from promotion.index.publish import publish, read_head
from promotion.index.rocm_packages import extras_of, rocm_index, with_extra
from promotion.index.set_lookup import entries_of_set
from promotion.policy.promotion_policy import Policy
from promotion.set_report import report_files
from promotion.stage import raise_if_any, read_staged, stored_problems
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import ReleasedIndex, StagedSet


@frozen
class Promotion:
    """The result of a promotion.

    Attributes:
        entry: the set's entry in the ledger.
        new: whether this call promoted the set. A visible set is not promoted again.
        simple: key of the index's folder, for pip's `--extra-index-url`.
        pages: keys of the written pages.
        warnings: warnings of the policy. Empty for a set that was promoted before.
    """

    wheel_set: WheelSet
    entry: LedgerEntry
    new: bool
    simple: str
    pages: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def promoted(self) -> PromotedSet:
        """The set in the ledger."""
        assert self.entry.promoted is not None
        return self.entry.promoted

    @property
    def exceptions(self) -> tuple[str, ...]:
        """The exceptions that the promotion used, each with what it excused."""
        return tuple(self.promoted.policy.get("exceptions", ()))

    @property
    def attested(self) -> Mapping[str, Sequence[str]]:
        """Signer -> file names of the wheels attested by the time of the promotion."""
        signers: Mapping[str, Sequence[str]] = self.promoted.policy.get("attested", {})
        return signers


def promote(
    bucket: Bucket,
    staged: StagedSet,
    policy: Policy,
    *,
    actor: str = "",
    progress: Progress | None = None,
    now: Clock = utc_now,
    verify: Verify | None = None,
    allow_lower: bool = False,
    signer: Signer | None = None,
    source: PolicySource | None = None,
) -> Promotion:
    """Promote a staged set to its released index.

    Args:
        actor: name of the person or job that promotes the set, for the ledger.
        verify: verifier of attestations. The default uses Sigstore's public instance.
        allow_lower: promote also a version that pip would not select, or one for an
            older ROCm.
        signer: signer of the ledger entry.
        source: checkout of the policy. None means unknown.

    Raises:
        BucketError: the ledger is damaged or was cut, or has an entry that no key of
            the policy signed; or the stored evidence changed after it was judged.
        RequestError: the policy requires a signed entry, and does not list the key of
            the signer.
        BusyError: another promotion or a repair of the index is running.
        PromotionBlockedError: the policy is not satisfied, the staged bytes differ from
            the set, or the index uses the name of a wheel for other bytes. The message
            lists every reason. The index is unchanged.
    """
    released = ReleasedIndex(index=staged.index)
    wheel_set = read_staged(bucket, staged)
    source = source or PolicySource()
    report = progress or NoProgress()
    authority = policy.authority(signer, source, actor)
    head, entries = read_head(bucket, released, authority)
    _refuse(wheel_set, policy, head, entries)
    entry = _offered(staged.digest, head, entries, head.state.offered)
    new = False
    warnings: tuple[str, ...] = ()
    if entry is None:
        report.step("check evidence and stored bytes")
        verdict = check(
            bucket,
            staged,
            policy,
            now=now,
            verify=verify,
            allow_lower=allow_lower,
            source=source,
        )
        warnings = verdict.warnings
        promoted, made = _promoted(bucket, staged, wheel_set, policy, verdict)
        authority.check_signer(now())
        report.step(f"copy {len(promoted.wheels)} wheels to {released.root}")
        with claimed(bucket, released, "promotion", now=now) as claim:
            _copy_set(bucket, staged, promoted, claim, made)
            draft = _draft(wheel_set, policy, head, claim, promoted)
            change = change_ledger(
                bucket, released, draft, now=now, authority=authority
            )
        assert change.entry is not None
        entry = change.entry
        new = change.new
    report.step(f"write the pages of {released.simple}")
    written = publish(bucket, released, authority=authority)
    return Promotion(
        wheel_set=wheel_set,
        entry=entry,
        new=new,
        simple=released.simple,
        pages=written,
        warnings=warnings,
    )


def install_line(
    wheel_set: WheelSet, place: str, option: str = "--extra-index-url"
) -> str:
    """Return the command that installs a set, with the ROCm of its first GPU if it has wheels.

    Args:
        place: URL of the set's simple index, or its folder.
        option: option of pip for the place.
    """
    extras = [*extras_of(wheel_set.wheels)]
    words = ["pip", "install", option, place]
    if url := rocm_index(wheel_set.rocm_version, extras, wheel_set.rocm_packages):
        words += ["--extra-index-url", url]
    needs = install_requirements(wheel_set.wheels, wheel_set.pins)
    return shlex.join((*words, *with_extra(needs, extras[0] if extras else "")))


def _offered(
    digest: str, head: Head, entries: Entries, numbers: NumberRanges
) -> LedgerEntry | None:
    """Return the newest entry among `numbers` that promoted the set, or None."""
    if entries.bucket.head(entries.released.set_file(digest, WHEELS_JSON)) is None:
        return None
    found = entries_of_set(digest, head.state, entries)
    return next((entries.at(number) for number in found if number in numbers), None)


def promotion_of(bucket: Bucket, staged: StagedSet) -> tuple[LedgerEntry, bool] | None:
    """Return the newest promotion of a held set, and whether users see the set."""
    head, entries = read_head(bucket, ReleasedIndex(index=staged.index))
    found = _offered(staged.digest, head, entries, head.state.held)
    return None if found is None else (found, found.number in head.state.visible)


def _promoted(
    bucket: Bucket,
    staged: StagedSet,
    wheel_set: WheelSet,
    policy: Policy,
    verdict: Verdict,
) -> tuple[PromotedSet, Mapping[str, bytes]]:
    """Return the ledger's record of the set, and the files that the promotion writes beside it.

    Raises:
        PromotionBlockedError: the verdict blocks the promotion.
    """
    raise_if_blocked(staged, verdict)
    digests = {
        **wheel_set.files,
        SHA256SUMS: sha256_of(sha256sums(wheel_set)),
        WHEELS_JSON: sha256_of(dump_wheel_set(wheel_set).encode()),
    }
    # Evidence that arrived or was replaced after the verdict did not count, and whoever
    # may store evidence may store other files beside it, such as pages.
    for key, sha256 in verdict.evidence.items():
        digests[key.removeprefix(staged.root)] = sha256
    facts = {
        "channel": policy.channel,
        "sha256": policy.sha256,
        "stale_days": policy.stale_days,
        "failing": dict(verdict.failing),
        "tested": dict(verdict.tested),
        "exceptions": list(verdict.excused),
        "attested": {who: list(names) for who, names in verdict.attested.items()},
    }
    record = {name: value for name, value in facts.items() if value}
    made = report_files(
        bucket, staged, wheel_set, verdict.tiers, record, verdict.evidence
    )
    promoted = PromotedSet(
        set_digest=staged.digest,
        rocm_version=wheel_set.rocm_version,
        jax_version=wheel_set.jax_version,
        python_versions=wheel_set.python_versions,
        tiers=verdict.tiers,
        policy=record,
        wheels=map_concurrently(
            lambda wheel: LedgerWheel.of(
                wheel,
                metadata_sha256=sha256_of(metadata_of(bucket, staged, wheel)),
                provenance=verdict.provenances.get(wheel.filename, ""),
            ),
            wheel_set.wheels,
        ),
        files={**digests, **{name: sha256_of(data) for name, data in made.items()}},
        rocm_packages=wheel_set.rocm_packages,
    )
    return promoted, made


def _copy_set(
    bucket: Bucket,
    staged: StagedSet,
    promoted: PromotedSet,
    claim: Claim,
    made: Mapping[str, bytes],
) -> None:
    """Copy the files of a set to the released index and verify the copies.

    Args:
        claim: claim of the index, which is confirmed before each copy.
        made: name -> content of the files of the set that are not in staging: this
            promotion made them.

    Raises:
        BucketError: a file is missing from staging or has other bytes, or the index has
            other bytes.
        BusyError: another process took the claim.
    """
    released = ReleasedIndex(index=staged.index)
    copies: dict[str, tuple[str, str]] = {}
    for wheel in promoted.wheels:
        source = staged.file(wheel.filename)
        target = released.wheel(wheel.project, wheel.filename)
        copies[target] = source, wheel.sha256
        copies[metadata_name(target)] = metadata_name(source), wheel.metadata_sha256
        if wheel.provenance and bucket.head(provenance_name(target)) is None:
            copies[provenance_name(target)] = provenance_name(source), wheel.provenance
    written = {
        released.set_file(promoted.set_digest, name): data
        for name, data in made.items()
    }
    for name, sha256 in promoted.files.items():
        copies[released.set_file(promoted.set_digest, name)] = staged.file(name), sha256

    def copy(target: str) -> bool:
        claim.confirm()
        source, sha256 = copies[target]
        if target in written:
            return bucket.put_if_absent(target, written[target], sha256=sha256)
        return bucket.copy(source, target, sha256=sha256)

    map_concurrently(copy, copies)
    arrived = {target: sha256 for target, (_, sha256) in copies.items()}
    claim.confirm()
    raise_if_any(stored_problems(bucket, str, arrived), BucketError)


def _draft(
    wheel_set: WheelSet,
    policy: Policy,
    before: Head,
    claim: Claim,
    promoted: PromotedSet,
) -> Draft:
    """Return the function that checks new entries and drafts a promotion's entry."""

    def draft(head: Head, entries: Entries) -> Change:
        claim.renew()
        _refuse(wheel_set, policy, head, entries)
        for later in map(entries.at, range(before.number + 1, head.number + 1)):
            # After the checks, and before this promotion took the claim.
            if later.kind in (EntryKind.PROMOTE, EntryKind.SWEEP, EntryKind.REPAIR):
                index = entries.released.index
                text = f"Another {later.kind} changed {index} during the promotion."
                raise BusyError(text, hint="Run the command again.")
        sets = (head.number + 1,)
        return Change(kind=EntryKind.PROMOTE, sets=sets, promoted=promoted)

    return draft


def _is_shared(wheel: LedgerWheel) -> bool:
    """Return whether another project published a wheel: it has no local version."""
    return wheel.as_published and "+" not in wheel.version


def _refuse(wheel_set: WheelSet, policy: Policy, head: Head, entries: Entries) -> None:
    """Raise if the index is of another channel, or the set or a wheel of it was withdrawn.

    The bytes of a yanked or quarantined set stay withdrawn in every set until an entry
    lifts the mark. Wheels that another project published, and those that a visible set
    offers, are not withdrawn.
    """
    index = entries.released.index
    channel = channel_of(head, entries)
    if channel not in ("", policy.channel):
        raise PromotionBlockedError(
            f"The index {index} belongs to channel {channel}, not {policy.channel}.",
            hint=f"Give --channel={channel} or another bucket.",
        )
    state = head.state
    marks = {**state.yanked, **state.quarantined}
    marked = entries.sets(sorted({*marks} & {*state.held}))
    own = {wheel.sha256: wheel.filename for wheel in wheel_set.wheels}
    shown = entries.sets(state.visible.without(state.yanked)) if marked else {}
    offers = chain.from_iterable(one.wheels for one in shown.values())
    offered = {wheel.sha256 for wheel in offers}
    for number, promoted in marked.items():
        withdrawn = [
            wheel
            for wheel in promoted.wheels
            if wheel.sha256 in own.keys() - offered and not _is_shared(wheel)
        ]
        if promoted.set_digest == wheel_set.digest:
            # A yanked set that is still offered needs no new entry.
            if number in state.visible:
                continue
        elif not withdrawn:
            continue
        verb = "quarantine" if number in state.quarantined else "yank"
        names = ", ".join(own[wheel.sha256] for wheel in withdrawn) or "The set"
        raise PromotionBlockedError(
            f"{names} of ledger entry {number} was withdrawn by `index {verb}`:"
            f" {marks[number]}.",
            hint=(
                f"Run `ci_build index {verb} {index}/{number} --undo` first to"
                " promote it anyway."
            ),
        )
