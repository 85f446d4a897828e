"""Counter of requests to a bucket."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from promotion.storage.bucket import Bucket, Data, size_of

_KEYS_OF_A_LISTING = 1000


@dataclass(kw_only=True, slots=True)
class Traffic:
    """Number of requests, and bytes of sent and received bodies."""

    requests: int = 0
    sent: int = 0
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, requests: int = 0, sent: int = 0, received: int = 0) -> None:
        """Add to the counters, thread-safe."""
        with self._lock:
            self.requests += requests
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
            self._traffic.add(requests=1, sent=sent)
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
