"""Clusters that a client starts itself, for as long as it runs: schedulers of batch systems."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ci_build.cluster.cluster_request import ClusterRequest
from core.model import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A started cluster.

    Attributes:
        address: what `distributed.Client` takes as address.
        expects_workers: called from time to time; returns whether workers are still to
            come, and raises MachineError if none is left.
    """

    address: Any
    expects_workers: Callable[[], bool] = lambda: False


Launcher = Callable[[ClusterRequest, Progress], AbstractContextManager[Launched]]
"""Starts a cluster for the time of its context."""


def _slurm(
    request: ClusterRequest, progress: Progress
) -> AbstractContextManager[Launched]:
    # Start-up time: only `--cluster slurm` needs it.
    from ci_build.cluster.slurm import slurm_cluster

    return slurm_cluster(request, progress)


SLURM = "slurm"
LAUNCHERS: dict[str, Launcher] = {SLURM: _slurm}
"""Value of `--cluster` -> launcher."""
