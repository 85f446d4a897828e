"""Counters of requests to a bucket and to an S3 store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from promotion.storage.bucket import Bucket, Data, size_of

_KEYS_OF_A_LISTING = 1000


@dataclass(kw_only=True, slots=True)
class Traffic:
    """Numbers of requests and copy requests, and bytes of sent and received bodies."""

    requests: int = 0
    copies: int = 0
    sent: int = 0
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(
        self, *, requests: int = 0, copies: int = 0, sent: int = 0, received: int = 0
    ) -> None:
        """Add to the counters, thread-safe."""
        with self._lock:
            self.requests += requests
            self.copies += copies
            self.sent += sent
            self.received += received


def counted(bucket: Bucket) -> tuple[Bucket, Traffic]:
    """Return a bucket that counts its calls, and the counters.

    A listing is one request for each 1,000 keys.
    """
    traffic = Traffic()
    return cast("Bucket", _CountedBucket(bucket, traffic)), traffic


class _CountedBucket:
    def __init__(self, bucket: Bucket, traffic: Traffic) -> None:
        self._bucket = bucket
        self._traffic = traffic

    def __getattr__(self, name: str) -> object:
        method = getattr(self._bucket, name)

        def call(key: str, *more: object, **words: object) -> object:
            if name == "list":
                keys = list(method(key, **words))
                self._traffic.add(requests=max(1, -(-len(keys) // _KEYS_OF_A_LISTING)))
                return iter(keys)
            sent = size_of(cast("Data", more[0])) if name.startswith("put_") else 0
            self._traffic.add(requests=1, copies=name == "copy", sent=sent)
            result = method(key, *more, **words)
            if name == "open":
                return _CountedStream(result, self._traffic)
            match result:
                case bytes() as data:
                    self._traffic.add(received=len(data))
                case (bytes() as data, _):
                    self._traffic.add(received=len(data))
            if name == "fetch":
                self._traffic.add(received=result.stat().st_size)
            return result

        return call


class _CountedStream:
    def __init__(self, stream: BinaryIO, traffic: Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._traffic.add(received=len(data))
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def __enter__(self) -> _CountedStream:
        return self

    def __exit__(self, *words: object) -> None:
        self._stream.close()


@contextlib.contextmanager
def watch(bucket: Bucket, otherwise: Traffic) -> Iterator[Traffic]:
    """Count the requests that the client library sends to an S3 store.

    For other buckets, yield `otherwise`.
    """
    client = getattr(bucket, "_client", None)
    if client is None:
        yield otherwise
        return
    traffic = Traffic()

    def sending(request: Any, event_name: str, **_: object) -> None:  # noqa: ANN401 - of botocore
        # Do not count the copy that checks, once per process, whether the store honours
        # conditions on copies.
        copied = (
            event_name.endswith(("CopyObject", "UploadPartCopy"))
            and "/_probes/" not in request.url
        )
        traffic.add(
            requests=1,
            copies=copied,
            sent=int(request.headers.get("Content-Length", 0)),
        )

    def received(response_dict: Any, **_: object) -> None:  # noqa: ANN401 - of botocore
        traffic.add(received=int(response_dict["headers"].get("content-length", 0)))

    client.meta.events.register("before-send.s3", sending)
    client.meta.events.register("response-received.s3.GetObject", received)
    try:
        yield traffic
    finally:
        client.meta.events.unregister("before-send.s3", sending)
        client.meta.events.unregister("response-received.s3.GetObject", received)
