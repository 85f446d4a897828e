"""The cluster that a command uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SLURM = "slurm"
"""Address of a cluster whose workers are jobs of Slurm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRequest:
    """Options `--cluster…` of a command.

    Attributes:
        address: tcp://HOST:PORT or tls://HOST:PORT of a scheduler, or SLURM.
        store: folder that all machines see at the same path, for inputs of tasks.
        jobs: number of jobs of Slurm.
        environment: environment of the programs of Slurm.
        secrets: variables that the jobs do not inherit.
    """

    address: str
    store: Path
    jobs: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
