"""Compare a promotion in the ledger with its evidence and the policy of its time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import chain

from core.errors import CiBuildError
from core.model import WHEELS_JSON, Verdict, WheelSet
from core.wheels_json import load_wheel_set
from promotion.evidence.evidence import EvidenceFile, read_files, time_of
from promotion.index.ledger import LedgerEntry, PromotedSet
from promotion.index.ledger_wheel import LedgerWheel
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
        files = recorded_evidence(bucket, released, promoted)
        recorded = with_recorded_rules(policy, released.index, entry.policy)
        at_entry, at_check = _judged(entry, wheel_set, files, policy, recorded)
    except (CiBuildError, ValueError, OverflowError) as error:
        yield (
            f"The verdict of {key} cannot be recomputed:"
            f" {getattr(error, 'message', error)}"
        )
        return
    if not _describes(promoted, wheel_set, recorded):
        yield f"{key} describes its set otherwise than {WHEELS_JSON} and its policy."
    rejected = _rejected(files, policy)
    if at_entry.blocked_by and at_check.blocked_by:
        first, *others = at_check.blocked_by
        more = f" (and {len(others)} more)" if others else ""
        yield f"{key} promotes a set that its policy blocks: {first}{more}{rejected}"
    if at_entry.excused and at_check.excused and not promoted.policy.get("exceptions"):
        yield f"{key} records no exceptions; its policy needed some."
    for target, tier in at_check.tiers.items():
        stated = promoted.tiers.get(target, "none")
        if stated not in (tier, at_entry.tiers[target]):
            yield (
                f"{key} records tier {stated} for {target}; its evidence gives"
                f" {tier}{rejected}."
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


def _describes(promoted: PromotedSet, wheel_set: WheelSet, policy: Policy) -> bool:
    """Return whether an entry repeats the facts of its set and its policy.

    Args:
        policy: the policy in the entry.
    """
    rows = {wheel.filename: wheel for wheel in promoted.wheels}
    wheels = []
    for wheel in wheel_set.wheels:
        row = rows.get(wheel.filename)
        metadata = row.metadata_sha256 if row else ""
        provenance = row.provenance if row else ""
        wheels.append(
            LedgerWheel.of(wheel, metadata_sha256=metadata, provenance=provenance)
        )
    repeated = replace(
        promoted,
        wheels=tuple(wheels),
        files={**promoted.files, **wheel_set.files},
        rocm_packages=wheel_set.rocm_packages,
        rocm_version=wheel_set.rocm_version,
        jax_version=wheel_set.jax_version,
        python_versions=wheel_set.python_versions,
    )
    proven = {wheel.filename for wheel in wheels if wheel.provenance}
    attested = promoted.policy.get("attested", {}).values()
    return (
        repeated == promoted
        and promoted.tiers.keys() == {*wheel_set.targets}
        and proven.issuperset(chain.from_iterable(attested))
        and promoted.policy.get("stale_days") == policy.stale_days
    )


def recorded_evidence(
    bucket: Bucket, released: ReleasedIndex, promoted: PromotedSet
) -> Collection[EvidenceFile]:
    """Return the evidence with which a set was promoted, as its entry names it."""
    names = (name for name in promoted.files if name.startswith(f"{EVIDENCE_FOLDER}/"))
    return read_files(
        bucket, (released.set_file(promoted.set_digest, name) for name in names)
    ).values()


def _judged(
    entry: LedgerEntry,
    wheel_set: WheelSet,
    files: Collection[EvidenceFile],
    policy: Policy,
    recorded: Policy,
) -> tuple[Verdict, Verdict]:
    """Return the verdicts of the policy in an entry at its time, and a day before."""
    now = time_of(entry.time)
    if now is None:
        raise ValueError(f"its time is invalid: {entry.time!r}.")
    accepted = [file for file in files if has_accepted_key(file, policy)]
    case = EvidenceCase(wheel_set=wheel_set, files=accepted, policy=recorded, now=now)
    earlier = replace(case, policy=_at_check(recorded))
    return judge_evidence(case), judge_evidence(earlier)


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
