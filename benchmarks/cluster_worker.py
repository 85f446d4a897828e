"""Workers of the benchmark of clusters: `python -m benchmarks.cluster_worker ADDRESS COUNT FOLDER`.

COUNT workers with one slot each share a process. They run tasks that sleep.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import distributed

from ci_build.cluster.kinds import KINDS
from ci_build.cluster.task_run import MEMORY
from ci_build.cluster.worker import WorkerSetup, become_worker
from core.tasks import TaskContext

SLEEP = "benchmark-sleep"


def sleep(arguments: Mapping[str, Any], _: TaskContext) -> None:
    """Sleep for `seconds`."""
    time.sleep(arguments["seconds"])


async def serve(address: str, count: int, folder: Path) -> None:
    """Run workers until the scheduler ends."""
    setup = WorkerSetup(name=f"{os.getpid()}", cache=folder, environment=os.environ)
    become_worker(setup)
    offer = {setup.identity: 1.0, MEMORY: 1e6}
    workers = [
        distributed.Worker(
            address,
            name=f"{setup.name}-{number}",
            nthreads=1,
            resources=offer,
            local_directory=str(folder / "dask"),
            memory_limit=0,
            dashboard=False,
        )
        for number in range(count)
    ]
    await asyncio.gather(*workers)
    await asyncio.gather(*(worker.finished() for worker in workers))


if __name__ == "__main__":
    KINDS[SLEEP] = sleep
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
