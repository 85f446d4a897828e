"""Compare a promotion in the ledger with its evidence and the policy of its time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta

from core.errors import CiBuildError
from core.model import WHEELS_JSON, Verdict, WheelSet
from core.wheels_json import load_wheel_set
from promotion.evidence.evidence import EvidenceFile, read_files, time_of
from promotion.index.ledger import LedgerEntry, PromotedSet
from promotion.index.page_diff import tier_rank, weakest
from promotion.policy.promotion_policy import Policy, with_recorded_rules
from promotion.policy.tier_requirements import EvidenceCase, has_accepted_key
from promotion.policy.verdict import judge_evidence
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import EVIDENCE_FOLDER, ReleasedIndex

_LONGEST_PROMOTION_DAYS = 1
"""Accepted time between the check of evidence and exceptions, and the entry."""


def promotion_problems(
    bucket: Bucket, released: ReleasedIndex, entry: LedgerEntry, policy: Policy
) -> Iterator[str]:
    """Yield a sentence for each contradiction between a promotion and its evidence.

    The policy in the entry must accept the evidence at the time of the entry. Evidence
    counts if both this policy and the reader's policy accept its key.

    Args:
        policy: the reader's policy for the channel of the index.
    """
    promoted = entry.promoted
    key = released.ledger_entry(entry.number)
    if promoted is None:
        return
    try:
        wheel_set = _wheel_set(bucket, released, promoted)
        files = _evidence(bucket, released, promoted)
        judged = _judged(entry, released, wheel_set, files, policy)
    except (CiBuildError, ValueError) as error:
        yield (
            f"The verdict of {key} cannot be recomputed:"
            f" {getattr(error, 'message', error)}"
        )
        return
    rejected = _rejected(files, policy)
    reasons = [one.blocked_by for one in judged]
    if all(reasons):
        more = f" (and {len(reasons[-1]) - 1} more)" if len(reasons[-1]) > 1 else ""
        yield (
            f"{key} promotes a set that its policy blocks: {reasons[-1][0]}{more}{rejected}"
        )
    if set(promoted.tiers) != set(wheel_set.targets):
        yield (
            f"{key} records tiers of {', '.join(promoted.tiers)}; the set is for"
            f" {', '.join(wheel_set.targets)}."
        )
    for target, tier in promoted.tiers.items():
        given = {one.tiers.get(target, "none") for one in judged}
        if tier not in given:
            strongest = sorted(given, key=tier_rank)[-1]
            yield (
                f"{key} records tier {tier} for {target}; its evidence gives"
                f" {strongest}{rejected}."
            )
    if promoted.tier != weakest(promoted.tiers):
        yield (
            f"{key} records tier {promoted.tier} for the set; its weakest target has"
            f" {weakest(promoted.tiers)}."
        )


def _wheel_set(
    bucket: Bucket, released: ReleasedIndex, promoted: PromotedSet
) -> WheelSet:
    key = released.set_file(promoted.set_digest, WHEELS_JSON)
    wheel_set = load_wheel_set(bucket.get(key), key)
    if (wheel_set.index, wheel_set.digest) != (released.index, promoted.set_digest):
        raise ValueError(
            f"{key} belongs to another set: {wheel_set.index}/{wheel_set.digest}."
        )
    return wheel_set


def _evidence(
    bucket: Bucket, released: ReleasedIndex, promoted: PromotedSet
) -> Collection[EvidenceFile]:
    """Return the evidence that the entry names."""
    names = (name for name in promoted.files if name.startswith(f"{EVIDENCE_FOLDER}/"))
    return read_files(
        bucket, (released.set_file(promoted.set_digest, name) for name in names)
    ).values()


def _judged(
    entry: LedgerEntry,
    released: ReleasedIndex,
    wheel_set: WheelSet,
    files: Collection[EvidenceFile],
    policy: Policy,
) -> tuple[Verdict, ...]:
    """Return the verdicts that a promotion may have had."""
    accepted = [file for file in files if has_accepted_key(file, policy)]
    recorded = with_recorded_rules(policy, released.index, entry.policy)
    now = time_of(entry.time)
    if now is None:
        raise ValueError(f"its time is invalid: {entry.time!r}.")
    return tuple(
        judge_evidence(
            EvidenceCase(wheel_set=wheel_set, files=accepted, policy=one, now=now)
        )
        for one in (recorded, _at_check(recorded))
    )


def _at_check(policy: Policy) -> Policy:
    """Return a policy that accepts what expired between the check and the entry."""
    days = timedelta(days=_LONGEST_PROMOTION_DAYS)
    return replace(
        policy,
        max_age_days=policy.max_age_days
        and policy.max_age_days + _LONGEST_PROMOTION_DAYS,
        excepted=tuple(
            replace(entry, expires=entry.expires + days) for entry in policy.excepted
        ),
    )


def _rejected(files: Collection[EvidenceFile], policy: Policy) -> str:
    """Return why the reader's policy does not accept some evidence, as part of a sentence.

    Empty if it accepts all.
    """
    reasons = {
        file.flaw.rstrip(".")
        or (f"it is signed with {file.key}" if file.key else "it is unsigned")
        for file in files
        if not has_accepted_key(file, policy)
    }
    return (
        f" (evidence that channel {policy.channel} does not accept:"
        f" {'; '.join(sorted(reasons))})"
        if reasons
        else ""
    )
