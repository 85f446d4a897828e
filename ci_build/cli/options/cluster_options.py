"""Options of a cluster."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloup

from ci_build.cli.options.environment import (
    LEDGER_KEY,
    SIGNING_KEY,
    child_environment,
)
from ci_build.cli.options.shared_options import Function, option, refuse_typed
from ci_build.cluster.cluster_request import SLURM, ClusterRequest
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import RequestError

CLUSTER_VARIABLES = ("cluster", "cluster_store")
"""Variables of the environment, without prefix and in lower case."""
_ADDRESS = re.compile(r"(?:tcp|tls)://.+:[0-9]{1,5}")
_JOBS = re.compile(rf"{SLURM}(?::([1-9][0-9]{{0,4}}))?")


def cluster_options(function: Function) -> Function:
    """Add the options of a cluster to a command."""
    options = (
        option(
            f"--cluster tcp://HOST:PORT|tls://HOST:PORT|{SLURM}:JOBS",
            (
                "Scheduler of a Dask cluster that does the work, or jobs of Slurm. "
                " [default: this machine]"
            ),
            variable=True,
        ),
        option(
            "--cluster-store DIR",
            "Folder that all machines see at the same path.",
            variable=True,
        ),
    )
    return cloup.option_group("Cluster options", *options)(function)


def cluster_request(given: dict[str, Any]) -> ClusterRequest | None:
    """Return the cluster of a command, and remove its options from the given ones.

    None for this machine.

    Raises:
        RequestError: the options contradict each other, or have no effect.
    """
    address = str(given.pop("cluster", None) or "")
    store = str(given.pop("cluster_store", None) or "")
    if not address:
        refuse_typed(("cluster_store",), "without --cluster", "Give --cluster too.")
        return None
    slurm = _JOBS.fullmatch(address)
    if slurm is None and not _ADDRESS.fullmatch(address):
        raise RequestError(
            f"--cluster is invalid: {address!r}.",
            hint=f"Write it like tls://HOST:8786, tcp://HOST:8786 or {SLURM}:16.",
        )
    if not store:
        raise RequestError(
            "--cluster needs --cluster-store, where workers read the inputs of tasks.",
            hint="Name a folder that all machines see at the same path.",
        )
    jobs = 0
    if slurm is not None:
        address = SLURM
        jobs = int(slurm[1] or 1)
    return ClusterRequest(
        address=address,
        store=Path(store).absolute(),
        jobs=jobs,
        environment=child_environment(),
        secrets=(SIGNING_KEY, LEDGER_KEY),
    )


def with_cluster(
    request: WheelSetRequest, cluster: ClusterRequest | None, *, other_use: bool = False
) -> WheelSetRequest:
    """Return a request whose kernels the workers of a cluster compile.

    Args:
        other_use: whether the command also uses the cluster for something else.

    Raises:
        RequestError: the set has no kernels, so that --cluster has no effect.
    """
    if cluster is None or request.build.kernels is not None:
        return replace(request, cluster=cluster)
    if not other_use:
        hint = "Give --kernels, or omit --cluster."
        refuse_typed(("cluster",), "without kernels", hint)
    return request
