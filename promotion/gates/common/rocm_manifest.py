"""The ROCm that a gate compares a set with: by the manifest that the set carries, or a tree that the user names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from core.errors import GateError
from promotion.gates.common.gate import GateContext
from promotion.storage.bucket import sha256_of
from wheelkit.rocm_manifest import ROCM_MANIFEST, RocmManifest, dump_manifest, load_manifest


@dataclass(frozen=True, kw_only=True)
class RocmTree:
    """A real ROCm.

    Attributes:
        folder: its root, absolute: processes with other working directories use it.
        manifest: what its libraries export.
    """

    folder: Path
    manifest: RocmManifest

    @property
    def library_folders(self) -> tuple[Path, ...]:
        """Where its libraries lie, the main folder first."""
        places = {PurePosixPath(library.path).parent for library in self.manifest.libraries.values()}
        return tuple(self.folder / place for place in sorted(places, key=lambda place: (len(place.parts), place)))

    @cached_property
    def sha256(self) -> str:
        """Of its manifest: what was seen with it is no answer for another one, or for what is there later."""
        return manifest_digest(self.manifest)


def manifest_digest(manifest: RocmManifest) -> str:
    """SHA-256 of a manifest; it covers names, sizes, build ids and symbols of all libraries."""
    return hashlib.sha256(dump_manifest(manifest)).hexdigest()


def set_manifest(context: GateContext) -> RocmManifest | None:
    """Read it; None where the set carries none.

    Raises:
        GateError: it is not the one that wheels.json names.
        InputError: it cannot be read.
    """
    wanted = context.wheel_set.files.get(ROCM_MANIFEST)
    if wanted is None:
        return None
    data = context.bucket.get(context.staged.file(ROCM_MANIFEST))
    if (found := sha256_of(data)) != wanted:
        raise GateError(f"The staged {ROCM_MANIFEST} has sha256 {found}, not {wanted}.", hint="Stage the set again.")
    return load_manifest(data)
