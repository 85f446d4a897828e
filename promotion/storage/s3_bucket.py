"""S3Bucket: a bucket on a store that speaks S3.

What it asks of the store: conditional writes (If-None-Match, If-Match) and SHA-256 checksums. Whether conditions are
honoured is found out by writing a small object twice, once for each channel and process, since stores that do not
know them say nothing and overwrite.
"""

from __future__ import annotations

import base64
import hashlib
import io
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from core.errors import BucketError
from promotion.storage.bucket import (
    AbsentError,
    ConflictError,
    Data,
    ObjectInfo,
    check_key,
    object_info,
    sha256_of,
    size_of,
)
from promotion.storage.s3_client import RefusalError, bucket_errors, call
from promotion.storage.s3_upload import Upload, upload_parts

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

_MIB = 1 << 20
SINGLE_PUT = 256 * _MIB
"""Up to this size an object is stored by one request, whose checksum the store keeps for the whole of it."""
_LOOK_FIRST = _MIB
"""From this size on it is cheaper to ask whether an object is there than to send it in vain."""
_PAGE = "index.html"
_PROBE_TEXT = b"Shows whether this store honours conditional writes.\n"
_NEVER = '"00000000000000000000000000000000"'
_PROBES, _CLAIMS = "_probes", "_claims"
_RACES, _RACE_SECONDS = 8, 0.1


class S3Bucket:
    """A bucket on an S3 store.

    Args:
        client: made by `promotion.storage.s3_client.connect`.
        name: of the bucket on the store.
        prefix: what all keys begin with there; empty or with a slash at its end.
        single_writer: somebody vouches that nobody else writes, so that conditions need not be honoured.
        website: pages are stored as `folder/index.html`, as website hosting wants it, and not as `folder/`, which
            the store's own endpoint answers.
        single_put: bytes up to which an object is sent by one request.
    """

    def __init__(
        self,
        client: S3Client,
        name: str,
        *,
        prefix: str = "",
        single_writer: bool = False,
        website: bool = False,
        single_put: int = SINGLE_PUT,
    ) -> None:
        self._client = client
        self.name = name
        self.prefix = prefix
        self._single_writer = single_writer
        self._website = website
        self._single_put = single_put
        self._conditional: dict[str, bool] = {}
        self._conditional_copy: dict[str, bool] = {}
        self._hashed: dict[str, str] = {}

    def head(self, key: str) -> ObjectInfo | None:
        """What is stored under a key; the store vouches for the digest, or the bytes are read and hashed here."""
        try:
            answer = self._call("head_object", key, ChecksumMode="ENABLED")
        except AbsentError:
            return None
        return ObjectInfo(key=key, size=answer["ContentLength"], sha256=self._digest(key, answer), etag=answer["ETag"])

    def get(self, key: str) -> bytes:
        """The whole of a small object."""
        answer = self._call("get_object", key)
        with bucket_errors(key):
            return bytes(answer["Body"].read())

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """The whole of a small object, and what is known of it; one request."""
        try:
            answer = self._call("get_object", key)
        except AbsentError:
            return None
        with bucket_errors(key):
            data = bytes(answer["Body"].read())
        return data, object_info(key, data, answer["ETag"])

    def open(self, key: str) -> BinaryIO:
        """A seekable stream of an object's bytes, which reads the ranges that are asked for."""
        answer = self._call("head_object", key)
        return io.BufferedReader(_Ranges(self, key, answer["ContentLength"], answer["ETag"]), _MIB // 4)

    def fetch(self, key: str, folder: Path) -> Path:
        """The object as a file in `folder`, in parallel ranges, and verified."""
        info = self.head(key)
        if info is None:
            raise AbsentError(f"{key} is not in the bucket.", hint="Stage the set again.")
        path = folder / key.rpartition("/")[2]
        with bucket_errors(key):
            self._client.download_file(self.name, self._name(key), str(path))
        if (found := sha256_of(path)) != info.sha256:
            path.unlink()
            raise BucketError(f"{key} arrived with sha256 {found}, the store says {info.sha256}.", hint="Run it again.")
        path.chmod(0o444)
        return path

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Create an object; see `Bucket.put_if_absent`. The store checks the digest of what arrived."""
        size = size_of(data)
        careful = self._conditions(key)
        if (size >= _LOOK_FIRST or not careful) and self.head(key) is not None:
            return self._same_bytes(key, sha256)
        if (written := sha256_of(data)) != sha256:
            raise BucketError(
                f"The bytes for {key} hash to {written}, not to {sha256}.",
                hint="The file changed while it was stored, or the disk is failing; build the set again.",
            )
        condition = {"IfNoneMatch": "*"} if careful else {}
        try:
            if isinstance(data, Path) and size > self._single_put:
                self._put_parts(key, data, sha256, condition)
            else:
                self._put(key, data, sha256, condition)
        except ConflictError:
            return self._same_bytes(key, sha256)
        return True

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Replace an object; see `Bucket.put_if_match`."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        if not self._conditions(key):
            stored = self.head(key)
            if (stored.etag if stored else None) != etag:
                raise ConflictError(f"{key} was changed by somebody else meanwhile.", hint="Run it again.")
            condition = {}
        sha256 = sha256_of(data)
        try:
            answer = self._put(key, data, sha256, condition)
        except AbsentError as error:
            raise ConflictError(f"{key} was removed by somebody else meanwhile.", hint="Run it again.") from error
        return ObjectInfo(key=key, size=len(data), sha256=sha256, etag=answer["ETag"])

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Create `target` within the store; see `Bucket.copy`.

        Where the store ignores conditions on copies, an object that holds the digest claims the target first: all
        who get past the claim copy the same bytes.
        """
        stored = self.head(source)
        if stored is None or stored.sha256 != sha256:
            found = "is absent" if stored is None else f"has sha256 {stored.sha256}"
            raise BucketError(f"{source} {found}, {sha256} was expected.", hint="Stage the set again.")
        same = {"CopySource": {"Bucket": self.name, "Key": self._name(source)}, "CopySourceIfMatch": stored.etag}
        if self._copy_conditions(target):
            try:
                self._call("copy_object", target, **same, **_headers(target), IfNoneMatch="*")
            except ConflictError:
                return self._same_bytes(target, sha256)
            return True
        if self.head(target) is not None:
            return self._same_bytes(target, sha256)
        self.put_if_absent(_beside(_CLAIMS, target), sha256.encode(), sha256=sha256_of(sha256.encode()))
        self._call("copy_object", target, **same, **_headers(target))
        return True

    def list(self, prefix: str) -> Iterator[str]:
        """Keys below a prefix, sorted; what we note for ourselves is no object."""
        start = self.prefix + prefix
        with bucket_errors(prefix):
            found = [
                item["Key"]
                for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=start)
                for item in page.get("Contents", ())
            ]
        keys = (name + _PAGE if name.endswith("/") else name for name in found)
        objects = sorted(name.removeprefix(self.prefix) for name in keys)
        yield from (key for key in objects if key.split("/")[1:2] not in ([_PROBES], [_CLAIMS]))

    def delete(self, key: str, *, sha256: str) -> bool:
        """Remove an object that has this digest; see `Bucket.delete`."""
        stored = self.head(key)
        if stored is None:
            return False
        if stored.sha256 != sha256:
            raise ConflictError(f"{key} has sha256 {stored.sha256}; {sha256} was to be removed.", hint="Run it again.")
        self._call("delete_object", key)
        return True

    def read_range(self, key: str, start: int, size: int, etag: str) -> bytes:
        """`size` bytes from `start` of an object that still has this etag."""
        answer = self._call("get_object", key, Range=f"bytes={start}-{start + size - 1}", IfMatch=etag)
        with bucket_errors(key):
            return bytes(answer["Body"].read())

    def _name(self, key: str) -> str:
        """The key on the store."""
        name = self.prefix + check_key(key)
        return name if self._website or not name.endswith(f"/{_PAGE}") else name.removesuffix(_PAGE)

    def _call(self, operation: str, key: str, **words: Any) -> Any:  # noqa: ANN401 - an answer of boto3
        return call(getattr(self._client, operation), key, Bucket=self.name, Key=self._name(key), **words)

    def _put(self, key: str, data: Data, sha256: str, condition: Mapping[str, str]) -> Any:  # noqa: ANN401
        """One PUT; a store that is busy with the same key is asked again."""
        checksum = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": base64_of(sha256)}
        for attempt in range(_RACES):
            try:
                with data.open("rb") if isinstance(data, Path) else io.BytesIO(data) as body:
                    return self._call("put_object", key, Body=body, **checksum, **condition, **_headers(key))
            except RefusalError as refusal:
                if refusal.status != 409:
                    raise
                time.sleep(_RACE_SECONDS * 2**attempt)
        raise ConflictError(f"{key} is being written by somebody else.", hint="Run it again.")

    def _put_parts(self, key: str, path: Path, sha256: str, condition: Mapping[str, str]) -> None:
        target = Upload(client=self._client, bucket=self.name, key=self._name(key), said=key, headers=_headers(key))
        upload_parts(target, path, condition)
        info = self.head(key)
        if info is None or info.sha256 != sha256:
            found = "is absent" if info is None else f"has sha256 {info.sha256}"
            raise BucketError(f"{key} {found} after it was stored; {sha256} was sent.", hint="Look at the store.")

    def _same_bytes(self, key: str, sha256: str) -> bool:
        """Refuse other bytes under a taken key; False, since nothing is created."""
        stored = self.head(key)
        if stored is None or stored.sha256 != sha256:
            found = f"is stored with sha256 {stored.sha256}" if stored else "has just vanished"
            raise ConflictError(
                f"{key} {found} and shall not become {sha256}.",
                hint="One name never stands for two contents; give the new content another version.",
            )
        return False

    def _digest(self, key: str, answer: Mapping[str, Any]) -> str:
        """SHA-256 of an object: the store's for the whole of it, or by reading it where the store has none."""
        stored = str(answer.get("ChecksumSHA256", ""))
        if stored and "-" not in stored:
            return base64.b64decode(stored).hex()
        known = f"{key} {answer['ETag']}"
        if known not in self._hashed:
            digest = hashlib.sha256()
            body = self._call("get_object", key, IfMatch=answer["ETag"])["Body"]
            with bucket_errors(key):
                for chunk in body.iter_chunks(_MIB):
                    digest.update(chunk)
            self._hashed[known] = digest.hexdigest()
        return self._hashed[known]

    def _conditions(self, key: str) -> bool:
        """Whether writes of the key's channel are conditional; BucketError when they are not and have to be."""
        channel = key.partition("/")[0]
        if channel not in self._conditional:
            probe = _beside(_PROBES, f"{channel}/conditional-writes")
            self._conditional[channel] = all(
                self._refuses("put_object", probe, Body=_PROBE_TEXT, **condition)
                for condition in ({"IfNoneMatch": "*"}, {"IfMatch": _NEVER})
            )
        if not self._conditional[channel] and not self._single_writer:
            raise BucketError(
                f"The store of {self.name} ignores If-None-Match or If-Match, so that two writers would overwrite"
                " each other.",
                hint="Use another store, or add ?single_writer=yes to the bucket's URL if nobody else ever writes.",
            )
        return self._conditional[channel]

    def _copy_conditions(self, key: str) -> bool:
        """Whether copies of the key's channel are conditional."""
        channel = key.partition("/")[0]
        if channel not in self._conditional_copy:
            probe = _beside(_PROBES, f"{channel}/conditional-writes")
            source = {"Bucket": self.name, "Key": self._name(probe)}
            self._conditional_copy[channel] = self._conditions(key) and self._refuses(
                "copy_object", probe + "-copied", CopySource=source, IfNoneMatch="*"
            )
        return self._conditional_copy[channel]

    def _refuses(self, operation: str, probe: str, **words: Any) -> bool:  # noqa: ANN401 - words of boto3
        """Whether a write that must not happen, since the object is there, is refused."""
        for _ in range(2):
            try:
                self._call(operation, probe, **words)
            except (ConflictError, AbsentError):
                return True
            except RefusalError as refusal:
                if refusal.status != 501:
                    raise
                return False
        return False


class _Ranges(io.RawIOBase):
    """An object as a raw stream; each read is one request."""

    def __init__(self, bucket: S3Bucket, key: str, size: int, etag: str) -> None:
        self._bucket, self._key, self._size, self._etag = bucket, key, size, etag
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
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
    """A digest as S3's headers carry it."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _beside(kind: str, key: str) -> str:
    """The key of what we note about `key`, in its own channel; no index has a name with an underscore in front."""
    channel, _, rest = key.partition("/")
    return f"{channel}/{kind}/{rest}"


_TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json", ".whl": "application/zip"}


def _headers(key: str) -> dict[str, str]:
    """What caches and browsers are told: objects never change, but for pages, which have to be asked for anew."""
    kind = next((kind for suffix, kind in _TYPES.items() if key.endswith(suffix)), "application/octet-stream")
    lasting = key.endswith((".whl", ".whl.metadata"))
    return {"ContentType": kind, "CacheControl": "public, max-age=31536000, immutable" if lasting else "no-cache"}
