"""The cluster that a command uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRequest:
    """Options `--cluster…` of a command.

    Attributes:
        address: tcp://HOST:PORT or tls://HOST:PORT of a scheduler, or `slurm`.
        store: folder that all machines share, or URL of a bucket; files of tasks go through it.
        ca: CA bundle that verifies scheduler and workers; empty for tcp.
        cert: own certificate; empty for tcp.
        key: private key of the certificate; empty if it is in `cert`.
    """

    address: str
    store: str
    ca: str = ""
    cert: str = ""
    key: str = ""
