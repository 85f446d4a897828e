"""The claim of an index: only one promotion, repair or sweep changes its files at a time.

A promotion copies files before its ledger entry names them, and a repair removes files
that no entry names. The claim is one object, replaced by compare-and-swap
(`Bucket.put_if_match`: If-Match and If-None-Match on S3, a rename under the lock of the
folder elsewhere). It expires, so that a killed holder blocks others for TERM at most.

A holder that was overtaken after its time writes nothing:

- It confirms its claim before each copy and each removal. In the second half of the
  term, this is a compare-and-swap, which fails after a takeover; in the first half,
  nobody may take the claim.
- The ledger is the fence. A promotion appends its set and a repair, before it removes
  anything, the keys of the files; both first read the end of the ledger, then renew the
  claim by compare-and-swap, and then create the next entry. Its key can be created only
  once, so either the late entry exists when the new holder decides what to remove or to
  promote, or the new holder's entry makes the late one impossible.

A single request that is still on its way after half the term is not fenced; S3 refuses
signed requests that are late.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from core.errors import BucketError, BusyError, FormatError
from core.frozen import frozen
from core.records import read_json
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.object_keys import ReleasedIndex

Clock = Callable[[], datetime]
TERM = timedelta(minutes=10)
"""Time after which a claim that its holder did not renew can be taken."""
_FREE = ""
_NEVER = datetime.min.replace(tzinfo=UTC)


@frozen
class _ClaimFile:
    """Content of the stored object.

    Attributes:
        holder: kind of work and a random name. Empty if the claim is free.
        until: time after which others may take the claim.
    """

    holder: str = _FREE
    until: datetime = _NEVER


class Claim:
    """A claim on an index; threads may share it.

    Args:
        work: kind of work, for the messages to others.
    """

    def __init__(
        self, bucket: Bucket, released: ReleasedIndex, work: str, *, now: Clock
    ) -> None:
        self._bucket = bucket
        self._released = released
        self._now = now
        self._holder = f"{work} {secrets.token_hex(8)}"
        self._until = _NEVER
        self._etag: str | None = None
        self._lock = threading.Lock()

    def confirm(self) -> None:
        """Raise BusyError if another process may have taken the claim.

        Call it before each write.
        """
        with self._lock:
            if self._now() >= self._until - TERM / 2:
                self._write(self._holder)

    def renew(self) -> None:
        """Extend the claim by compare-and-swap; BusyError if another process took it.

        Call it before the entry.
        """
        with self._lock:
            self._write(self._holder)

    def take(self) -> None:
        """Take the claim if it is free or expired; BusyError otherwise."""
        stored, etag = self._read()
        now = self._now()
        # A time that no holder writes is damage or a forgery, and must not block the
        # index.
        if stored.holder and now < stored.until <= now + 2 * TERM:
            work = stored.holder.partition(" ")[0]
            raise BusyError(
                f"Another {work} of {self._released.index} is running, or was killed.",
                hint=(
                    "Run the command again when it has ended, or after"
                    f" {stored.until:%H:%M} UTC."
                ),
            )
        with self._lock:
            self._etag = etag
            self._write(self._holder)

    def release(self) -> None:
        """Free the claim, unless another process has taken it."""
        # A claim that cannot be freed expires.
        with contextlib.suppress(BucketError, BusyError):
            stored, etag = self._read()
            if stored.holder == self._holder:
                self._etag = etag
                self._write(_FREE)

    def _read(self) -> tuple[_ClaimFile, str | None]:
        """Return the stored claim, and the etag of the object if there is one."""
        found = self._bucket.read(self._released.claim)
        if found is None:
            return _ClaimFile(), None
        data, info = found
        try:
            stored = read_json(data, _ClaimFile, self._released.claim)
            return replace(stored, until=stored.until.astimezone(UTC)), info.etag
        except (FormatError, OverflowError):
            return _ClaimFile(), info.etag  # damage blocks nobody

    def _write(self, holder: str) -> None:
        until = self._now() + TERM
        key = self._released.claim
        data = (
            f"{json.dumps({'holder': holder, 'until': until.isoformat()})}\n".encode()
        )
        try:
            self._etag = self._bucket.put_if_match(key, data, etag=self._etag).etag
        except ConflictError as error:
            # A store refuses the repetition of a request whose response was lost,
            # though it was done.
            found = self._bucket.read(key)
            if found is None or found[0] != data:
                text = (
                    f"Another process has taken the claim of {self._released.index}."
                    " Nothing more is written."
                )
                raise BusyError(text, hint="Run the command again.") from error
            self._etag = found[1].etag
        self._until = until


@contextlib.contextmanager
def claimed(
    bucket: Bucket, released: ReleasedIndex, work: str, *, now: Clock
) -> Iterator[Claim]:
    """Hold the claim of an index for the duration of the block.

    Args:
        work: kind of work, for the messages to others.

    Raises:
        BusyError: another process holds the claim.
    """
    claim = Claim(bucket, released, work, now=now)
    try:
        claim.take()
        yield claim
    finally:
        claim.release()
