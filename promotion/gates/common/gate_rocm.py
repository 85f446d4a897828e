"""The ROCm that gates compare a set with.

The manifest in the set, or a tree that the user names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from core.digests import sha256_of
from core.errors import GateError
from promotion.gates.common.gate_context import GateContext
from wheelkit.rocm_manifest import (
    ROCM_MANIFEST,
    RocmManifest,
    dump_manifest,
    load_manifest,
)


@dataclass(frozen=True, kw_only=True)
class RocmTree:
    """A ROCm installation.

    Attributes:
        folder: absolute path of the root.
        manifest: exports of the libraries.
    """

    folder: Path
    manifest: RocmManifest

    @property
    def library_folders(self) -> tuple[Path, ...]:
        """Return the directories with libraries, the main one first."""
        places = {
            PurePosixPath(library.path).parent
            for library in self.manifest.libraries.values()
        }
        return tuple(
            self.folder / place
            for place in sorted(places, key=lambda place: (len(place.parts), place))
        )

    @cached_property
    def sha256(self) -> str:
        """Return the digest of the manifest, so that evidence is not reused for another ROCm."""
        return manifest_digest(self.manifest)


def manifest_digest(manifest: RocmManifest) -> str:
    """Return the SHA-256 of a manifest, which covers all libraries."""
    return sha256_of(dump_manifest(manifest))


def set_manifest(context: GateContext) -> RocmManifest | None:
    """Read the ROCm manifest of the staged set; None if the set has no manifest.

    Raises:
        GateError: the manifest's sha256 differs from wheels.json.
        InputError: the manifest cannot be parsed.
    """
    expected = context.wheel_set.files.get(ROCM_MANIFEST)
    if expected is None:
        return None
    data = context.bucket.get(context.staged.file(ROCM_MANIFEST))
    if (actual := sha256_of(data)) != expected:
        raise GateError(
            f"The staged {ROCM_MANIFEST} has sha256 {actual}, but wheels.json has"
            f" {expected}.",
            hint="Stage the set again.",
        )
    return load_manifest(data)
