"""Tasks on a cluster: scheduler, workers and client in separate processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_build.cluster import cluster_client
from core.errors import CiBuildError, MachineError
from tests.support.cluster import ROOT, ClusterProcesses, cluster_processes
from tests.support.machine import alive, until
from tests.support.silent import Steps


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster_processes(tmp_path / "cluster") as processes:
        processes.scheduler()
        yield processes


def test_results_have_values_files_and_inputs(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    cluster.workers("a")
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "x").write_text("x")
    (tmp_path / "file").write_text("hello")
    inputs = {"file": tmp_path / "file", "tree": tmp_path / "tree"}
    tasks = [cluster.task("echo", "one", inputs=inputs), cluster.task("fail", "two")]
    results = cluster.run(tasks)
    one, two = results["one"], results["two"]
    assert one.error == ""
    assert one.worker == "a"
    assert one.value["inputs"] == {"file": "hello", "tree": ["sub"]}
    assert os.access(one.folder / "run.sh", os.X_OK)
    assert (one.folder / "sub" / "out.txt").is_file()
    # The task's own failure is not tried again.
    assert two.error == "The compiler failed."
    assert two.kind == CiBuildError
    assert len(cluster.ran("two")) == 1
    assert [*cluster.store.iterdir()] == []


def test_tasks_of_killed_worker_run_again(cluster: ClusterProcesses) -> None:
    cluster.workers("a", "b")
    tasks = [cluster.task("sleep", f"t{number}", seconds=1.5) for number in range(6)]
    victim = cluster.processes["a"].pid

    def kill() -> None:
        until(lambda: any(victim in cluster.ran(task.label) for task in tasks))
        cluster.processes["a"].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    results = cluster.run(tasks)
    thread.join()
    assert {result.error for result in results.values()} == {""}
    again = [task.label for task in tasks if len(cluster.ran(task.label)) == 2]
    assert len(again) == 1
    assert results[again[0]].worker == "b"


def test_worker_whose_machine_failed_ends(cluster: ClusterProcesses) -> None:
    cluster.workers("a", "b")
    lines = Steps()
    result = cluster.run([cluster.task("break_machine", "one")], lines)["one"]
    assert result.error == ""
    assert any("ends: The disk is full." in line for line in lines.steps)
    assert len(cluster.ran("one")) == 2
    until(lambda: any(p.poll() is not None for p in cluster.processes.values()))
    assert cluster.processes[result.worker].poll() is None


def test_workers_of_another_version_are_refused(
    cluster: ClusterProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.workers("a")
    cluster.worker("plain", preloads=())
    cluster.wait("plain")
    monkeypatch.setattr(cluster_client, "own_identity", lambda: "program:other")
    monkeypatch.setattr(cluster_client, "_CHECK_SECONDS", 0.1)
    lines = Steps()
    with (
        pytest.raises(MachineError, match="No worker could run the remaining 1 tasks"),
        cluster.client(lines, patience=0.5) as client,
    ):
        list(client.run([cluster.task("sleep", "one", seconds=0)], cluster.work))
    assert cluster.ran("one") == []
    refused = sorted(line for line in lines.steps if "is refused" in line)
    assert [line.split()[1] for line in refused] == ["a", "plain"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_client_ends_programs_of_its_tasks(
    cluster: ClusterProcesses, number: int
) -> None:
    cluster.workers("a", "b")
    argv = cluster.client_argv("one", "two", "three")
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
    assert cluster.ran("three") == []


def test_end_of_worker_ends_programs_of_its_tasks(cluster: ClusterProcesses) -> None:
    cluster.worker("a", "--nanny")
    cluster.wait("a")
    argv = cluster.client_argv("one")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    client = subprocess.Popen(argv, cwd=ROOT, env=environment)
    (note,) = until(lambda: [*cluster.notes.glob("*.sleeps")])
    running = int(until(note.read_text))
    cluster.processes["a"].terminate()
    until(lambda: not alive(running))
    client.kill()
    client.wait()


def test_lost_scheduler_ends_the_run(cluster: ClusterProcesses) -> None:
    cluster.workers("a")
    tasks = [cluster.task("sleep", "one", seconds=300)]

    def kill() -> None:
        until(lambda: cluster.ran("one"))
        cluster.processes["scheduler"].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(MachineError, match="connection to the scheduler was lost"):
        cluster.run(tasks)
    thread.join()


def test_unreachable_scheduler_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "_CONNECT_SECONDS", 0.5)
    with cluster_processes(tmp_path / "cluster") as processes:
        processes.address = "tcp://127.0.0.1:9"
        with (
            pytest.raises(
                MachineError, match=r"tcp://127\.0\.0\.1:9 cannot be reached"
            ),
            processes.client(),
        ):
            pass
