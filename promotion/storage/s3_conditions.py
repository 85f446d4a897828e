"""The conditions that an S3 store honours, and requests that it refuses while busy.

A store that ignores conditions overwrites objects silently, so each process first tries
conditions on a small object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from core.errors import BucketError, BusyError
from promotion.storage.bucket import AbsentError, ConflictError
from promotion.storage.s3_client import RefusalError

PROBES = "_probes"
_TEXT = b"Shows whether this store honours conditional writes.\n"
_NEVER = '"00000000000000000000000000000000"'
_RACES = 8
_RACE_SECONDS = 0.1


class Conditions:
    """The conditions that a store honours.

    Args:
        call: function that sends a request: operation, key, and further words of boto3.
        source_of: function that returns the source of a copy of a key.
    """

    def __init__(
        self,
        call: Callable[..., Mapping[str, Any]],
        source_of: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._call = call
        self._source_of = source_of
        self._writes: set[str] = set()
        self._copies: dict[str, bool] = {}

    def require_on_writes(self, key: str) -> None:
        """Raise BucketError if the store ignores conditions of writes."""
        channel = key.partition("/")[0]
        if channel in self._writes:
            return
        for condition in ({"IfNoneMatch": "*"}, {"IfMatch": _NEVER}):
            if not self._refuses(
                "put_object", _probe(channel), Body=_TEXT, **condition
            ):
                name = self._source_of(key)["Bucket"]
                raise BucketError(
                    f"The store of {name} ignores If-None-Match or If-Match, so writers"
                    " could overwrite each other.",
                    hint="Use another store.",
                )
        self._writes.add(channel)

    def on_copies(self, key: str) -> bool:
        """Return whether the store honours conditional copies."""
        channel = key.partition("/")[0]
        if channel not in self._copies:
            self.require_on_writes(key)
            probe = _probe(channel)
            self._copies[channel] = self._refuses(
                "copy_object",
                f"{probe}-copied",
                CopySource=self._source_of(probe),
                IfNoneMatch="*",
            )
        return self._copies[channel]

    def _refuses(self, operation: str, probe: str, **words: Any) -> bool:  # noqa: ANN401 - words of boto3
        """Return whether the store refuses writes to an existing object twice.

        A gateway may cause one refusal.
        """
        refusals = 0
        for _ in range(3):
            try:
                unless_busy(probe, lambda: self._call(operation, probe, **words))
            except ConflictError:
                refusals += 1
            except AbsentError:
                refusals += (
                    operation == "put_object"
                )  # otherwise the source of a copy was removed
            except RefusalError as refusal:
                if refusal.status != 501:
                    raise
                return False
            if refusals == 2:
                return True
        return False


def unless_busy(key: str, send: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Send a request, and repeat it while the store is busy with the same key.

    BusyError if it stays busy.
    """
    for attempt in range(_RACES):
        try:
            return send()
        except RefusalError as refusal:
            if refusal.status != 409:
                raise
            time.sleep(_RACE_SECONDS * 2**attempt)
    raise BusyError(
        f"{key} is being written by another process.", hint="Run the command again."
    )


def beside(kind: str, key: str) -> str:
    """Return the key of a probe or claim for `key` in its channel.

    No index name starts with an underscore.
    """
    channel, _, rest = key.partition("/")
    return f"{channel}/{kind}/{rest}"


def _probe(channel: str) -> str:
    return beside(PROBES, f"{channel}/conditional-writes")
