"""The state of a machine and a bucket.

Running work, cached inputs, staged sets and what blocks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from core.cache_entries import CacheEntry, entries
from core.errors import CiBuildError
from core.frozen import frozen
from core.model import Channel
from promotion.check import check
from promotion.evidence.attestation_verification import lazy_verifier
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.promote import promotion_of
from promotion.staged_sets import StagedFolder, staged_folders
from promotion.storage.bucket import Bucket


@frozen
class CachedKind:
    """Entries of one kind in the cache.

    `size` is in bytes, `used` the time of the last use in seconds since 1970.
    """

    kind: str
    entries: int
    size: int
    used: float


@frozen
class StagedState:
    """A staged set.

    Attributes:
        state: promoted, withdrawn, incomplete, damaged, blocked, or ready.
        tiers: target -> tier that its evidence proves.
        blocked_by: what blocks a promotion to the channel.
    """

    index: str
    digest: str
    used: datetime
    state: str
    tiers: Mapping[str, str]
    blocked_by: Sequence[str]


def cached(cache: Path) -> tuple[CachedKind, ...]:
    """Return the kinds of entries in the cache, largest first."""
    groups: dict[str, list[CacheEntry]] = {}
    for entry in entries(cache):
        groups.setdefault(entry.kind, []).append(entry)
    kinds = [
        CachedKind(
            kind=kind,
            entries=len(group),
            size=sum(entry.size for entry in group),
            used=max(entry.used for entry in group),
        )
        for kind, group in groups.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.size))


def staged_states(
    bucket: Bucket, channel: str, trust_config: Path | None = None
) -> Iterator[StagedState]:
    """Yield the staged sets of all indexes, by index and last use.

    Args:
        channel: channel whose policy decides what blocks a set.
    """
    top = f"{Channel.STAGING}/"
    names = {key.removeprefix(top).partition("/")[0] for key in bucket.list(top)}
    for index in sorted(names):
        if index.startswith("_"):  # results of tests and nights
            continue
        policy = load_policy(index, channel=channel)
        for folder in staged_folders(bucket, index, days=0):
            try:
                yield _state_of(bucket, folder, policy, trust_config)
            except CiBuildError as error:
                # A damaged set must not hide the others.
                yield _as_state(folder, "damaged", reasons=(error.message,))


def _state_of(
    bucket: Bucket, folder: StagedFolder, policy: Policy, trust_config: Path | None
) -> StagedState:
    """Return the state of a staged set; CiBuildError if its files are damaged."""
    if not folder.complete:
        return _as_state(folder, "incomplete")
    if (found := promotion_of(bucket, folder.staged)) is not None:
        return _as_state(folder, "promoted" if found[1] else "withdrawn")
    verdict = check(bucket, folder.staged, policy, verify=lazy_verifier(trust_config))
    state = "ready" if verdict.allowed else "blocked"
    return _as_state(folder, state, dict(verdict.tiers), tuple(verdict.blocked_by))


def _as_state(
    folder: StagedFolder,
    state: str,
    tiers: Mapping[str, str] | None = None,
    reasons: tuple[str, ...] = (),
) -> StagedState:
    return StagedState(
        index=folder.staged.index,
        digest=folder.staged.digest,
        used=folder.used,
        state=state,
        tiers=tiers or {},
        blocked_by=reasons,
    )
