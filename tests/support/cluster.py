"""Dask's scheduler and workers in processes of their own, and clients of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from ci_build.cluster.cluster_client import Cluster, open_cluster
from ci_build.cluster.cluster_request import ClusterRequest
from core.tasks import Task, TaskResult
from tests.support.machine import until
from tests.support.silent import Steps

ROOT = Path(__file__).resolve().parents[2]
PRELOADS = ("ci_build.cli.cluster_worker", "tests.support.cluster_worker")


class ClusterProcesses:
    """The processes of a cluster, with their output in files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        self.notes = folder / "notes"
        self.work = folder / "work"
        self.store = folder / "store"
        self.notes.mkdir()
        self.work.mkdir()

    def scheduler(self) -> None:
        """Start a scheduler on any port."""
        file = self.folder / "scheduler.json"
        words = ("--host=127.0.0.1", "--port=0", f"--scheduler-file={file}")
        self._start("scheduler", "distributed.cli.dask_scheduler", *words)
        until(file.exists)
        self.address = json.loads(until(file.read_text))["address"]

    def worker(
        self, name: str, *words: str, preloads: Sequence[str] = PRELOADS
    ) -> None:
        """Start a worker; see `wait` for its arrival."""
        own = (f"--name={name}", "--nthreads=1", "--memory-limit=1000MiB", "--no-nanny")
        folder = f"--local-directory={self.folder / name}"
        given = [f"--preload={preload}" for preload in preloads]
        self._start(
            name,
            "distributed.cli.dask_worker",
            self.address,
            *own,
            folder,
            *given,
            *words,
        )

    def workers(self, *names: str) -> None:
        """Start workers and wait for them."""
        for name in names:
            self.worker(name)
        for name in names:
            self.wait(name)

    def wait(self, name: str) -> None:
        """Wait until a worker has connected to the scheduler."""
        until(lambda: "Starting established connection" in self.output(name))

    def _start(
        self,
        name: str,
        module: str,
        *words: str,
    ) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CI_BUILD_CACHE_DIR": str(self.folder / name),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                (sys.executable, "-m", module, *words, "--no-dashboard"),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def task(
        self,
        kind: str,
        name: str,
        **more: Any,
    ) -> Task:
        """Return a task whose runs leave notes."""
        inputs = more.pop("inputs", {})
        arguments = {
            "name": name,
            "notes": str(self.notes),
            **more,
        }
        return Task(kind=kind, label=name, arguments=arguments, inputs=inputs)

    def ran(self, name: str) -> list[int]:
        """Return the processes that ran a task."""
        found = self.notes.glob(f"{name}.[0-9]*")
        return [int(path.name.split(".")[-2]) for path in found]

    def client(
        self, lines: Steps | None = None, *, patience: float = 60.0
    ) -> AbstractContextManager[Cluster]:
        request = ClusterRequest(address=self.address, store=self.store)
        return open_cluster(request, lines or Steps(), patience=patience)

    def run(
        self, tasks: Sequence[Task], lines: Steps | None = None
    ) -> dict[str, TaskResult]:
        """Return the results of tasks by label."""
        with self.client(lines) as cluster:
            results = cluster.run(tasks, self.work)
            return {result.task.label: result for result in results}

    def client_argv(self, *names: str) -> tuple[str, ...]:
        """Return the command of a client in a process of its own, whose tasks run `sleep`."""
        words = {
            "names": names,
            "seconds": 300,
            "address": self.address,
        }
        folder = str(self.folder)
        return (
            sys.executable,
            "-m",
            "tests.support.cluster",
            json.dumps(words),
            folder,
        )

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()


@contextmanager
def cluster_processes(folder: Path) -> Iterator[ClusterProcesses]:
    """Provide a cluster without processes; those that are started end with the block."""
    folder.mkdir(exist_ok=True)
    cluster = ClusterProcesses(folder)
    try:
        yield cluster
    finally:
        cluster.stop()


if __name__ == "__main__":
    words = json.loads(sys.argv[1])
    folder = Path(sys.argv[2])
    more = {"notes": str(folder / "notes"), "seconds": words["seconds"]}
    items = [
        Task(kind="sleep", label=name, arguments={"name": name, **more})
        for name in words["names"]
    ]
    request = ClusterRequest(address=words["address"], store=folder / "store")
    with open_cluster(request, Steps()) as connected:
        for result in connected.run(items, folder / "work"):
            sys.stdout.write(f"{result.task.label} {result.error}\n")
