"""Publication of the site below `docs/` of a bucket.

Only changed files are uploaded, and only there files go.
"""

from __future__ import annotations

from pathlib import Path

from ci_build.docs.site import LIST
from core.digests import sha256_of
from core.errors import RequestError
from core.frozen import frozen
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import DOCS

ENTRY = "index.html"


@frozen
class Publication:
    """Changes of a publication.

    Attributes:
        written: keys of new and changed files.
        removed: keys of files that the site no longer has.
        same: number of files that were published before.
    """

    written: tuple[str, ...]
    removed: tuple[str, ...]
    same: int


def publish_site(bucket: Bucket, site: Path) -> Publication:
    """Bring `docs/` of a bucket up to date with a site.

    A reader never follows a link to a file that is not there yet or no longer: new
    files come first, then changed ones, the first page last, and stale files are
    removed at the end. An interrupted publication is completed by the next.

    Raises:
        RequestError: `docs/` of the bucket has files that no site brought.
        BucketError: the bucket refused a write, or another publication changed a file
            at the same time.
    """
    files = {
        DOCS + path.relative_to(site).as_posix(): path
        for path in sorted(site.rglob("*"))
        if path.is_file()
    }
    stored = {*bucket.list(DOCS)}
    stale = sorted(stored - files.keys())
    if stale and DOCS + LIST not in stored:
        raise RequestError(
            f"The bucket has files that do not belong to a site, such as {stale[0]}.",
            hint="Give another --bucket, or move these files.",
        )

    def write(key: str) -> str:
        data = files[key].read_bytes()
        before = bucket.head(key) if key in stored else None
        if before is not None and before.sha256 == sha256_of(data):
            return ""
        bucket.put_if_match(key, data, etag=before.etag if before else None)
        return key

    first = {DOCS + ENTRY} & stored
    written: list[str] = []
    for batch in (files.keys() - stored, files.keys() & stored - first, first):
        written += filter(None, map_concurrently(write, sorted(batch)))
    for key in stale:
        if info := bucket.head(key):
            bucket.delete(key, sha256=info.sha256)
    return Publication(
        written=tuple(written), removed=tuple(stale), same=len(files) - len(written)
    )
