"""The processes of a cluster: one scheduler, and any number of workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.dask import dask_module, quiet, security_of
from ci_build.cluster.task_files import MOST_TRIES
from ci_build.cluster.task_run import MEMORY
from ci_build.cluster.worker import WorkerSetup, WorkerState, become_worker
from core.errors import MachineError
from core.process import LineSink

_NO_PAGES = "127.0.0.1:0"
"""Address of Dask's pages about itself, which need no password: they stay on the machine."""
_LOOK_SECONDS = 1.0
_LEAVE_SECONDS = 10.0
"""Time in which clients read the answers of a worker that ends itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOffer:
    """Resources and limits of a worker.

    Attributes:
        jobs: number of concurrent tasks.
        memory_mb: megabytes of memory for all tasks together.
        resources: further resources, such as {"gfx942": 8}.
        patience: seconds without a scheduler after which the worker ends.
        host: address on which others reach this worker; empty for the one that leads to
            the scheduler.
    """

    jobs: int
    memory_mb: int
    resources: Mapping[str, float] = field(default_factory=dict)
    patience: float = 300.0
    host: str = ""


def run_scheduler(
    request: ClusterRequest, *, worker_timeout: float, report: LineSink
) -> None:
    """Run a scheduler until it is interrupted.

    Args:
        request: `address` is the one to listen on; port 0 selects a free port.
        worker_timeout: seconds without a sign of life after which a worker is lost.

    Raises:
        MachineError: the address cannot be used, or the packages for clusters are not
            installed.
    """
    distributed = dask_module("distributed")
    config = dask_module("dask.config")
    config.set({"distributed.scheduler.worker-ttl": f"{worker_timeout}s"})
    quiet()

    async def serve() -> None:
        # Clients count tries themselves, so that a task which waited on lost workers is
        # not taken for their murderer.
        scheduler = distributed.Scheduler(
            host=request.address,
            security=security_of(request),
            dashboard=False,
            dashboard_address=_NO_PAGES,
            allowed_failures=10 * MOST_TRIES,
        )
        async with scheduler:
            report(f"scheduler at {scheduler.address}")
            await scheduler.finished()

    try:
        asyncio.run(serve())
    except OSError as error:
        raise MachineError(
            f"A scheduler cannot listen on {request.address}: {error}.",
            hint="Choose another address or port.",
        ) from error


def run_worker(request: ClusterRequest, setup: WorkerSetup, offer: WorkerOffer) -> None:
    """Run a worker until it is interrupted; it waits for a scheduler that was restarted.

    Raises:
        MachineError: there is no scheduler for a long time, or this machine can run no
            more tasks.
    """
    distributed = dask_module("distributed")
    dask_module("dask.config").set({"distributed.comm.timeouts.connect": "10s"})
    quiet()
    state = become_worker(setup)
    resources = {setup.identity: 1.0, MEMORY: float(offer.memory_mb), **offer.resources}

    async def serve() -> None:
        last = time.monotonic()
        while not state.unfit:
            try:
                async with _worker(
                    distributed, request, setup, offer, resources
                ) as worker:
                    setup.report(f"worker {setup.name} at {worker.address}")
                    await _until_end(worker, state)
                last = time.monotonic()
            except (OSError, TimeoutError, RuntimeError, ValueError) as error:
                if time.monotonic() - last > offer.patience:
                    raise MachineError(
                        f"The scheduler {request.address} cannot be reached:"
                        f" {error.__cause__ or error}.",
                        hint="Check the address and the certificates.",
                    ) from error
            if not state.unfit:
                setup.report(
                    f"worker {setup.name} waits for the scheduler {request.address}"
                )
                await asyncio.sleep(min(2.0, offer.patience / 4))

    asyncio.run(serve())
    _refuse(state)


async def _until_end(worker: Any, state: WorkerState) -> None:  # noqa: ANN401 - a class of Dask
    """Wait until the scheduler ends a worker, or for a short time after its machine became unfit.

    The client asks the scheduler to end an unfit worker (`TaskRun`). Dask refuses that
    while the worker holds an answer and no other worker can take it:
    https://distributed.dask.org/en/stable/active_memory_manager.html
    """
    finished = asyncio.ensure_future(worker.finished())
    while not state.unfit and not finished.done():
        await asyncio.wait([finished], timeout=_LOOK_SECONDS)
    await asyncio.wait([finished], timeout=_LEAVE_SECONDS)


def _worker(
    distributed: Any,  # noqa: ANN401 - a module of Dask
    request: ClusterRequest,
    setup: WorkerSetup,
    offer: WorkerOffer,
    resources: Mapping[str, float],
) -> Any:  # noqa: ANN401 - a class of Dask
    """Return an unstarted worker in this process.

    Tasks run processes of their own, so that it needs no nanny.
    """
    return distributed.Worker(
        request.address,
        name=setup.name,
        nthreads=offer.jobs,
        resources=dict(resources),
        security=security_of(request),
        host=offer.host or None,
        local_directory=str(setup.cache / "dask"),
        memory_limit=0,
        death_timeout=max(1.0, min(30.0, offer.patience)),
        dashboard=False,
        dashboard_address=_NO_PAGES,
    )


def _refuse(state: WorkerState) -> None:
    """Raise MachineError with the reason why the machine runs no more tasks."""
    raise MachineError(
        f"Worker {state.setup.name} ends: {state.unfit}",
        hint="Fix this and start it again.",
    )
