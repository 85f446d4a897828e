"""The cluster that a command uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from core.model import Progress
from core.tasks import Tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmRequest:
    """Jobs of Slurm; each one runs one worker.

    Attributes:
        jobs: number of jobs.
        cpus: cores of a job, and tasks that its worker runs at once.
        memory_mb: memory of a job.
        directives: options of sbatch by long name; empty for switches.
        resources: resources that each worker offers, such as {"gfx942": 8}.
        prologue: shell lines before the start of the worker, such as `module load
            rocm`.
        listen: HOST or HOST:PORT of this machine that the nodes reach; empty for its
            own address and any port.
        shared: folder that all nodes see, for certificates and logs.
        cache: cache folder of each node, with variables of the shell; empty for the
            user's.
        environment: environment of the programs of Slurm.
        hidden: variables that the jobs do not inherit.
    """

    jobs: int
    cpus: int
    memory_mb: int
    shared: Path
    directives: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    prologue: tuple[str, ...] = ()
    listen: str = ""
    cache: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRequest:
    """Options `--cluster…` of a command.

    Attributes:
        address: tcp://HOST:PORT or tls://HOST:PORT of a scheduler, or `slurm`.
        store: folder that all machines share, or URL of a bucket; files of tasks go
            through it.
        ca: CA bundle that verifies scheduler and workers; empty for tcp.
        cert: own certificate; empty for tcp.
        key: private key of the certificate; empty if it is in `cert`.
        slurm: jobs to submit, if the address is `slurm`.
    """

    address: str
    store: str
    ca: str = ""
    cert: str = ""
    key: str = ""
    slurm: SlurmRequest | None = None


@contextmanager
def connected(
    request: ClusterRequest | None, progress: Progress
) -> Iterator[Tasks | None]:
    """Provide the cluster of a command; None for this machine.

    Raises:
        MachineError: no scheduler answers.
    """
    if request is None:
        yield None
        return
    # Import cycle: tasks are builds and gates. Dask is no requirement.
    from ci_build.cluster.cluster_client import Cluster

    with Cluster.connect(request, progress) as cluster:
        yield cluster
