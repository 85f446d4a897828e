"""Connection of a command to its cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from ci_build.cluster.cluster_request import ClusterRequest
from core.errors import MachineError
from core.model import Progress
from core.tasks import Tasks


@contextmanager
def connected(
    request: ClusterRequest | None, progress: Progress
) -> Iterator[Tasks | None]:
    """Provide the cluster of a command; None for this machine.

    Raises:
        MachineError: no scheduler answers, or Dask is not installed.
        RequestError: Slurm refuses the jobs.
    """
    if request is None:
        yield None
        return
    require_packages()
    # Start-up time: only clusters need Dask.
    from ci_build.cluster.cluster_client import open_cluster

    with open_cluster(request, progress) as cluster:
        yield cluster


def require_packages() -> None:
    """Raise MachineError if the packages for clusters are not installed."""
    for name in ("distributed", "dask_jobqueue"):
        if importlib.util.find_spec(name) is None:
            raise MachineError(
                f"A cluster needs a package that is not installed: {name}.",
                hint=(
                    "Run `.venv/bin/python -m pip install --require-hashes -r"
                    " build/requirements-cluster.lock`."
                ),
            )
