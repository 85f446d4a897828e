"""A wheel set to build, as options request it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci_build.rocm.request import RocmSource, RocmStorage
from core.model import BuildRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelSetRequest:
    """A wheel set to build: its content, its ROCm, and its folders.

    Attributes:
        build: content of the set.
        rocm: ROCm to obtain and lock; None where only a manifest, or nothing, is known of it.
        rocm_manifest: a manifest, or the folder of a ROCm, whose manifest the set carries; None for none.
        storage: where ROCms are kept.
        registry: registry of builder images; empty uses that of images.toml.
        out: folder of the set.
        cache: folder for downloads and finished steps.
        rebuild: folder for everything that is built, when results in the cache must not be used; None uses the cache.
        own_commit: commit of this repository that the wheels record; empty detects it.
        dry_run: print the plan; download and write nothing.
    """

    build: BuildRequest
    rocm: RocmSource | None
    rocm_manifest: Path | None
    storage: RocmStorage
    registry: str
    out: Path
    cache: Path
    rebuild: Path | None = None
    own_commit: str = ""
    dry_run: bool = False

    @property
    def built(self) -> Path:
        """Folder for everything that is built."""
        return self.rebuild or self.cache
