"""Counters of requests to a bucket and to an S3 store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from promotion.storage.bucket import Bucket, Data, ObjectInfo, size_of

_KEYS_OF_A_LISTING = 1000


@dataclass(kw_only=True, slots=True)
class Traffic:
    """Requests, those of them that copy, and bytes of bodies that the program sent and received."""

    requests: int = 0
    copies: int = 0
    sent: int = 0
    received: int = 0


class CountingBucket:
    """Another bucket; each method counts as one request, a listing as one for each 1,000 keys."""

    def __init__(self, under: Bucket) -> None:
        self._under = under
        self._lock = threading.Lock()
        self.traffic = Traffic()

    def _count(self, *, requests: int = 1, copies: int = 0, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.traffic.requests += requests
            self.traffic.copies += copies
            self.traffic.sent += sent
            self.traffic.received += received

    def head(self, key: str) -> ObjectInfo | None:
        """Return the metadata of an object."""
        self._count()
        return self._under.head(key)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        self._count()
        data = self._under.get(key)
        self._count(requests=0, received=len(data))
        return data

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """Return content and metadata of an object."""
        found = self._under.read(key)
        self._count(received=len(found[0]) if found else 0)
        return found

    def open(self, key: str) -> BinaryIO:
        """Return a stream whose reads are counted."""
        self._count()
        stream = self._under.open(key)
        return _Counted(stream, self)  # type: ignore[return-value]

    def fetch(self, key: str, folder: Path) -> Path:
        """Write an object to a file."""
        self._count()
        path = self._under.fetch(key, folder)
        self._count(requests=0, received=path.stat().st_size)
        return path

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Create an object."""
        self._count(sent=size_of(data))
        return self._under.put_if_absent(key, data, sha256=sha256)

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Replace an object."""
        self._count(sent=len(data))
        return self._under.put_if_match(key, data, etag=etag)

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Copy within the store."""
        self._count(copies=1)
        return self._under.copy(source, target, sha256=sha256)

    def list(self, prefix: str) -> Iterator[str]:
        """Keys below a prefix."""
        keys = [*self._under.list(prefix)]
        self._count(requests=max(1, -(-len(keys) // _KEYS_OF_A_LISTING)))
        yield from keys

    def delete(self, key: str, *, sha256: str) -> bool:
        """Remove an object."""
        self._count()
        return self._under.delete(key, sha256=sha256)


class _Counted:
    """A stream whose reads are counted."""

    def __init__(self, stream: BinaryIO, bucket: CountingBucket) -> None:
        self._stream, self._bucket = stream, bucket

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._bucket._count(requests=0, received=len(data))
        return data

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of a stream
        return getattr(self._stream, name)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *words: object) -> None:
        self._stream.close()


@contextlib.contextmanager
def watch(bucket: Bucket, otherwise: Traffic) -> Iterator[Traffic]:
    """Count the traffic with an S3 store below the client library; for other buckets return `otherwise`."""
    client = getattr(bucket, "_client", None)
    if client is None:
        yield otherwise
        return
    traffic, lock = Traffic(), threading.Lock()

    def sending(request: Any, event_name: str, **_: object) -> None:  # noqa: ANN401 - of botocore
        with lock:
            traffic.requests += 1
            # Once for each process it is found out whether the store heeds conditions on copies.
            copied = event_name.endswith(("CopyObject", "UploadPartCopy")) and "/_probes/" not in request.url
            traffic.copies += copied
            traffic.sent += int(request.headers.get("Content-Length", 0))

    def received(response_dict: Any, **_: object) -> None:  # noqa: ANN401 - of botocore
        with lock:
            traffic.received += int(response_dict["headers"].get("content-length", 0))

    client.meta.events.register("before-send.s3", sending)
    client.meta.events.register("response-received.s3.GetObject", received)
    try:
        yield traffic
    finally:
        client.meta.events.unregister("before-send.s3", sending)
        client.meta.events.unregister("response-received.s3.GetObject", received)
