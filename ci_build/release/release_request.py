"""Requests of release commands: gates, signing keys, releases and nights."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.cluster.cluster_request import ClusterRequest
from core.frozen import frozen

if TYPE_CHECKING:
    from ci_build.rocm.rocm_request import RocmStorage
    from core.http.client import Connect
    from promotion.gates.device.device_request import DeviceRequest
    from promotion.storage.bucket import Bucket
    from promotion.storage.object_keys import StagedSet

STRUCTURE = "structure"
"""Name that selects all gates that need no GPU."""
SERVE_PORT = 8000
"""Default port of `ci_build index serve`."""


@frozen
class SigningKey:
    """The key that signs evidence.

    Attributes:
        file: file of the key; None if the key is in the environment.
        text: the key, never shown; empty if the key is in a file.
        origin: option or variable that names the key.
        own: whether the key is the user's own, which is created on first use.
    """

    file: Path | None
    text: str = field(default="", repr=False)
    origin: str = ""
    own: bool = False


@frozen
class LedgerRequest:
    """A request to change a ledger: the key that signs, and the promoted source.

    Attributes:
        key: key that signs entries. None leaves them unsigned.
        actor: user or CI run, for the ledger.
        channel: expected channel of the index. Empty means that of its ledger.
        owner, reason: person who permits a promotion from an unprotected ref, and why.
        ci_commit, ci_ref: commit and full ref of the CI run. Empty outside of CI.
        heads: folder with the newest known entries of the bucket's ledgers. None keeps
            no record.
    """

    key: SigningKey | None = None
    actor: str = ""
    channel: str = ""
    owner: str = ""
    reason: str = ""
    ci_commit: str = ""
    ci_ref: str = ""
    heads: Path | None = None


class ReleaseStep(enum.StrEnum):
    """A part of a release, in order."""

    BUILD = "build"
    GATES = "gates"
    PROMOTE = "promote"
    CHECK = "check"


NO_URL = "none"
"""Value of --public-url that omits the check of the released index."""


@frozen
class DeviceStep:
    """The gate device as part of a night or a release, on the GPUs of this machine or of a cluster.

    Attributes:
        environ: environment of the tests on this machine.
        rocm: cache of ROCms, for the ROCm of a set.
        connect: opens the HTTP client that downloads it.
        cluster: cluster whose workers have the GPUs; None means this machine.
    """

    environ: Mapping[str, str] = field(repr=False)
    rocm: RocmStorage
    connect: Connect
    cluster: ClusterRequest | None = None


@frozen
class DeviceRun:
    """One run of the gate device on a staged set.

    Attributes:
        bucket_name: value of `--bucket`.
    """

    request: DeviceRequest
    step: DeviceStep
    staged: StagedSet
    bucket: Bucket
    bucket_name: str
    channel: str
    redo: bool = False


@frozen
class ReleaseOptions:
    """The way of a set from staging to users.

    Attributes:
        bucket: folder or URL of the bucket.
        channel: channel of the policy.
        corpus: corpus of the compile gate; empty selects the one that the policy
            requires.
        key: key that signs evidence.
        connect: opens the HTTP client that reads the released index.
        ledger: key that signs ledger entries, and the permission to promote from an
            unprotected ref.
        steps: steps to perform.
        public_url: URL at which users see the bucket; NO_URL omits the check, and empty
            serves a folder for it.
        trust_config: trust configuration of a private Sigstore; None uses the public
            one.
        allow_lower: whether to accept a version that pip would not select.
        jax_tests: JAX's test suite for the device gate; empty selects the suite of the
            set's commit.
        cache: the user's cache, which keeps the environments of installers; None
            installs them in every run.
        cluster: cluster that compiles programs for the gate compile; None means this
            machine.
        device: the gate device on this machine or a cluster; None leaves it to the jobs
            that the summary lists.
    """

    bucket: str
    channel: str
    corpus: str
    key: SigningKey
    connect: Connect
    ledger: LedgerRequest = LedgerRequest()
    steps: tuple[ReleaseStep, ...] = tuple(ReleaseStep)
    public_url: str = ""
    trust_config: Path | None = None
    allow_lower: bool = False
    jax_tests: str = ""
    cache: Path | None = None
    cluster: ClusterRequest | None = None
    device: DeviceStep | None = None
