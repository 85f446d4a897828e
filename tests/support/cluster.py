"""Scheduler and workers in processes of their own, and clients of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ci_build.cluster.cluster_client import Cluster
from ci_build.cluster.cluster_request import ClusterRequest
from core.tasks import Task, TaskResult
from tests.support.silent import Steps

ROOT = Path(__file__).resolve().parents[2]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return the first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
    return value


class ClusterProcesses:
    """The processes of a cluster, with their output in files of a folder.

    Args:
        folder: empty folder.
        tls: arguments `--cluster-ca` and so on of scheduler and workers.
    """

    def __init__(self, folder: Path, tls: Mapping[str, Path] | None = None) -> None:
        self.folder = folder
        self.tls = dict(tls or {})
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        self.notes = folder / "notes"
        self.work = folder / "work"
        self.store = str(folder / "store")
        self.notes.mkdir()
        self.work.mkdir()

    def scheduler(self, *words: str) -> str:
        """Start a scheduler and return its address."""
        scheme = "tls" if self.tls else "tcp"
        self._start(
            "scheduler",
            "-m",
            "ci_build.cli",
            "cluster",
            "scheduler",
            f"{scheme}://127.0.0.1:0",
            *words,
        )
        self.address = until(
            lambda: re.search(r"scheduler at (\S+)", self.output("scheduler"))
        )[1]
        return self.address

    def worker(self, name: str, *words: str) -> None:
        """Start a worker; see `wait` for its arrival."""
        own = (
            "--name",
            name,
            "--cache-dir",
            str(self.folder / name),
            "--jobs=1",
            "--memory=1000",
        )
        self._start(
            name, "-m", "tests.support.cluster_worker", self.address, *own, *words
        )

    def workers(self, *names: str) -> None:
        """Start workers and wait for them."""
        for name in names:
            self.worker(name)
        for name in names:
            self.wait(name)

    def wait(self, name: str) -> None:
        """Wait until a worker has connected to a scheduler."""
        until(lambda: f"worker {name} at " in self.output(name))

    def _start(self, name: str, *words: str) -> None:
        tls: list[str] = []
        for option, path in self.tls.items():
            tls.extend((f"--cluster-{option}", str(path)))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                (sys.executable, *words, *tls),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        self.processes[name].kill()

    def request(self) -> ClusterRequest:
        tls = {name: str(path) for name, path in self.tls.items()}
        return ClusterRequest(address=self.address, store=self.store, slurm=None, **tls)

    def task(self, kind: str, name: str, **more: Any) -> Task:
        """Return a task whose runs leave notes."""
        fields = {
            name: more.pop(name)
            for name in ("inputs", "resources", "memory_mb")
            if name in more
        }
        return Task(
            kind=kind,
            label=name,
            arguments={"name": name, "notes": str(self.notes), **more},
            **fields,
        )

    def ran(self, name: str) -> list[int]:
        """Return the processes that ran a task."""
        return [
            int(path.name.split(".")[-2]) for path in self.notes.glob(f"{name}.[0-9]*")
        ]

    def client(self, lines: Steps | None = None) -> Cluster:
        return Cluster.connect(self.request(), lines or Steps(), patience=60.0)

    def run(
        self, tasks: Sequence[Task], lines: Steps | None = None
    ) -> dict[str, TaskResult]:
        """Return the results of tasks by label."""
        with self.client(lines) as cluster:
            return {
                result.task.label: result for result in cluster.run(tasks, self.work)
            }

    def client_argv(self, *names: str, seconds: float) -> tuple[str, ...]:
        """Return the command of a client in a process of its own, whose tasks run `sleep`."""
        words = {
            "names": names,
            "seconds": seconds,
            "notes": str(self.notes),
            "work": str(self.work),
        }
        words["request"] = asdict(self.request())
        return (sys.executable, "-m", "tests.support.cluster", json.dumps(words))

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@contextmanager
def cluster_processes(
    folder: Path, tls: Mapping[str, Path] | None = None
) -> Iterator[ClusterProcesses]:
    """Provide a cluster without processes; those that are started end with the block."""
    folder.mkdir(exist_ok=True)
    cluster = ClusterProcesses(folder, tls)
    try:
        yield cluster
    finally:
        cluster.stop()


if __name__ == "__main__":
    # A client of a process of its own: arguments of `ClusterRequest` and `sleep` tasks
    # as JSON.
    words = json.loads(sys.argv[1])
    items = [
        Task(
            kind="sleep",
            label=name,
            arguments={
                "name": name,
                "notes": words["notes"],
                "seconds": words["seconds"],
            },
        )
        for name in words["names"]
    ]
    with Cluster.connect(ClusterRequest(**words["request"]), Steps()) as connected:
        for result in connected.run(items, Path(words["work"])):
            sys.stdout.write(
                json.dumps([result.task.label, result.worker, result.error]) + "\n"
            )
