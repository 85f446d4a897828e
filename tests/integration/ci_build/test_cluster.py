"""Tasks on a cluster: scheduler, workers and client in separate processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import CiBuildError, MachineError
from core.tasks import TaskInput
from tests.support.cluster import ROOT, ClusterProcesses, cluster_processes, until
from tests.support.machine import alive
from tests.support.rbe.keys import Keys
from tests.support.silent import Steps


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster_processes(tmp_path / "cluster") as processes:
        yield processes


def test_results_have_values_files_and_inputs(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    cluster.scheduler()
    cluster.workers("a")
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "x").write_text("x")
    (tmp_path / "file").write_text("hello")
    inputs = {
        "file": TaskInput.of(tmp_path / "file"),
        "tree": TaskInput.of(tmp_path / "tree"),
    }
    tasks = [cluster.task("echo", "one", inputs=inputs), cluster.task("fail", "two")]
    lines = Steps()
    with cluster.client(lines) as client:
        results = {
            result.task.label: result
            for result in client.run([*tasks, tasks[0]], cluster.work)
        }
    assert (results["one"].error, results["one"].worker) == ("", "a")
    assert results["one"].value["inputs"] == {"file": "hello", "tree": ["sub"]}
    assert os.access(results["one"].folder / "run.sh", os.X_OK)
    assert (results["two"].error, results["two"].kind) == (
        "The compiler failed.",
        CiBuildError,
    )
    # The task's own failure is not tried again, and the connection is closed.
    assert len(cluster.ran("two")) == 1


def test_tasks_of_killed_worker_run_again(cluster: ClusterProcesses) -> None:
    cluster.scheduler()
    cluster.workers("a", "b")
    tasks = [cluster.task("sleep", f"t{number}", seconds=1.5) for number in range(6)]
    victim = cluster.processes["a"].pid

    def kill() -> None:
        until(lambda: any(victim in cluster.ran(task.label) for task in tasks))
        cluster.kill("a")

    thread = threading.Thread(target=kill)
    thread.start()
    lines = Steps()
    results = cluster.run(tasks, lines)
    thread.join()
    assert {result.error for result in results.values()} == {""}
    assert {result.worker for result in results.values()} <= {"a", "b"}
    again = [task.label for task in tasks if len(cluster.ran(task.label)) == 2]
    assert len(again) == 1
    assert results[again[0]].worker == "b"
    assert "worker a is gone; tasks that it had run again" in lines.steps


KILLED = """
import os, signal, sys, threading
from ci_build.cluster.worker import CancellableRunner
from core.process_groups import GroupGuard
runner = CancellableRunner(os.environ, threading.Event(), GroupGuard(os.environ))
runner.run(("true",))
driver = "echo $$ > $1; sleep 600 & echo $! > $0; echo started; wait"
runner.run(("sh", "-c", driver, *sys.argv[1:]), on_line=lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_commands_end_with_killed_worker(tmp_path: Path) -> None:
    notes = [tmp_path / name for name in ("child", "driver")]
    argv = [sys.executable, "-c", KILLED, *map(str, notes)]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    # A driver's children end as well.
    until(lambda: not any(alive(int(note.read_text())) for note in notes))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_client_ends_programs_of_its_tasks(
    cluster: ClusterProcesses, number: int
) -> None:
    cluster.scheduler()
    cluster.workers("a", "b")
    argv = cluster.client_argv("one", "two", "three", seconds=300)
    client = subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    until(lambda: len([*cluster.notes.glob("*.sleeps")]) == 2)
    running = [int(path.read_text()) for path in cluster.notes.glob("*.sleeps")]
    assert all(map(alive, running))
    client.send_signal(number)
    assert client.wait(60) != 0
    until(lambda: not any(map(alive, running)))
    # The workers are free for others, and the third task never ran.
    assert cluster.run([cluster.task("sleep", "next", seconds=0)])["next"].error == ""
    assert (
        len([*cluster.notes.glob("t*.sleeps"), *cluster.notes.glob("one.sleeps")]) == 2
    )


def test_unreachable_scheduler_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_build.cluster.cluster_client._CONNECT_SECONDS", 0.5)
    with cluster_processes(tmp_path / "cluster") as processes:
        processes.address = "tcp://127.0.0.1:9"
        with pytest.raises(
            MachineError, match=r"The scheduler tcp://127\.0\.0\.1:9 cannot be reached"
        ):
            processes.client()


def test_tls_admits_only_certificates_of_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_build.cluster.cluster_client._CONNECT_SECONDS", 2)
    own, strange = (Keys.make(tmp_path / name).folder for name in ("own", "strange"))
    with cluster_processes(tmp_path / "cluster", tls_files(own)) as cluster:
        assert cluster.scheduler().startswith("tls://")
        cluster.workers("a")
        assert cluster.run([cluster.task("sleep", "one", seconds=0)])["one"].error == ""
        cluster.tls = tls_files(strange)
        with pytest.raises(MachineError, match="cannot be reached"):
            cluster.client()


def tls_files(folder: Path) -> dict[str, Path]:
    """Return the files of an authority by the option that names them."""
    return {
        "ca": folder / "ca.crt",
        "cert": folder / "client.crt",
        "key": folder / "client.key",
    }
