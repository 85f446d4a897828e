"""Promotion: a staged set that its policy lets through becomes visible to users, byte for byte.

The order makes every instant consistent, also after a crash: files first, then the ledger entry, then pages, and of
the pages first those that others depend on. Each step does nothing when it was done before.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ci_build.errors import BucketError, BusyError, PromotionBlockedError
from ci_build.model import SHA256SUMS, WHEELS_JSON, Progress, Verdict, Wheel, WheelSet
from promotion.bucket import Bucket, ConflictError, sha256_of
from promotion.evidence import read_all
from promotion.index import metadata_name, project_of
from promotion.layout import Released, StagedSet
from promotion.ledger import Ledger, LedgerEntry, LedgerWheel, read_ledger
from promotion.policy import Policy, verdict, weakest
from promotion.publish import publish
from promotion.sidecar import core_metadata, disagreements
from promotion.stage import parse_sums, raise_if_any, read_staged, stored_problems

_MAX_RACES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Promotion:
    """What a promotion did.

    Attributes:
        entry: the set's entry in the ledger.
        new: whether it was promoted now; a set that was promoted before is left as it is.
        simple: key of the index's folder, for pip's `--extra-index-url`.
        pages: keys of the pages that were written now.
    """

    wheel_set: WheelSet
    entry: LedgerEntry
    new: bool
    simple: str
    pages: tuple[str, ...]


def promote(
    bucket: Bucket,
    staged: StagedSet,
    policy: Policy,
    *,
    progress: Progress | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Promotion:
    """Carry a staged set to its released index.

    Raises:
        PromotionBlockedError: the policy is not met, the staged bytes are not those of the set, or the index offers
            other bytes under one of its names; the message lists every reason, and nothing was changed.
    """
    released = Released(index=staged.index)
    wheel_set = read_staged(bucket, staged)
    entry, new = read_ledger(bucket, released).entry_of(staged.digest), False
    if entry is None:
        _step(progress, "check evidence and stored bytes")
        draft = _draft(bucket, staged, wheel_set, policy)
        _step(progress, f"copy {len(draft.wheels)} wheels to {released.root}")
        _copy(bucket, staged, released, draft)
        entry, new = _append(bucket, released, draft, now)
    _step(progress, f"write the pages of {released.simple}")
    written = publish(bucket, released)
    return Promotion(wheel_set=wheel_set, entry=entry, new=new, simple=released.simple, pages=written)


def check(bucket: Bucket, staged: StagedSet, policy: Policy) -> Verdict:
    """What the policy makes of the evidence, and the bucket of the bytes; changes nothing."""
    wheel_set = read_staged(bucket, staged)
    word = verdict(wheel_set, read_all(bucket, staged).values(), policy)
    reasons = (
        *word.blocked_by,
        *_staged_problems(bucket, staged, wheel_set),
        *_conflicts(wheel_set, read_ledger(bucket, Released(index=staged.index))),
    )
    return dataclasses.replace(word, blocked_by=reasons)


def install_line(wheel_set: WheelSet, index_url: str) -> str:
    """The command that installs a set.

    Args:
        wheel_set: the set.
        index_url: where its index is served.
    """
    return shlex.join(("pip", "install", "--extra-index-url", index_url, *install_words(wheel_set)))


def install_words(wheel_set: WheelSet) -> tuple[str, ...]:
    """The requirements that a user names to install a set: what nothing else in it requires, and its pins."""
    required = {project_of(text) for wheel in wheel_set.wheels for text in wheel.requires_dist}
    tops = {wheel.name: wheel.version for wheel in wheel_set.wheels if wheel.name not in required}
    return tuple(f"{name}=={version}" for name, version in (tops | dict(wheel_set.pins)).items())


def _step(progress: Progress | None, text: str) -> None:
    if progress is not None:
        progress.step(text)


def _draft(bucket: Bucket, staged: StagedSet, wheel_set: WheelSet, policy: Policy) -> LedgerEntry:
    """The set's entry, but for its number, time and predecessor; raises when anything blocks the set."""
    word = check(bucket, staged, policy)
    if not word.allowed:
        raise PromotionBlockedError(
            "\n  ".join((f"Set {staged.digest[:12]} is not promoted to {staged.index}:", *word.blocked_by)),
            hint="\nMend what each line names, then run the gates again.",
        )
    evidence = (key.removeprefix(staged.root) for key in read_all(bucket, staged))
    names = dict.fromkeys((*_set_files(bucket, staged, wheel_set), SHA256SUMS, WHEELS_JSON, *evidence))
    digests = {name: info.sha256 for name in names if (info := bucket.head(staged.file(name)))}
    return LedgerEntry(
        number=0,
        previous="",
        time="",
        set_digest=staged.digest,
        rocm_version=wheel_set.rocm_version,
        jax_version=wheel_set.jax_version,
        python_versions=wheel_set.python_versions,
        tier=weakest(word),
        tiers=word.tiers,
        policy={"channel": policy.channel, "sha256": policy.sha256},
        wheels=tuple(_ledger_wheel(bucket, staged, wheel) for wheel in wheel_set.wheels),
        files=digests,
    )


def _ledger_wheel(bucket: Bucket, staged: StagedSet, wheel: Wheel) -> LedgerWheel:
    return LedgerWheel(
        project=wheel.name,
        filename=wheel.filename,
        version=wheel.version,
        size=wheel.size,
        sha256=wheel.sha256,
        metadata_sha256=sha256_of(_metadata(bucket, staged, wheel)),
        requires_python=wheel.requires_python,
        requires_dist=wheel.requires_dist,
    )


def _metadata(bucket: Bucket, staged: StagedSet, wheel: Wheel) -> bytes:
    with bucket.open(staged.file(wheel.filename)) as file:
        return core_metadata(file, wheel.filename)


def _set_files(bucket: Bucket, staged: StagedSet, wheel_set: WheelSet) -> Mapping[str, str]:
    """The set's files other than wheels, as its SHA256SUMS lists them: name -> sha256."""
    if bucket.head(staged.file(SHA256SUMS)) is None:
        return {}
    wheels = {wheel.filename for wheel in wheel_set.wheels}
    sums = parse_sums(bucket.get(staged.file(SHA256SUMS)))
    return {name: sha256 for name, sha256 in sums.items() if name not in wheels}


def _staged_problems(bucket: Bucket, staged: StagedSet, wheel_set: WheelSet) -> Iterator[str]:
    """Sentences on staged files that are not what the set says."""
    yield from stored_problems(bucket, staged.file, _set_files(bucket, staged, wheel_set))
    for wheel in wheel_set.wheels:
        broken = tuple(stored_problems(bucket, staged.file, {wheel.filename: wheel.sha256}))
        yield from broken
        if not broken:
            metadata = _metadata(bucket, staged, wheel)
            yield from disagreements(metadata, wheel)
            yield from stored_problems(bucket, staged.file, {metadata_name(wheel.filename): sha256_of(metadata)})


def _conflicts(wheel_set: WheelSet, ledger: Ledger) -> Iterator[str]:
    """Sentences on names that the index already uses for other bytes."""
    offered = ledger.wheels()
    for wheel in wheel_set.wheels:
        entry, other = offered.get(wheel.filename, (None, None))
        if entry is not None and other is not None and other.sha256 != wheel.sha256:
            earlier = f"was released on {entry.time} with other bytes, in set {entry.set_digest[:12]}"
            yield f"{wheel.filename} {earlier}; a name is never used twice: build with --wheel-post-release."


def _copy(bucket: Bucket, staged: StagedSet, released: Released, entry: LedgerEntry) -> None:
    """Copy what the entry names, by digest, and look at what arrived."""
    for wheel in entry.wheels:
        target = released.wheel(wheel.project, wheel.filename)
        source = staged.file(wheel.filename)
        bucket.copy(source, target, sha256=wheel.sha256)
        bucket.copy(metadata_name(source), metadata_name(target), sha256=wheel.metadata_sha256)
    for name, sha256 in entry.files.items():
        bucket.copy(staged.file(name), released.set_file(entry.set_digest, name), sha256=sha256)
    arrived = {released.wheel(wheel.project, wheel.filename): wheel.sha256 for wheel in entry.wheels}
    arrived |= {metadata_name(released.wheel(w.project, w.filename)): w.metadata_sha256 for w in entry.wheels}
    arrived |= {released.set_file(entry.set_digest, name): sha256 for name, sha256 in entry.files.items()}
    raise_if_any(stored_problems(bucket, str, arrived), BucketError)


def _append(
    bucket: Bucket, released: Released, draft: LedgerEntry, now: Callable[[], datetime]
) -> tuple[LedgerEntry, bool]:
    """Put the entry at the end of the ledger; whoever loses a race tries the next number."""
    for _ in range(_MAX_RACES):
        ledger = read_ledger(bucket, released)
        mine = ledger.entry_of(draft.set_digest)
        if mine is not None:
            return mine, False
        entry = dataclasses.replace(
            draft,
            number=len(ledger.entries) + 1,
            previous=ledger.head,
            time=now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        data = entry.dump()
        try:
            return entry, bucket.put_if_absent(released.ledger_entry(entry.number), data, sha256=sha256_of(data))
        except ConflictError:
            continue
    raise BusyError(f"{_MAX_RACES} other promotions came first.", hint="Run it again.")
