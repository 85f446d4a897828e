"""Whether a staged set may be promoted: the policy's word, and whether what is stored is what it speaks of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from core.errors import PromotionBlockedError
from core.model import SHA256SUMS, Verdict, Wheel, WheelSet
from promotion.evidence.attestation_verification import Verify, lazy_verifier
from promotion.evidence.attestations import AttestationReport
from promotion.evidence.evidence import EvidenceFile, read_all
from promotion.evidence.provenance import provenance_name
from promotion.index.core_metadata import core_metadata, disagreements
from promotion.index.pages import metadata_name
from promotion.index.visible_versions import visible_state
from promotion.policy.policy import Policy
from promotion.policy.verdict import verdict
from promotion.stage import parse_sums, read_staged, stored_problems
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.concurrency import map_concurrently
from promotion.storage.keys import PROVENANCE_SUFFIX, TOMBSTONE_SUFFIX, ReleasedIndex, StagedSet

NEW_NAME = "a name is never used twice: build with --wheel-post-release."


def check(
    bucket: Bucket,
    staged: StagedSet,
    policy: Policy,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    verify: Verify | None = None,
) -> Verdict:
    """What the policy makes of the evidence, and the bucket of the bytes; changes nothing.

    Args:
        bucket: where it is staged.
        staged: the set.
        policy: what it needs.
        now: the time.
        verify: verifies attestations; against Sigstore's public instance if none is given.
    """
    released = ReleasedIndex(index=staged.index)
    wheel_set = read_staged(bucket, staged)
    said = tuple(read_all(bucket, staged).values())
    seen = visible_state(bucket, released, {wheel.name for wheel in wheel_set.wheels}, staged.digest)
    attested = verify_attestations(bucket, staged, wheel_set, verify or lazy_verifier())
    provenances = {found.wheel: found.sha256 for found in attested}
    word = verdict(wheel_set, said, policy, now=now(), baseline=seen.last, offered=seen.versions, attested=attested)
    reasons = (
        *word.blocked_by,
        *_log_problems(bucket, staged, said),
        *_staged_problems(bucket, staged, wheel_set),
        *_conflicts(bucket, released, wheel_set),
    )
    return dataclasses.replace(word, blocked_by=reasons, provenances=provenances)


def raise_if_blocked(staged: StagedSet, word: Verdict) -> None:
    """Raise PromotionBlockedError that lists every reason, if there is one."""
    if not word.allowed:
        raise PromotionBlockedError(
            "\n  ".join((f"Set {staged.digest[:12]} is not promoted to {staged.index}:", *word.blocked_by)),
            hint="\nMend what each line names, then run the gates again.",
        )


def attested_wheels(bucket: Bucket, staged: StagedSet) -> frozenset[str]:
    """File names of the wheels of which attestations lie beside a staged set."""
    names = (key.removeprefix(staged.root) for key in bucket.list(staged.root))
    return frozenset(name.removesuffix(PROVENANCE_SUFFIX) for name in names if name.endswith(PROVENANCE_SUFFIX))


def verify_attestations(
    bucket: Bucket, staged: StagedSet, wheel_set: WheelSet, verify: Verify
) -> tuple[AttestationReport, ...]:
    """What is to be said of each provenance file beside a set, and of those that its index offers in their place.

    A wheel that several sets share keeps the file that came first; so that one has to be good as well, and comes last.
    """
    wheels = {wheel.filename: wheel for wheel in wheel_set.wheels}
    released, found = ReleasedIndex(index=staged.index), []
    for name in sorted(attested_wheels(bucket, staged)):
        if (wheel := wheels.get(name)) is None:
            found.append(AttestationReport(wheel=name))
            continue
        files = [bucket.get(staged.file(provenance_name(name)))]
        if there := bucket.read(provenance_name(released.wheel(wheel.name, name))):
            files.append(there[0])
        said = ((data, verify(data, name, wheel.sha256)) for data in dict.fromkeys(files))
        found += [dataclasses.replace(word, sha256=sha256_of(data)) for data, word in said]
    return tuple(found)


def metadata_of(bucket: Bucket, staged: StagedSet, wheel: Wheel) -> bytes:
    """The core metadata inside a staged wheel."""
    with bucket.open(staged.file(wheel.filename)) as file:
        return core_metadata(file, wheel.filename)


def set_files(bucket: Bucket, staged: StagedSet, wheel_set: WheelSet) -> Mapping[str, str]:
    """The set's files other than wheels, as its SHA256SUMS lists them: name -> sha256."""
    if bucket.head(staged.file(SHA256SUMS)) is None:
        return {}
    wheels = {wheel.filename for wheel in wheel_set.wheels}
    sums = parse_sums(bucket.get(staged.file(SHA256SUMS)))
    return {name: sha256 for name, sha256 in sums.items() if name not in wheels}


def _log_problems(bucket: Bucket, staged: StagedSet, said: Iterable[EvidenceFile]) -> Iterator[str]:
    """Sentences on logs that are not those that evidence speaks of."""
    for logs in {tuple(sorted(statement.evidence.logs.items())) for statement in said}:
        yield from stored_problems(bucket, lambda name: staged.evidence + name, dict(logs))


def _staged_problems(bucket: Bucket, staged: StagedSet, wheel_set: WheelSet) -> Iterator[str]:
    """Sentences on staged files that are not what the set says."""
    yield from stored_problems(bucket, staged.file, set_files(bucket, staged, wheel_set))
    for found in map_concurrently(lambda wheel: tuple(_wheel_problems(bucket, staged, wheel)), wheel_set.wheels):
        yield from found


def _wheel_problems(bucket: Bucket, staged: StagedSet, wheel: Wheel) -> Iterator[str]:
    broken = tuple(stored_problems(bucket, staged.file, {wheel.filename: wheel.sha256}))
    yield from broken
    if not broken:
        metadata = metadata_of(bucket, staged, wheel)
        yield from disagreements(metadata, wheel)
        yield from stored_problems(bucket, staged.file, {metadata_name(wheel.filename): sha256_of(metadata)})


def _conflicts(bucket: Bucket, released: ReleasedIndex, wheel_set: WheelSet) -> Iterator[str]:
    """Sentences on names that the index already uses for other bytes, or used once."""
    keys = [released.wheel(wheel.name, wheel.filename) for wheel in wheel_set.wheels]
    for wheel, key, stored in zip(wheel_set.wheels, keys, map_concurrently(bucket.head, keys), strict=True):
        if stored is not None and stored.sha256 != wheel.sha256:
            yield f"{wheel.filename} is released already with other bytes, sha256 {stored.sha256}; {NEW_NAME}"
        elif stored is None and bucket.head(key + TOMBSTONE_SUFFIX) is not None:
            yield f"{wheel.filename} was released, retired and removed; {NEW_NAME}"
