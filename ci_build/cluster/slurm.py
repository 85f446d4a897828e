"""Workers in jobs of Slurm: dask-jobqueue submits and cancels them.

Jobs that ended are replaced.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from ci_build.cluster.cluster_request import ClusterRequest, SlurmRequest
from ci_build.cluster.dask import dask_module, security_of
from ci_build.cluster.launchers import Launched
from ci_build.cluster.task_files import MOST_TRIES
from core.errors import MachineError, RequestError
from core.model import Progress
from core.process import HostRunner, Runner

ROOT = Path(__file__).resolve().parents[2]
_NAME = "jax-rocm"
_TLS = {"ca": "ca_file", "cert": "cert", "key": "key"}
_LOOK_SECONDS = 15.0
_EARLY_SECONDS = 60.0
"""Seconds with a scheduler below which a worker's end is a failure of its job."""
_PATIENCE = 120
"""Seconds without the scheduler after which a worker ends, and so its job."""


@contextlib.contextmanager
def slurm_cluster(request: ClusterRequest, progress: Progress) -> Iterator[Launched]:
    """Run a scheduler in this process and submit jobs with workers.

    Cancel the jobs at the end of the block.

    Scheduler and workers speak TLS with the certificates of the request, else with a
    key that is made for this run.

    Raises:
        MachineError: the programs of Slurm or the packages for clusters are not
            installed.
        RequestError: Slurm refuses the jobs.
    """
    slurm = request.slurm
    assert slurm is not None
    if missing := [
        name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None
    ]:
        raise MachineError(
            f"--cluster slurm needs {', '.join(missing)}.",
            hint="Run the command on a login node of the cluster.",
        )
    name = f"{_NAME}-{secrets.token_hex(4)}"
    logs = slurm.shared / "slurm-logs"
    logs.mkdir(parents=True, exist_ok=True)
    engine = _load()
    with _own_settings():
        cluster = engine.SLURMCluster(**_arguments(request, slurm, name, logs))
        try:
            runner = HostRunner(slurm.environment)
            _check_script(cluster.job_script(), runner)
            jobs = SlurmJobs(
                cluster=cluster,
                name=name,
                wanted=slurm.jobs,
                logs=logs,
                runner=runner,
                progress=progress,
            )
            jobs.start()
            yield Launched(address=cluster, expects_workers=jobs.expected)
        finally:
            cluster.close(timeout=60)


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Override settings of the user's Dask: without them, jobs would end after 30 minutes."""
    values = {
        "jobqueue.slurm.walltime": None,
        "distributed.scheduler.worker-ttl": f"{_PATIENCE}s",
    }
    with dask_module("dask.config").set(values):
        yield


def _load() -> ModuleType:
    """Import dask-jobqueue and keep this program's handler of Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    try:
        module: ModuleType = dask_module("dask_jobqueue")
    finally:
        signal.signal(signal.SIGINT, before)
    return module


def _arguments(
    request: ClusterRequest, slurm: SlurmRequest, name: str, logs: Path
) -> dict[str, Any]:
    """Return the arguments of dask-jobqueue's SLURMCluster."""
    given = dict(slurm.directives)
    host, _, port = slurm.listen.partition(":")
    options = {
        "dashboard": False,
        "dashboard_address": "127.0.0.1:0",
        "allowed_failures": 10 * MOST_TRIES,
    }
    security = security_of(request) or dask_module("distributed").Security.temporary()
    return {
        "name": name,
        "job_name": name,
        "job_cls": _job_class(slurm),
        "cores": slurm.cpus,
        "processes": 1,
        "memory": f"{slurm.memory_mb}MiB",
        "job_cpu": int(given.pop("cpus-per-task")),
        "job_mem": given.pop("mem"),
        "queue": given.pop("partition", None),
        "account": given.pop("account", None),
        "walltime": given.pop("time", None),
        "job_extra_directives": [
            f"--{key}={value}" if value else f"--{key}" for key, value in given.items()
        ],
        "job_script_prologue": [*slurm.prologue, f"cd {shlex.quote(str(ROOT))}"],
        "log_directory": str(logs),
        "shared_temp_directory": str(slurm.shared),
        "security": security,
        "protocol": "tls://",
        "scheduler_options": {
            **options,
            **({"host": host} if host else {}),
            "port": int(port or 0),
        },
        "python": shlex.quote(sys.executable),
        "silence_logs": "critical",
    }


class _Job(Protocol):
    """A job of dask-jobqueue, and the reason why Slurm refused it."""

    job_id: str | None
    refusal: str
    _command_template: str


class _Security(Protocol):
    """Dask's settings for certificates."""

    def get_tls_config_for_role(self, role: str) -> dict[str, str]:
        """Return the paths of the files of a role."""


def _job_class(slurm: SlurmRequest) -> type:
    """Return dask-jobqueue's job with this worker, and the reason for a rejection."""
    base: Any = dask_module("dask_jobqueue.slurm").SLURMJob

    def init(
        self: _Job, scheduler: str, name: str, *, security: _Security, **more: object
    ) -> None:
        base.__init__(self, scheduler, name, security=security, **more)
        tls = security.get_tls_config_for_role("worker")
        words = [sys.executable, *worker_words(slurm, scheduler, str(name), tls)]
        cache = f' --cache-dir="{slurm.cache}"' if slurm.cache else ""
        self._command_template = f"exec {shlex.join(words)}{cache}"

    async def start(self: _Job) -> None:
        try:
            await base.start(self)
        except RuntimeError as error:
            self.refusal = " ".join(str(error).partition("stderr:\n")[2].split())
            raise

    # Slurm's jobs inherit the environment of sbatch.
    submit = shlex.join(
        ["env", *(f"--unset={name}" for name in slurm.hidden), "sbatch"]
    )
    return type(
        "Job",
        (base,),
        {"__init__": init, "start": start, "submit_command": submit, "refusal": ""},
    )


def worker_words(
    slurm: SlurmRequest, scheduler: str, name: str, tls: dict[str, str]
) -> list[str]:
    """Return the arguments of Python that start a worker of a job."""
    words = [
        "-m",
        "ci_build.cli",
        "cluster",
        "worker",
        scheduler,
        f"--name={name}",
        f"--jobs={slurm.cpus}",
    ]
    words += [f"--memory={slurm.memory_mb}", f"--patience={_PATIENCE}"]
    if slurm.resources:
        words.append(
            "--resources="
            + ",".join(f"{name}={count:g}" for name, count in slurm.resources.items())
        )
    return [*words, *(f"--cluster-{name}={tls[key]}" for name, key in _TLS.items())]


def _check_script(script: str, runner: HostRunner) -> None:
    """Let Slurm check a job without submitting it.

    Raises:
        RequestError: Slurm refuses it; the message contains its reason.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        done = runner.run(["sbatch", "--test-only", file.name], check=False)
    if done.returncode:
        why = " ".join(
            line.removeprefix("sbatch: error: ")
            for line in done.stderr.split("\n")
            if line
        ).strip()
        raise RequestError(
            f"Slurm refuses the jobs of --cluster slurm: {why}.",
            hint="Correct --slurm or --slurm-file.",
        )


class _Queue(Protocol):
    """dask-jobqueue's cluster; `workers` are jobs by the names of their workers."""

    workers: dict[str, _Job]
    worker_spec: dict[str, object]
    scheduler: Any

    def scale(self, *, jobs: int) -> object:
        """Submit or cancel jobs until `jobs` of them exist."""

    def sync(
        self,
        function: Callable[[Sequence[str]], Coroutine[None, None, None]],
        names: Sequence[str],
    ) -> None:
        """Run a function in the event loop."""


class SlurmJobs:
    """Jobs of a run.

    Attributes:
        cluster: the cluster of dask-jobqueue.
    """

    def __init__(
        self,
        *,
        cluster: Any,  # noqa: ANN401
        name: str,
        wanted: int,
        logs: Path,
        runner: Runner,
        progress: Progress,
    ) -> None:
        self.cluster = cluster
        self._name = name
        self._wanted = wanted
        self._logs = logs
        self._runner = runner
        self._progress = progress
        self._ids: dict[str, str] = {}
        self._connected: dict[str, float] = {}
        self._looked = 0.0
        self._missing = True

    def start(self) -> None:
        """Submit the jobs."""
        self.cluster.scale(jobs=self._wanted)
        self._progress.step(
            f"submitting {self._wanted} jobs to Slurm; the logs of their workers are in"
            f" {self._logs}"
        )

    def expected(self) -> bool:
        """Return whether workers of jobs are still to come, and replace jobs that ended.

        Jobs at their time limit are replaced, and jobs whose worker failed at once are
        not.

        Raises:
            MachineError: no job is left.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return self._missing
        self._looked = now
        jobs = dict(
            self.cluster.workers
        )  # before the queue is read: a job that is submitted now has not ended
        queue = self._runner.run(
            ["squeue", "--noheader", "--format=%A", f"--name={self._name}"], check=False
        )
        if queue.returncode:  # the controller may restart
            self._progress.step(
                f"Slurm does not answer: {' '.join(queue.stderr.split())}"
            )
            return self._missing
        here = {
            str(worker.name) for worker in [*self.cluster.scheduler.workers.values()]
        }
        for name in here:
            self._connected.setdefault(name, now)
        self._ids |= {name: job.job_id for name, job in jobs.items() if job.job_id}
        refused = {name: job.refusal for name, job in jobs.items() if job.refusal}
        ended = (
            self._ids.keys()
            - here
            - {name for name, id_ in self._ids.items() if id_ in queue.stdout.split()}
        )
        if ended or refused:
            self._replace(now, ended, refused)
        self._missing = len(here) < self._wanted
        return self._missing

    def _replace(self, now: float, ended: Set[str], refused: Mapping[str, str]) -> None:
        """Forget jobs that ended or were refused, and submit others for those that ran."""
        early = {
            name
            for name in ended
            if now - self._connected.get(name, now) < _EARLY_SECONDS
        }
        for name in early:
            self._progress.step(
                f"job {self._ids[name]} of Slurm ended early; see its log in"
                f" {self._logs}"
            )
        for why in set(refused.values()):
            self._progress.step(f"Slurm refused a job: {why}")
        self._wanted -= len(early) + len(refused)
        gone = [*ended, *refused]
        for name in ended:
            del self._ids[name]
        self.cluster.sync(self._forget, gone)
        if self._wanted <= 0:
            raise MachineError(
                "All jobs of Slurm ended or were refused.",
                hint=f"See the logs in {self._logs}.",
            )
        self.cluster.scale(jobs=self._wanted)

    async def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            self.cluster.workers.pop(name, None)
            self.cluster.worker_spec.pop(name, None)
