"""`ci_build cluster`: the processes of a cluster."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State
from ci_build.cli.options.cluster_options import (
    check_address,
    parse_resources,
    tls_files,
    tls_options,
)
from ci_build.cli.options.environment import child_environment
from ci_build.cluster.cluster_request import ClusterRequest

_WORKER_TIMEOUT = 120.0
_PATIENCE = 300.0
_NAME = click.option(
    "--name",
    metavar="NAME",
    help="Name of the worker in reports.  [default: host and process]",
)
_CACHE = click.option(
    "--cache-dir",
    metavar="DIR",
    help="Cache of inputs, and of running tasks.  [default: user's]",
)


@cloup.group()
def cluster() -> None:
    """Run the scheduler or a worker of a cluster.

    Whoever reaches a port of a tcp:// cluster can run programs on it: use tls://
    outside of a trusted network.
    """


@cluster.command("scheduler")
@click.argument("address", metavar="tcp://HOST:PORT|tls://HOST:PORT")
@click.option(
    "--worker-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=_WORKER_TIMEOUT,
    show_default=True,
    help="Time after which a silent worker is lost and its tasks run again.",
)
@tls_options
@click.pass_obj
def scheduler(
    state: State, /, address: str, worker_timeout: float, **tls: str | None
) -> None:
    """Run a scheduler that listens on an address until it is interrupted."""
    # Start-up time: tasks need the packages of gates and kernels.
    from ci_build.cluster.cluster_processes import run_scheduler

    request = _request(address, tls, any_port=True)
    run_scheduler(request, worker_timeout=worker_timeout, report=state.reporter().line)


@cluster.command("worker")
@click.argument("address", metavar="tcp://HOST:PORT|tls://HOST:PORT")
@click.option(
    "--resources",
    metavar="NAME=N,…",
    multiple=True,
    help="Resources of the worker, such as gfx942=8.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    help="Number of concurrent tasks.  [default: cores]",
)
@click.option(
    "--memory",
    metavar="MB",
    type=click.IntRange(1),
    help="Memory of all tasks together.  [default: most of the free memory]",
)
@click.option(
    "--listen-host",
    metavar="HOST",
    default="",
    help="Own host name or address.  [default: detected]",
)
@click.option(
    "--patience",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=_PATIENCE,
    show_default=True,
    help="Time without a scheduler after which the worker ends.",
)
@_NAME
@_CACHE
@tls_options
@click.pass_obj
def worker(
    state: State,
    /,
    address: str,
    resources: tuple[str, ...],
    jobs: int | None,
    memory: int | None,
    listen_host: str,
    patience: float,
    name: str | None,
    cache_dir: str | None,
    **tls: str | None,
) -> None:
    """Run a worker of the scheduler at an address until it is interrupted.

    The worker runs tasks of clients that have the same version of this program and the
    same Python.
    """
    # Start-up time: tasks need the packages of gates and kernels.
    from ci_build.cluster.cluster_processes import WorkerOffer, run_worker
    from ci_build.cluster.worker import WorkerSetup, default_name
    from kernels.api import Capacity

    request = _request(address, tls)
    offered = parse_resources(resources)
    free = Capacity()
    cache = (
        Path(state.settings({"cache_dir": cache_dir}).cache_dir).absolute() / "cluster"
    )
    cache.mkdir(parents=True, exist_ok=True)
    reporter = state.reporter()
    setup = WorkerSetup(
        name=name or default_name(),
        cache=cache,
        environment=child_environment(),
        report=reporter.line,
    )
    offer = WorkerOffer(
        jobs=jobs or free.jobs,
        memory_mb=memory or free.memory_mb,
        resources=offered,
        patience=patience,
        host=listen_host,
    )
    run_worker(request, setup, offer)


def _request(
    address: str, tls: dict[str, str | None], *, any_port: bool = False
) -> ClusterRequest:
    values = {name: value or "" for name, value in tls.items()}
    return ClusterRequest(
        address=check_address(address, any_port=any_port),
        store="",
        slurm=None,
        **tls_files(address, values),
    )
