"""The request for a wheel set."""

from __future__ import annotations

from pathlib import Path

from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.rocm.rocm_request import RocmRequest, RocmStorage
from core.frozen import frozen
from core.model import BuildRequest


@frozen
class WheelSetRequest:
    """A wheel set to build: its content, its ROCm, and its folders.

    Attributes:
        build: content of the set.
        rocm: ROCm to obtain and lock; None if no ROCm was given.
        rocm_manifest: file or ROCm folder from which the manifest in the set is read;
            None if not given.
        storage: settings of the cache of ROCms.
        registry: registry of built images; empty if none is given.
        out: folder of the set.
        cache: folder for downloads and finished steps.
        rebuild: folder for build results if cached results must not be used; None uses
            `cache`.
        own_commit: commit of this repository that the wheels record; empty detects it.
        hash_rocm: record the wheels of the ROCm in its index with their digests.
        dry_run: print the plan; download and write nothing.
        cluster: machines that compile kernels; None for this machine.
    """

    build: BuildRequest
    rocm: RocmRequest | None
    rocm_manifest: Path | None
    storage: RocmStorage
    registry: str
    out: Path
    cache: Path
    rebuild: Path | None = None
    own_commit: str = ""
    hash_rocm: bool = False
    dry_run: bool = False
    cluster: ClusterRequest | None = None

    @property
    def built(self) -> Path:
        """Folder for build results."""
        return self.rebuild or self.cache
