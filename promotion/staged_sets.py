"""The staged sets of an index: find them by name, list them, and remove old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from core.errors import RequestError
from core.frozen import frozen
from core.model import WHEELS_JSON, Channel
from promotion.index import set_lookup
from promotion.index.operations import Clock, utc_now
from promotion.index.publish import read_head
from promotion.index.set_lookup import SHORTEST_DIGEST, digest_with
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import (
    EVIDENCE_FOLDER,
    ReleasedIndex,
    StagedSet,
    is_digest,
)

_NEVER = datetime.min.replace(tzinfo=UTC)


@frozen
class StagedFolder:
    """The folder of a staged set.

    Attributes:
        used: time of the upload or of the last gate, whichever is later.
        complete: whether the upload was completed.
        kept: reason why the set stays, or empty.
    """

    staged: StagedSet
    used: datetime
    complete: bool
    kept: str


def find_set(bucket: Bucket, text: str) -> StagedSet:
    """Return a staged set by INDEX/DIGEST, start of its digest, or entry number.

    Raises:
        RequestError: the text is not the name of a set, no set or several sets have
            this name, or a released set is no longer staged.
    """
    index, _, name = text.rpartition("/")
    name = name.lower()
    if not index:
        hint = (
            f"Give INDEX/ and the digest, at least {SHORTEST_DIGEST} first digits of"
            " it, or a ledger entry."
        )
        raise RequestError(f"{text!r} is not the name of a set.", hint=hint)
    staged = [key for key, names in _folders(bucket, index) if WHEELS_JSON in names]
    digest = digest_with(name, staged, index)
    if not digest:
        head, entries = read_head(bucket, ReleasedIndex(index=index))
        digest = entries.set(set_lookup.find_set(name, head.state, entries)).set_digest
    if digest not in staged:
        hint = "Stage the set again with `ci_build set stage`."
        raise RequestError(
            f"{index}/{digest} was released and is no longer staged.", hint=hint
        )
    return StagedSet(index=index, digest=digest)


def staged_folders(
    bucket: Bucket,
    index: str,
    *,
    days: float,
    now: Clock = utc_now,
) -> tuple[StagedFolder, ...]:
    """Return the staged sets of an index, the least recently used first.

    Args:
        days: age in days from which a set does not stay for its age.
    """
    released = ReleasedIndex(index=index)
    head, entries = read_head(bucket, released)
    pinned = {
        entries.set(number).set_digest: reason
        for number, reason in head.state.pinned.items()
    }
    folders = []
    for digest, held in _folders(bucket, index):
        staged = StagedSet(index=index, digest=digest)
        used = _last_use(bucket, staged.root, held)
        kept = ""
        if digest in pinned:
            kept = f"pinned: {pinned[digest]}"
        elif now() - used < timedelta(days=days):
            kept = f"used less than {days:g} days ago"
        folders.append(
            StagedFolder(
                staged=staged, used=used, complete=WHEELS_JSON in held, kept=kept
            )
        )
    return tuple(sorted(folders, key=lambda folder: folder.used))


def _folders(bucket: Bucket, index: str) -> Iterable[tuple[str, list[str]]]:
    """Return the digest of each staged set of an index, and the names of its objects."""
    top = f"{Channel.STAGING}/{index}/"
    names: dict[str, list[str]] = {}
    for key in bucket.list(top):
        digest, _, name = key.removeprefix(top).partition("/")
        if is_digest(digest):  # other objects are not staged sets, and stay
            names.setdefault(digest, []).append(name)
    return names.items()


def remove(bucket: Bucket, folders: Sequence[StagedFolder]) -> Mapping[StagedSet, int]:
    """Remove staged sets, and return the number of removed objects of each.

    wheels.json goes first, so that no gate and no promotion uses a set that is
    incomplete. An interrupted removal is completed by the next one. Released indexes
    have their own copies of all files. A set that was used since it was listed stays.
    """
    removed = {}
    for folder in folders:
        staged = folder.staged
        keys = sorted(
            bucket.list(staged.root), key=lambda key: key != staged.file(WHEELS_JSON)
        )
        if (
            _last_use(
                bucket, staged.root, [key.removeprefix(staged.root) for key in keys]
            )
            > folder.used
        ):
            continue
        stored = map_concurrently(bucket.head, keys)
        for info in stored:
            if info is not None:
                bucket.delete(info.key, sha256=info.sha256)
        removed[staged] = len(keys)
    return removed


def _last_use(bucket: Bucket, root: str, names: Sequence[str]) -> datetime:
    """Return when a set was staged or gated last.

    For an interrupted upload or removal, the time of its newest file.
    """
    dated = [
        name
        for name in names
        if name == WHEELS_JSON or name.startswith(f"{EVIDENCE_FOLDER}/")
    ]
    keys = [root + name for name in (dated if WHEELS_JSON in names else names)]
    times = (
        info.modified
        for info in map_concurrently(bucket.head, keys)
        if info is not None
    )
    return max(times, default=_NEVER)  # removed meanwhile
