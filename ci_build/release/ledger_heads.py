"""The newest ledger entries that this user has seen, outside of the bucket.

Whoever can write the bucket and holds a ledger key can cut or rewrite a ledger, and
nothing in the bucket shows it. Each promotion and each `index verify` therefore compares
the ledger with the entry that the one before it recorded, as with `--since`.

The functions take the folder of a bucket's records, with one file for each index.
"""

from __future__ import annotations

from pathlib import Path

from ci_build.release.release_request import LedgerRequest
from core.atomic import write_whole
from core.errors import BucketError
from promotion.index.authority import Authority
from promotion.index.ledger import Entries, RecordedEntry
from promotion.index.publish import read_head
from promotion.storage.bucket import Bucket
from promotion.storage.dry_run import DryRunBucket
from promotion.storage.object_keys import ReleasedIndex


def heads_of(request: LedgerRequest, authority: Authority) -> Path | None:
    """Return the folder of a bucket's records, or None.

    Ledgers without keys are local, and often created again.
    """
    return request.heads if authority.keys is not None else None


def recorded_entry(folder: Path, index: str) -> RecordedEntry | None:
    """Return the recorded entry of an index, or None; BucketError if the record is damaged."""
    file = folder / index
    if not file.exists():
        return None
    try:
        return RecordedEntry.parse(file.read_text(encoding="utf-8").strip())
    except ValueError as error:
        raise BucketError(
            f"{file} is no recorded ledger entry: {error}",
            hint="Compare the ledger with a copy, and remove the file.",
        ) from error


def check_recorded(folder: Path, bucket: Bucket, released: ReleasedIndex) -> None:
    """Raise BucketError if a ledger does not contain the recorded entry."""
    if (recorded := recorded_entry(folder, released.index)) is None:
        return
    found = Entries(bucket, released).find(recorded.number)
    if problem := recorded.problem(released, found[1] if found else ""):
        raise BucketError(
            problem,
            hint=(
                "Restore the ledger from a backup. If the index was created again, remove"
                f" {folder / released.index}."
            ),
        )


def record_head(
    folder: Path, bucket: Bucket, released: ReleasedIndex, authority: Authority
) -> None:
    """Record the newest entry of a ledger, unless this is a dry run."""
    if isinstance(bucket, DryRunBucket):
        return
    head, _ = read_head(bucket, released, authority)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / released.index, f"{head.number}:{head.sha256}\n".encode())
