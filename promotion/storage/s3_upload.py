"""Multipart uploads to an S3 store: concurrent, with a SHA-256 for each part, and resumable."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import BucketError
from promotion.storage.bucket import AbsentError, ConflictError
from promotion.storage.s3_client import call, call_paged
from promotion.storage.s3_conditions import unless_busy

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

PART = 32 << 20
"""Minimum size of a part.

Parts are larger if an object would exceed 10,000 parts, the limit of S3.
"""
_MOST_PARTS = 10_000
_MAX_PARTS_AT_ONCE = 8


def upload_parts(
    client: S3Client,
    bucket: str,
    key: str,
    path: Path,
    *,
    label: str,
    headers: Mapping[str, str],
    condition: Mapping[str, str],
) -> None:
    """Store a file in parts; parts of an interrupted upload are reused.

    Args:
        key: key of the object on the store.
        label: key in error messages, without the prefix of the bucket.

    Raises:
        ConflictError: the condition is not satisfied. The upload is aborted.
        BucketError: the store reports another checksum than that of the uploaded parts.
    """

    def request(operation: str, **words: Any) -> Any:  # noqa: ANN401 - boto3's words and answers
        return call(client, operation, label, Bucket=bucket, Key=key, **words)

    size = path.stat().st_size
    step = max(PART, -(-size // _MOST_PARTS))
    upload_id, stored_parts = _resumable(client, bucket, key, label)
    if upload_id is None:
        words = {**headers, "ChecksumAlgorithm": "SHA256", "ChecksumType": "COMPOSITE"}
        upload_id = str(request("create_multipart_upload", **words)["UploadId"])

    def part(number: int) -> dict[str, Any]:
        with path.open("rb") as file:
            file.seek((number - 1) * step)
            data = file.read(step)
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        etag = stored_parts.get((number, checksum))
        if etag is None:
            words = {
                "Body": data,
                "ChecksumAlgorithm": "SHA256",
                "ChecksumSHA256": checksum,
            }
            etag = request(
                "upload_part", UploadId=upload_id, PartNumber=number, **words
            )["ETag"]
        return {"PartNumber": number, "ETag": etag, "ChecksumSHA256": checksum}

    try:
        with ThreadPoolExecutor(_MAX_PARTS_AT_ONCE) as pool:
            parts = list(pool.map(part, range(1, -(-size // step) + 1)))
        end = partial(
            request,
            "complete_multipart_upload",
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
        )
        done = unless_busy(label, partial(end, **condition))
    except ConflictError:
        # An upload that is absent was completed by an earlier attempt of the same
        # request.
        with contextlib.suppress(AbsentError):
            request("abort_multipart_upload", UploadId=upload_id)
        raise
    except AbsentError as error:
        raise ConflictError(
            f"{label} was stored by another process during the upload.",
            hint="Run the command again.",
        ) from error
    raw = b"".join(base64.b64decode(item["ChecksumSHA256"]) for item in parts)
    expected = base64.b64encode(hashlib.sha256(raw).digest()).decode()
    if (
        actual := str(done.get("ChecksumSHA256", expected)).partition("-")[0]
    ) != expected:
        raise BucketError(
            f"{label} was stored with checksum {actual}, not {expected}.",
            hint="Check the store.",
        )


def _resumable(
    client: S3Client, bucket: str, key: str, label: str
) -> tuple[str | None, dict[tuple[int, str], str]]:
    """Return the id of the newest unfinished upload or None, and its parts.

    (number, SHA-256 in base64) -> etag.
    """
    listed = call(client, "list_multipart_uploads", label, Bucket=bucket, Prefix=key)
    mine = [item for item in listed.get("Uploads", ()) if item["Key"] == key]
    if not mine:
        return None, {}
    upload_id = str(max(mine, key=lambda item: item["Initiated"])["UploadId"])
    pages = call_paged(
        client, "list_parts", label, Bucket=bucket, Key=key, UploadId=upload_id
    )
    try:
        parts = []
        for page in pages:
            parts.extend(page.get("Parts", ()))
    except AbsentError:  # another process completed or aborted the upload
        return None, {}
    return upload_id, {
        (part["PartNumber"], part.get("ChecksumSHA256", "")): part["ETag"]
        for part in parts
    }
