"""Copies of a set's files to its released index, before a ledger entry names them."""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import BucketError
from core.model import WHEELS_JSON
from promotion.evidence.provenance import provenance_name
from promotion.index.claim import Claim
from promotion.index.ledger import PromotedSet
from promotion.index.pages import metadata_name
from promotion.stage import raise_if_any, stored_problems
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import ReleasedIndex, StagedSet


def copy_set(
    bucket: Bucket,
    staged: StagedSet,
    released: ReleasedIndex,
    promoted: PromotedSet,
    claim: Claim,
    made: Mapping[str, bytes],
) -> None:
    """Copy the files of a set to the released index and verify the copies.

    wheels.json is copied first: it describes the other files if the promotion is
    interrupted.

    Args:
        claim: claim of the index, which is confirmed before each copy.
        made: name -> content of the files of the set that are not in staging: this
            promotion made them.

    Raises:
        BucketError: a file is missing from staging or has other bytes, or the index has
            other bytes.
        BusyError: another process took the claim.
    """
    copies: dict[str, tuple[str, str]] = {}
    for wheel in promoted.wheels:
        source = staged.file(wheel.filename)
        target = released.wheel(wheel.project, wheel.filename)
        copies[target] = source, wheel.sha256
        copies[metadata_name(target)] = metadata_name(source), wheel.metadata_sha256
        if wheel.provenance and bucket.head(provenance_name(target)) is None:
            copies[provenance_name(target)] = provenance_name(source), wheel.provenance
    written = {
        released.set_file(promoted.set_digest, name): data
        for name, data in made.items()
    }
    for name, sha256 in promoted.files.items():
        copies[released.set_file(promoted.set_digest, name)] = staged.file(name), sha256

    def copy(target: str) -> bool:
        claim.confirm()
        source, sha256 = copies[target]
        if target in written:
            return bucket.put_if_absent(target, written[target], sha256=sha256)
        return bucket.copy(source, target, sha256=sha256)

    first = released.set_file(promoted.set_digest, WHEELS_JSON)
    copy(first)
    map_concurrently(copy, [target for target in copies if target != first])
    arrived = {target: sha256 for target, (_, sha256) in copies.items()}
    claim.confirm()
    raise_if_any(stored_problems(bucket, str, arrived), BucketError)
