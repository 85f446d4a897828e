"""Versions that users of an index see, for the checks before a promotion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from promotion.index.ledger import Entries, PromotedSet
from promotion.index.publish import head_after, read_snapshot
from promotion.index.reader import parse_project_page
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import ReleasedIndex, project_pages


@dataclass(frozen=True, kw_only=True, slots=True)
class VisibleState:
    """The visible content of an index.

    Attributes:
        last: the newest visible set.
        versions: project -> its versions.
    """

    last: PromotedSet | None = None
    versions: Mapping[str, Collection[str]] = field(default_factory=dict)


def visible_state(bucket: Bucket, released: ReleasedIndex, projects: Iterable[str], digest: str) -> VisibleState:
    """Return the visible state of some projects, from cached pages when they are still valid, else from the ledger.

    Args:
        bucket: the bucket of the index.
        released: the index.
        projects: the projects.
        digest: of a set that does not count as the newest one.

    Raises:
        BucketError: the ledger is damaged.
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
            _, json_key = project_pages(released.simple, project)
            found = bucket.read(json_key)
            data = found[0] if found else b""
        if known is not None and sha256_of(data) == known.sha256:
            versions[project] = {row.wheel.version for row in parse_project_page(data)}
        elif known is not None or snapshot.number != head.number:
            versions[project] = {
                wheel.version for number in visible for wheel in entries.set(number).wheels if wheel.project == project
            }
    return VisibleState(last=last, versions=versions)
