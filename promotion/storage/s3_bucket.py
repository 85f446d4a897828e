"""A bucket on a store with the S3 protocol.

The store must support conditional writes (If-None-Match, If-Match; see `s3_conditions`)
and SHA-256 checksums.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from core.digests import sha256_of
from core.errors import BucketError
from promotion.storage.bucket import (
    AbsentError,
    Bucket,
    ConflictError,
    Data,
    ObjectInfo,
    can_delete,
    changed_meanwhile,
    check_digest,
    check_key,
    check_same_bytes,
    check_small,
    check_source,
    object_info,
    size_of,
)
from promotion.storage.object_keys import LASTING, content_type
from promotion.storage.s3_client import RefusalError, bucket_errors, call, call_paged
from promotion.storage.s3_conditions import PROBES, Conditions, beside, unless_busy

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

_MIB = 1 << 20
_LOOK_FIRST = _MIB
"""Minimum size of objects for which existence is checked before an upload."""
_PAGE = "index.html"
_CLAIMS = "_claims"
_BODIES = 4
"""Maximum number of requests for the same bytes."""
_RANGE = 16 * _MIB
"""Size of the ranges from which a digest is computed."""


class S3Bucket(Bucket):
    """A bucket on an S3 store.

    Args:
        client: client from `promotion.storage.s3_client.connect`.
        name: name of the bucket on the store.
        prefix: prefix of all keys, empty or with a slash at the end.
        identity: name in signed ledgers; empty means s3://NAME/PREFIX.
    """

    def __init__(
        self,
        client: S3Client,
        name: str,
        *,
        prefix: str = "",
        identity: str = "",
    ) -> None:
        self.client = client
        self.name = name
        self.prefix = prefix
        self.identity = identity or f"s3://{name}/{prefix}".rstrip("/")
        self._conditions = Conditions(self._call, self._source)
        self._hashed: dict[str, str] = {}

    def exists(self) -> bool:
        """Return whether the bucket exists; credentials that may not list it get True."""
        try:
            call(self.client, "head_bucket", self.name, Bucket=self.name)
        except AbsentError:
            return False
        except RefusalError as error:
            return error.status == 403
        return True

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object.

        A digest that the store does not have is computed from the bytes.
        """
        try:
            answer = self._call("head_object", key, ChecksumMode="ENABLED")
        except AbsentError:
            return None
        if place := answer.get("WebsiteRedirectLocation"):
            raise BucketError(
                f"{key} redirects readers to {place}.",
                hint="Remove the object, and run `ci_build index verify --repair`.",
            )
        return ObjectInfo(
            key=key,
            size=answer["ContentLength"],
            sha256=self._digest(key, answer),
            etag=answer["ETag"],
            modified=answer["LastModified"],
        )

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """Return the bytes of a small object and its properties with one request."""
        try:
            data, etag = self._get(key)
        except AbsentError:
            return None
        return data, object_info(key, data, etag)

    def open(self, key: str) -> BinaryIO:
        """Return a seekable stream that downloads the requested ranges.

        It raises ConflictError when the object is replaced meanwhile.
        """
        answer = self._call("head_object", key)
        ranges = _Ranges(self, key, answer["ContentLength"], answer["ETag"])
        return io.BufferedReader(ranges, _MIB // 4)

    def fetch(self, key: str, folder: Path) -> Path:
        """Download an object to `folder` in parallel ranges and verify it."""
        info = self.head(key)
        if info is None:
            raise AbsentError(
                f"{key} is not in the bucket.", hint="Stage the set again."
            )
        path = folder / key.rpartition("/")[2]
        for _ in range(_BODIES):
            with bucket_errors(key):
                self.client.download_file(self.name, self._name(key), str(path))
            if (actual := sha256_of(path)) == info.sha256:
                path.chmod(0o444)
                return path
            path.unlink()
        raise BucketError(
            f"{key} was downloaded with sha256 {actual}, not {info.sha256}.",
            hint="Run the command again.",
        )

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Create an object; see `Bucket.put_if_absent`. The store verifies the digest."""
        size = size_of(data)
        self._conditions.require_on_writes(key)
        if size >= _LOOK_FIRST and (stored := self.head(key)) is not None:
            return check_same_bytes(key, stored, sha256)
        check_digest(key, sha256_of(data), sha256)
        try:
            self._put(key, data, sha256, {"IfNoneMatch": "*"})
        except ConflictError:
            return check_same_bytes(key, self.head(key), sha256)
        return True

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Replace an object; see `Bucket.put_if_match`."""
        self._conditions.require_on_writes(key)
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        sha256 = sha256_of(data)
        try:
            answer = self._put(key, data, sha256, condition)
        except AbsentError as error:
            raise changed_meanwhile(key) from error
        return ObjectInfo(key=key, size=len(data), sha256=sha256, etag=answer["ETag"])

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Create `target` within the store; see `Bucket.copy`.

        If the store ignores conditions on copies, a separate object with the digest
        first claims the target, so all copies to the target have the same bytes.
        """
        stored = check_source(source, self.head(source), sha256)
        same = {"CopySource": self._source(source), "CopySourceIfMatch": stored.etag}
        if self._conditions.on_copies(target):
            try:
                copied = {**same, **_headers(target), "IfNoneMatch": "*"}
                unless_busy(target, lambda: self._call("copy_object", target, **copied))
            except ConflictError:
                return check_same_bytes(target, self.head(target), sha256)
            return True
        if self.head(target) is not None:
            return check_same_bytes(target, self.head(target), sha256)
        self.put_if_absent(
            beside(_CLAIMS, target), sha256.encode(), sha256=sha256_of(sha256.encode())
        )
        self._call("copy_object", target, **same, **_headers(target))
        return True

    def list(self, folder: str) -> Iterator[str]:
        """Yield the keys below a folder, sorted, without probes and claims."""
        place = {"Bucket": self.name, "Prefix": self.prefix + folder}
        pages = call_paged(self.client, "list_objects_v2", folder, **place)
        infos: list[str] = []
        for page in pages:
            infos.extend(item["Key"] for item in page.get("Contents", ()))
        keys = (name + _PAGE if name.endswith("/") else name for name in infos)
        objects = sorted(name.removeprefix(self.prefix) for name in keys)
        yield from (
            key for key in objects if key.split("/")[1:2] not in ([PROBES], [_CLAIMS])
        )

    def clock(self) -> datetime:
        """Return the time in the header of a response."""
        place = {"Bucket": self.name, "Prefix": self.prefix}
        answer = call(self.client, "list_objects_v2", "", **place, MaxKeys=1)
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return parsedate_to_datetime(headers["date"])

    def delete(self, key: str, *, sha256: str) -> bool:
        """Remove an object if it has this digest; see `Bucket.delete`."""
        if not can_delete(key, self.head(key), sha256):
            return False
        self._call("delete_object", key)
        return True

    def read_range(self, key: str, start: int, size: int, etag: str) -> bytes:
        """Return `size` bytes from `start` of an object if it still has this etag."""
        return self._get(key, Range=f"bytes={start}-{start + size - 1}", IfMatch=etag)[
            0
        ]

    def _name(self, key: str) -> str:
        name = self.prefix + check_key(key)
        # The store's own endpoint serves folders only under the key of the folder.
        return name.removesuffix(_PAGE) if name.endswith(f"/{_PAGE}") else name

    def _source(self, key: str) -> Mapping[str, str]:
        """Return the source of a copy."""
        return {"Bucket": self.name, "Key": self._name(key)}

    def _call(self, operation: str, key: str, **words: Any) -> Mapping[str, Any]:  # noqa: ANN401 - words of boto3
        return call(
            self.client, operation, key, Bucket=self.name, Key=self._name(key), **words
        )

    def _get(self, key: str, **words: str) -> tuple[bytes, str]:
        """Return the bytes and the etag of an object.

        Request a body that ends early again, which boto3 does not.
        """
        for last in (*[False] * (_BODIES - 1), True):
            answer = self._call("get_object", key, **words)
            check_small(key, answer["ContentLength"])
            try:
                with bucket_errors(key):
                    data = bytes(answer["Body"].read())
                break
            except BucketError:
                if last:
                    raise
        return data, str(answer["ETag"])

    def _put(
        self, key: str, data: Data, sha256: str, condition: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Store an object with one request.

        S3 accepts 5 GiB, also in the one request of a copy; parts would have no
        checksum of the whole object.
        """
        checksum = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": base64_of(sha256)}

        def put() -> Mapping[str, Any]:
            with (
                data.open("rb") if isinstance(data, Path) else io.BytesIO(data)
            ) as body:
                return self._call(
                    "put_object",
                    key,
                    Body=body,
                    **checksum,
                    **condition,
                    **_headers(key),
                )

        return unless_busy(key, put)

    def _digest(self, key: str, answer: Mapping[str, Any]) -> str:
        """Return the SHA-256 of an object from the store, or else from its bytes."""
        stored = str(answer.get("ChecksumSHA256", ""))
        if stored and "-" not in stored:
            return base64.b64decode(stored).hex()
        cached = f"{key} {answer['ETag']}"
        if cached not in self._hashed:
            size = int(answer["ContentLength"])
            ranges = _Ranges(self, key, size, answer["ETag"])
            with io.BufferedReader(ranges, _RANGE) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._hashed[cached] = digest
        return self._hashed[cached]


class _Ranges(io.RawIOBase):
    """An object as a raw stream. Each read is one request."""

    def __init__(self, bucket: S3Bucket, key: str, size: int, etag: str) -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._etag = etag
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (
            offset
            + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        )
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - anything writable
        size = min(len(buffer), self._size - self._at)
        if size <= 0:
            return 0
        data = self._bucket.read_range(self._key, self._at, size, self._etag)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def base64_of(sha256: str) -> str:
    """Return a digest in the format of S3 headers."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _headers(key: str) -> dict[str, str]:
    """Return the headers for content type and caching.

    Wheels never change, pages must be revalidated.
    """
    lasting = "public, max-age=31536000, immutable"
    return {
        "ContentType": content_type(key),
        "CacheControl": lasting if key.endswith(LASTING) else "no-cache",
    }
