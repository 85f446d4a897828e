"""What users of an index see before a set comes to it, as cheaply as can be believed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from promotion.index.ledger import Entries, PromotedSet
from promotion.index.pages import parse_project_page
from promotion.index.publish import head_after, read_snapshot
from promotion.storage.bucket import AbsentError, Bucket, sha256_of
from promotion.storage.keys import ReleasedIndex, project_pages


@dataclass(frozen=True, kw_only=True, slots=True)
class VisibleState:
    """What users see.

    Attributes:
        last: the set that came last.
        versions: project -> versions of it.
    """

    last: PromotedSet | None = None
    versions: Mapping[str, Collection[str]] = field(default_factory=dict)


def visible_state(bucket: Bucket, released: ReleasedIndex, projects: Iterable[str], digest: str) -> VisibleState:
    """What users see of some projects, apart from a set.

    The pages tell if they are those that were written last; else the ledger does, set by set.

    Args:
        bucket: where the index is.
        released: the index.
        projects: which ones.
        digest: of the set that is left out when it came last.

    Raises:
        BucketError: the ledger cannot be trusted.
    """
    entries, snapshot = Entries(bucket, released), read_snapshot(bucket, released)
    head = head_after(bucket, released, entries, snapshot)
    visible = sorted(head.state.visible, reverse=True)
    if not visible:
        return VisibleState()
    others = (promoted for number in visible if (promoted := entries.set(number)).set_digest != digest)
    last = next(others, None)
    versions: dict[str, Collection[str]] = {}
    for project in projects:
        known = snapshot.pages.get(project)
        data = b""
        if known is not None and snapshot.number == head.number:
            data = _page(bucket, released, project)
        if known is not None and sha256_of(data) == known.sha256:
            versions[project] = {offer.version for offer in parse_project_page(data)}
        elif known is not None or snapshot.number != head.number:
            versions[project] = {
                wheel.version for number in visible for wheel in entries.set(number).wheels if wheel.project == project
            }
    return VisibleState(last=last, versions=versions)


def _page(bucket: Bucket, released: ReleasedIndex, project: str) -> bytes:
    """A project's JSON page; empty when there is none."""
    _, as_json = project_pages(released.simple, project)
    try:
        return bucket.get(as_json)
    except AbsentError:
        return b""
