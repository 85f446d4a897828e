"""Child process that runs one operation of promotion and may be killed at one of its writes.

    python -m tests.support.promotion_child BUCKET promote|rollback|retire|sweep|publish ARGUMENT [WRITE]

BUCKET is a folder or an s3:// URL; ARGUMENT the set's digest, the target entry of a rollback, or empty; WRITE the
number of the write, from 0, after which the process dies.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from promotion.index.operations import rollback
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply
from promotion.promote import promote
from promotion.storage.bucket import Bucket
from promotion.storage.bucket_url import open_bucket
from promotion.storage.keys import StagedSet
from tests.support.memory_bucket import Fault, FaultyBucket
from tests.support.multi_arch import NOW, POLICY, RELEASED

T = TypeVar("T")
ME, WHY = "child", "to see"


class KilledAfter(FaultyBucket):
    """A bucket that kills this process after one of its writes."""

    def __init__(self, under: Bucket, at: int) -> None:
        super().__init__(under, Fault.KILLED, at)

    def _write(self, write: Callable[[], T]) -> T:
        mine, self.writes = self.writes == self._at, self.writes + 1
        result = write()
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def act(bucket: Bucket, operation: str, argument: str) -> None:
    """Run an operation at a fixed time, so that a second run can be compared with the first."""
    if operation == "promote":
        staged = StagedSet(index=RELEASED.index, digest=argument)
        promote(bucket, staged, POLICY, actor=ME, now=lambda: NOW, allow_lower=True)
    elif operation == "rollback":
        rollback(bucket, RELEASED, to=int(argument), reason=WHY, actor=ME, now=lambda: NOW)
    elif operation in ("retire", "sweep"):
        days = {"retire": 1, "sweep": 3}[operation]
        apply(bucket, RELEASED, RetentionRule(days=0.5, grace_days=1), actor=ME, now=lambda: NOW + timedelta(days=days))
    else:
        publish(bucket, RELEASED)


if __name__ == "__main__":
    where, what, about, *die = sys.argv[1:]
    opened = open_bucket(where)
    act(KilledAfter(opened, int(die[0])) if die else opened, what, about)
