"""Workers in jobs of Slurm, which dask-jobqueue submits and cancels.

The options of the jobs are those of Dask's configuration (`jobqueue.slurm`).
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.config
from distributed import Security

from ci_build.cluster.cluster_request import ClusterRequest
from core.errors import MachineError, RequestError
from core.model import Progress
from core.own_files import ROOT
from core.process import HostRunner

WORKER = "ci_build.cli.cluster_worker"
"""Preload of workers."""


@contextmanager
def slurm_jobs(request: ClusterRequest, progress: Progress) -> Iterator[Any]:
    """Provide a Dask cluster: a scheduler in this process, with workers in jobs.

    Scheduler and workers speak TLS with the certificates of Dask's configuration, or
    with a key that is made for this run.

    Raises:
        MachineError: the programs of Slurm are not installed.
        RequestError: Dask's configuration lacks the size of a job, or Slurm refuses the
            jobs.
    """
    if shutil.which("sbatch") is None:
        raise MachineError(
            "--cluster=slurm needs sbatch.",
            hint="Run the command on a login node of the cluster.",
        )
    settings = dask.config.get("jobqueue.slurm", {})
    logs = Path(settings.get("log-directory") or request.store / "slurm-logs")
    logs.mkdir(parents=True, exist_ok=True)
    cluster = _new_cluster(request, logs)
    try:
        _check_script(cluster.job_script(), HostRunner(request.environment))
        cluster.scale(jobs=request.jobs)
        progress.step(
            f"submitted {request.jobs} jobs to Slurm; the logs of their workers are in"
            f" {logs}"
        )
        yield cluster
    finally:
        cluster.close(timeout=60)


def _new_cluster(request: ClusterRequest, logs: Path) -> Any:  # noqa: ANN401 - a class of Dask
    before = signal.getsignal(signal.SIGINT)
    try:
        # Start-up time; and the import replaces this program's handler of Ctrl-C.
        from dask_jobqueue.slurm import SLURMCluster, SLURMJob
    finally:
        signal.signal(signal.SIGINT, before)
    # Slurm's jobs inherit the environment of sbatch, which may have signing keys.
    unset = [f"--unset={variable}" for variable in request.secrets]
    submit = shlex.join(["env", *unset, "sbatch"])
    job = type("Job", (SLURMJob,), {"submit_command": submit})
    configured = dask.config.get
    security = Security()
    if not configured("distributed.comm.tls.ca-file"):
        security = Security.temporary()
    prologue = configured("jobqueue.slurm.job-script-prologue")
    extra = configured("jobqueue.slurm.worker-extra-args")
    options = configured("jobqueue.slurm.scheduler-options")
    name = f"jax-rocm-{secrets.token_hex(4)}"
    try:
        return SLURMCluster(
            name=name,
            job_name=name,
            job_cls=job,
            # One worker for each job: the tasks of a machine share its GPUs.
            processes=1,
            python=shlex.quote(sys.executable),
            job_script_prologue=[*prologue, f"cd {shlex.quote(str(ROOT))}"],
            worker_extra_args=[*extra, "--preload", WORKER],
            log_directory=str(logs),
            shared_temp_directory=str(request.store),
            security=security,
            protocol="tls://",
            # Dask's pages need no password.
            scheduler_options={
                "dashboard": False,
                "dashboard_address": "127.0.0.1:0",
                **options,
            },
            silence_logs="critical",
        )
    except ValueError as error:
        raise RequestError(
            f"Dask's configuration of jobs is incomplete: {error}.",
            hint="Set jobqueue.slurm.cores and memory; see docs/cluster.md.",
        ) from error


def _check_script(script: str, runner: HostRunner) -> None:
    """Raise RequestError with Slurm's reason if it would refuse a job."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        done = runner.run(["sbatch", "--test-only", file.name], check=False)
    if done.returncode:
        reason = " ".join(done.stderr.replace("sbatch: error: ", "").split())
        raise RequestError(
            f"Slurm refuses the jobs of --cluster=slurm: {reason}.",
            hint="Correct jobqueue.slurm in Dask's configuration.",
        )
