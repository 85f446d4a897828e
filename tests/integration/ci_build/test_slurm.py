"""A real Slurm of two nodes.

Kernels compiled by workers in its jobs, a job that is cancelled, and an interrupt.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.store import hold_lock
from tests.integration.conftest import succeed
from tests.support import docker
from tests.support import slurm as own_slurm
from tests.support.source_place import SECONDS, wait_for
from tests.support.terminal import ROOT

BUILD = (
    "kernels",
    "build",
    "--targets=gfx942,gfx1100",
    "--kernel-modules=rms_norm",
    "--allow-partial",
    "--json",
)
JOBS = """
jobqueue:
  slurm:
    cores: 4
    memory: 4000MiB
    queue: {queue}
    walltime: "10"
    job-extra-directives: ["--gres=gpu:gfx942:2"]
    job-script-prologue: ["export CI_BUILD_CACHE_DIR={node}"]
    scheduler-options: {{"host": "10.77.0.1"}}
"""
"""Dask's configuration; each job fills a node."""


@pytest.fixture(scope="module")
def slurm(
    engine: docker.Docker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[own_slurm.Slurm]:
    """Start a Slurm whose hosts share a folder."""
    with own_slurm.running(engine, tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="module")
def reference(work_cache: Path, slurm: own_slurm.Slurm) -> str:
    """Build on this machine, give the compilers to the hosts, and return the wheel's sha256."""
    with hold_lock(work_cache / "slurm-test.lock"):
        told = succeed(
            *BUILD, f"--cache-dir={work_cache}", f"--out={slurm.shared / 'reference'}"
        )
    for to in ("client", "node/cluster"):
        for name in ("toolchains", "zig"):
            copy = shutil.copy2 if name == "zig" else os.link
            source = work_cache / "kernels" / name
            target = slurm.shared / to / "kernels" / name
            shutil.copytree(source, target, symlinks=True, copy_function=copy)
    return str(json.loads(told.stdout)["sha256"])


def start(
    slurm: own_slurm.Slurm, name: str, *, queue: str = "batch"
) -> subprocess.Popen[str]:
    """Start a build on the login node, whose process id is in the file NAME.pid."""
    folder = slurm.shared / name
    folder.mkdir()
    config = folder / "dask.yaml"
    config.write_text(JOBS.format(queue=queue, node=slurm.shared / "node"))
    argv = [sys.executable, "-m", "ci_build.cli", *BUILD, "--cluster=slurm:2"]
    argv += [
        f"--cache-dir={slurm.shared / 'client'}",
        f"--out={folder / 'out'}",
        f"--cluster-store={folder}",
    ]
    script = f'echo $$ >{name}.pid; exec "$@"'
    env = {"PYTHONPATH": str(ROOT), "DASK_CONFIG": str(config)}
    return subprocess.Popen(
        slurm.argv(
            "sh",
            "-c",
            script,
            "sh",
            *argv,
            env=env,
        ),
        env=slurm.engine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def busy_nodes(slurm: own_slurm.Slurm) -> list[str]:
    """Return the nodes that run a task."""
    pattern = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    busy = []
    for node in ("node1", "node2"):
        if "ziglang/zig" in slurm.run("sh", "-c", pattern, host=node).stdout:
            busy.append(node)
    return busy


def test_slurm_jobs_compile_same_bytes_although_one_is_cancelled(
    slurm: own_slurm.Slurm, reference: str
) -> None:
    process = start(slurm, "store")
    store = slurm.shared / "store"
    wait_for(lambda: busy_nodes(slurm), process)
    assert all(
        re.fullmatch(r"(RUNNING|PENDING) (node[12])? jax-rocm-\w{8}", line)
        for line in slurm.jobs()
    )
    keys = [*store.glob(".dask-jobqueue.worker.key.*")]
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600]
    lost = busy_nodes(slurm)[0]
    slurm.must("scancel", f"--nodelist={lost}")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert json.loads(out)["sha256"] == reference
    logs = [path.read_text() for path in (store / "slurm-logs").glob("*.err")]
    assert any("CANCELLED" in log for log in logs)
    until_gone(slurm)
    assert [*store.glob(".dask-jobqueue*")] == []


def test_slurm_jobs_end_with_interrupted_command(
    slurm: own_slurm.Slurm, reference: str
) -> None:
    shutil.rmtree(
        slurm.shared / "node" / "cluster" / "kernels" / "store", ignore_errors=True
    )
    shutil.rmtree(slurm.shared / "client" / "kernels" / "store", ignore_errors=True)
    process = start(slurm, "interrupted")
    wait_for(lambda: busy_nodes(slurm), process)
    assert slurm.jobs()
    slurm.must("sh", "-c", "kill -INT $(cat interrupted.pid)")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, err)
    until_gone(slurm)
    assert not (slurm.shared / "interrupted" / "out").exists()


def test_slurm_refusal_is_reported_before_any_job(
    slurm: own_slurm.Slurm, reference: str
) -> None:
    process = start(slurm, "refused", queue="absent")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, err
    assert "error: Slurm refuses the jobs" in err
    assert "Invalid partition name specified" in err
    assert slurm.jobs() == []


def until_gone(slurm: own_slurm.Slurm) -> None:
    """Wait until the jobs have left the queue."""
    for _ in range(100):
        if not slurm.jobs():
            return
        time.sleep(0.2)
    raise AssertionError(slurm.jobs())
