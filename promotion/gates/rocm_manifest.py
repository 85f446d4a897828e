"""The manifest of the ROCm that a staged set carries."""

from __future__ import annotations

from ci_build.errors import GateError
from ci_build.wheel.manifest import ROCM_MANIFEST, Manifest, load_manifest
from promotion.bucket import sha256_of
from promotion.gates import Room


def set_manifest(room: Room) -> Manifest | None:
    """Read it; None where the set carries none.

    Raises:
        GateError: it is not the one that wheels.json names.
        InputError: it cannot be read.
    """
    wanted = room.wheel_set.files.get(ROCM_MANIFEST)
    if wanted is None:
        return None
    data = room.bucket.get(room.staged.file(ROCM_MANIFEST))
    if (found := sha256_of(data)) != wanted:
        raise GateError(f"The staged {ROCM_MANIFEST} has sha256 {found}, not {wanted}.", hint="Stage the set again.")
    return load_manifest(data)
