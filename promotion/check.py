"""Check whether a staged set may be promoted.

The verdict of the policy, and whether the stored bytes match the set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import chain

from core.digests import sha256_of
from core.errors import PromotionBlockedError
from core.model import SHA256SUMS, Verdict, Wheel, WheelSet
from core.wheelset import sha256sums
from promotion.evidence.attestation_verification import Verify, lazy_verifier
from promotion.evidence.attestations import AttestationReport, provenance_name
from promotion.evidence.evidence import EvidenceFile, files_beside, read_all
from promotion.index.authority import PolicySource
from promotion.index.core_metadata import core_metadata, disagreements
from promotion.index.ledger import Entries, Head
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import Clock, utc_now
from promotion.index.pages import metadata_name
from promotion.index.publish import read_head
from promotion.index.rocm_packages import package_problems
from promotion.policy.content_rules import conflicts, content_problems
from promotion.policy.promotion_policy import Policy
from promotion.policy.set_rules import Offer
from promotion.policy.tier_requirements import EvidenceCase
from promotion.policy.verdict import verdict
from promotion.stage import read_staged, stored_problems
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import (
    PROVENANCE_SUFFIX,
    ReleasedIndex,
    StagedSet,
)

ALLOW_UNPROTECTED = "Give --allow-unprotected OWNER REASON to promote once from there."
NEVER_UNPROTECTED = "The channel accepts no --allow-unprotected."
NEW_NAME = (
    "file names are never reused: build with --wheel-post-release, or for jax_aiter"
    " with another version in kernels/payload/jax_aiter/version.py."
)


def check(
    bucket: Bucket,
    staged: StagedSet,
    policy: Policy,
    *,
    now: Clock = utc_now,
    verify: Verify | None = None,
    allow_lower: bool = False,
    source: PolicySource | None = None,
) -> Verdict:
    """Return the policy's verdict on a staged set from its evidence and stored bytes.

    Nothing is changed.

    Args:
        verify: verifier of attestations. The default uses Sigstore's public instance.
        allow_lower: see `verdict`.
        source: checkout of the policy. None leaves it unchecked.
    """
    released = ReleasedIndex(index=staged.index)
    wheel_set = read_staged(bucket, staged)
    files = tuple(read_all(bucket, staged).values())
    head, entries = read_head(bucket, released, policy.authority())
    time = now()
    case = EvidenceCase(wheel_set=wheel_set, files=files, policy=policy, now=time)
    counted = [file for file in files if not case.refusal(file)]
    attested = verify_attestations(bucket, staged, wheel_set, verify or lazy_verifier())
    provenances = {report.wheel: report.sha256 for report in attested}
    decision = verdict(
        wheel_set,
        files,
        policy,
        now=time,
        offer=_offer(head, entries, wheel_set),
        attested=attested,
        allow_lower=allow_lower,
    )
    warnings = decision.warnings
    refused = []
    if source and (problem := source.problem(policy.protected_refs)):
        if not policy.unprotected:
            refused.append(f"{problem} {NEVER_UNPROTECTED}")
        elif source.owner:
            permitted = f"{problem} {source.owner} permits it: {source.reason}"
            warnings = (*warnings, permitted)
        else:
            refused.append(f"{problem} {ALLOW_UNPROTECTED}")
    reasons = (
        *decision.blocked_by,
        *refused,
        *_log_problems(bucket, staged, counted),
        *_staged_problems(bucket, staged, wheel_set),
        *content_problems(wheel_set),
        *_conflicts(head, entries, wheel_set),
        *package_problems(wheel_set),
        *_rocm_conflicts(head, entries, wheel_set),
    )
    digests: dict[str, str] = {}
    for file in counted:
        digests.update(file.digests)
        for name, sha256 in files_beside(file.evidence).items():
            digests[staged.evidence + name] = sha256
    return dataclasses.replace(
        decision,
        blocked_by=reasons,
        warnings=warnings,
        provenances=provenances,
        evidence=digests,
    )


def _offer(head: Head, entries: Entries, wheel_set: WheelSet) -> Offer:
    """Return what the index offers of the projects of a set."""
    sets = entries.sets(sorted(head.state.visible, reverse=True))
    projects = {wheel.name for wheel in wheel_set.wheels}
    versions: dict[str, set[str]] = {project: set() for project in projects}
    unyanked: dict[str, set[str]] = {project: set() for project in projects}
    for number, promoted in sets.items():
        for wheel in promoted.wheels:
            if wheel.project in projects:
                versions[wheel.project].add(wheel.version)
                if number not in head.state.yanked:
                    unyanked[wheel.project].add(wheel.version)
    yanked = {name: found - unyanked[name] for name, found in versions.items()}
    return Offer(versions=versions, yanked=yanked)


def raise_if_blocked(staged: StagedSet, verdict_: Verdict) -> None:
    """Raise PromotionBlockedError with every blocking reason and ineffective exception."""
    if not verdict_.allowed:
        first = f"Set {staged.digest[:12]} is not promoted to {staged.index}:"
        raise PromotionBlockedError(
            "\n  ".join((first, *verdict_.blocked_by, *verdict_.invalid_exceptions)),
            hint=(
                "\nFix each problem and run the gates again; `ci_build ci policy"
                f" {staged}` prints the commands, and the ways on without a runner."
            ),
        )


def verify_attestations(
    bucket: Bucket, staged: StagedSet, wheel_set: WheelSet, verify: Verify
) -> tuple[AttestationReport, ...]:
    """Verify each wheel's provenance file and the released one of the same wheel.

    Promotion never replaces a released provenance file, so both files count for a wheel
    that other sets share.
    """
    wheels = {wheel.filename: wheel for wheel in wheel_set.wheels}
    released = ReleasedIndex(index=staged.index)
    results = []
    for key in bucket.list(staged.root):
        if not key.endswith(PROVENANCE_SUFFIX):
            continue
        name = key.removeprefix(staged.root).removesuffix(PROVENANCE_SUFFIX)
        if (wheel := wheels.get(name)) is None:
            results.append(AttestationReport(wheel=name))
            continue
        versions = [bucket.get(key)]
        if there := bucket.read(provenance_name(released.wheel(wheel.name, name))):
            versions.append(there[0])
        for data in dict.fromkeys(versions):
            report = verify(data, name, wheel.sha256)
            results.append(dataclasses.replace(report, sha256=sha256_of(data)))
    return tuple(results)


def metadata_of(bucket: Bucket, staged: StagedSet, wheel: Wheel) -> bytes:
    """Return the core metadata of a staged wheel."""
    with bucket.open(staged.file(wheel.filename)) as file:
        return core_metadata(file, wheel.filename)


def _log_problems(
    bucket: Bucket, staged: StagedSet, files: Iterable[EvidenceFile]
) -> Iterator[str]:
    """Yield a sentence for each log or result that differs from its evidence."""
    for logs in {tuple(sorted(files_beside(file.evidence).items())) for file in files}:
        yield from stored_problems(
            bucket, lambda name: staged.evidence + name, dict(logs)
        )


def _staged_problems(
    bucket: Bucket, staged: StagedSet, wheel_set: WheelSet
) -> Iterator[str]:
    """Yield a sentence for each staged file that differs from the set."""
    files_of_set = {**wheel_set.files, SHA256SUMS: sha256_of(sha256sums(wheel_set))}
    yield from stored_problems(bucket, staged.file, files_of_set, wheel_set.file_sizes)
    for found in map_concurrently(
        lambda wheel: tuple(_wheel_problems(bucket, staged, wheel)), wheel_set.wheels
    ):
        yield from found


def _wheel_problems(bucket: Bucket, staged: StagedSet, wheel: Wheel) -> Iterator[str]:
    broken = tuple(
        stored_problems(
            bucket,
            staged.file,
            {wheel.filename: wheel.sha256},
            {wheel.filename: wheel.size},
        )
    )
    yield from broken
    if not broken:
        metadata = metadata_of(bucket, staged, wheel)
        yield from disagreements(metadata, wheel)
        yield from stored_problems(
            bucket, staged.file, {metadata_name(wheel.filename): sha256_of(metadata)}
        )


def _conflicts(head: Head, entries: Entries, wheel_set: WheelSet) -> Iterator[str]:
    """Yield a sentence for each wheel in whose place the index has or had another file.

    The ledger decides, whatever objects the bucket has. All of its entries are verified,
    since a changed old entry could free a name.
    """
    every = entries.history(head)
    sets = [entry.promoted for entry in every if entry.promoted is not None]
    old = [*chain.from_iterable(promoted.wheels for promoted in sets)]
    for problem in conflicts(wheel_set, old):
        yield f"{problem}; {NEW_NAME}"
    sweeps = (entry for entry in every if entry.kind is EntryKind.SWEEP)
    removed = set(chain.from_iterable(entry.removed for entry in sweeps))
    for wheel in wheel_set.wheels:
        if entries.released.wheel(wheel.name, wheel.filename) in removed:
            yield f"{wheel.filename} was released before and removed; {NEW_NAME}"


def _rocm_conflicts(head: Head, entries: Entries, wheel_set: WheelSet) -> Iterator[str]:
    """Yield a sentence for each wheel of ROCm that a held set records with other bytes."""
    if not wheel_set.rocm_packages:
        return
    held = entries.sets(head.state.held).values()
    digests: dict[str, str] = {}
    for package in chain.from_iterable(one.rocm_packages for one in held):
        digests[package.filename] = package.sha256
    for package in wheel_set.rocm_packages:
        known = digests.setdefault(package.filename, package.sha256)
        if known != package.sha256:
            yield (
                f"{package.filename} has sha256 {package.sha256}, and the index lists it"
                f" with {known}; build the set again with its ROCm, or retire the sets"
                " with the other one."
            )
