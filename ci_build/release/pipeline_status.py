"""The staged sets of a bucket, and what blocks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path

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
    state: str = ""
    tiers: Mapping[str, str] = field(default_factory=dict)
    blocked_by: Sequence[str] = ()


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
            known = StagedState(
                index=index, digest=folder.staged.digest, used=folder.used
            )
            try:
                yield _judged(known, folder, bucket, policy, trust_config)
            except CiBuildError as error:
                # A damaged set must not hide the others.
                yield replace(known, state="damaged", blocked_by=(error.message,))


def _judged(
    known: StagedState,
    folder: StagedFolder,
    bucket: Bucket,
    policy: Policy,
    trust_config: Path | None,
) -> StagedState:
    """Return the state of a staged set; CiBuildError if its files are damaged."""
    if not folder.complete:
        return replace(known, state="incomplete")
    if (found := promotion_of(bucket, folder.staged)) is not None:
        return replace(known, state="promoted" if found[1] else "withdrawn")
    verdict = check(bucket, folder.staged, policy, verify=lazy_verifier(trust_config))
    return replace(
        known,
        state="ready" if verdict.allowed else "blocked",
        tiers=verdict.tiers,
        blocked_by=verdict.blocked_by,
    )
