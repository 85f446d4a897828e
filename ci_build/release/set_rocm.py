"""The ROCm that a set was built with, for the tests of the set on GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.rocm.lock import RocmLock, parse_lock
from ci_build.rocm.rocm_request import (
    PipIndex,
    RocmRequest,
    RocmStorage,
    TarballUrl,
    check_request,
    parse_source,
)
from ci_build.rocm.source import obtain_rocm
from core.digests import sha256_of
from core.errors import BucketError, InputError, RequestError
from core.model import ROCM_LOCK
from core.process import Runner
from core.report import Reporter
from promotion.gates.device.device_request import DeviceRequest
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect


def with_rocm_of_set(
    request: DeviceRequest,
    staged: StagedSet,
    bucket: Bucket,
    storage: RocmStorage,
    reporter: Reporter,
    runner: Runner,
    connect: Connect,
) -> DeviceRequest:
    """Return a request of `--rocm=set` with the root of the set's ROCm.

    The request stays unchanged if the set has no lock, or a lock of a ROCm that only
    its builder has. The gate then loads the ROCm that the loader finds; in both cases
    it compares the loaded libraries with the set's manifest.

    Raises:
        BucketError: the lock is missing, or has other bytes than were staged.
        InputError, RequestError: the ROCm cannot be obtained, or differs from the lock.
    """
    if not request.rocm_of_set:
        return request
    lock = _lock_of(staged, bucket)
    source = parse_source(lock.source) if lock else None
    if lock is None or not isinstance(source, TarballUrl | PipIndex):
        why = "was built with a ROCm that only its builder has"
        if lock is None:
            why = "has no lock of its ROCm"
        reporter.line(f"{staged} {why}: the tests use the ROCm that the loader finds.")
        return request
    # A build needs only some of the files; tests also load rocBLAS's kernels.
    wanted = RocmRequest(
        source=source,
        version=lock.version,
        lock=Path(ROCM_LOCK),  # for messages; it is not read again
        pinned=lock,
        locked=True,
        full=True,
    )
    try:
        check_request(wanted)
        rocm = obtain_rocm(wanted, storage, reporter, runner, connect)
    except (InputError, RequestError) as error:
        raise type(error)(
            f"The ROCm of {staged} cannot be used: {error.message}",
            hint="Restore it, or give another one with --rocm.",
        ) from error
    return replace(request, rocm=rocm.root)


def _lock_of(staged: StagedSet, bucket: Bucket) -> RocmLock | None:
    sha256 = read_staged(bucket, staged).files.get(ROCM_LOCK)
    if sha256 is None:
        return None
    data = bucket.get(staged.file(ROCM_LOCK))
    if sha256_of(data) != sha256:
        raise BucketError(
            f"{ROCM_LOCK} of {staged} has other bytes than were staged.",
            hint="Stage the set again.",
        )
    return parse_lock(data, f"{ROCM_LOCK} of {staged}")
