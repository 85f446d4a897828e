"""A connection to a cluster.

Tasks go out, results come back, and lost connections are made again.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.dask import dask_module, quiet, security_of
from ci_build.cluster.identity import own_identity
from ci_build.cluster.launchers import LAUNCHERS, Launched
from ci_build.cluster.task_files import ClusterStore
from ci_build.cluster.task_run import ConnectionLostError, TaskRun
from core.errors import MachineError
from core.model import Progress
from core.process import ignore_interrupts
from core.tasks import Task, TaskResult
from promotion.storage.bucket_url import open_bucket

_CONNECT_SECONDS = 10.0


class Cluster:
    """Tasks on the workers of a Dask scheduler; implements `core.tasks.Tasks`.

    Args:
        patience: seconds without a scheduler, or without a worker that may run the
            tasks, after which a run ends.
    """

    def __init__(
        self, request: ClusterRequest, progress: Progress, *, patience: float = 300.0
    ) -> None:
        self._request = request
        self._progress = progress
        self._patience = patience
        self._stack = ExitStack()
        self._client: Any = None
        self._launched = Launched(address=request.address)

    @classmethod
    def connect(
        cls, request: ClusterRequest, progress: Progress, *, patience: float = 300.0
    ) -> Self:
        """Return a connected cluster, which is a context manager.

        Raises:
            MachineError: no scheduler answers, or the packages for clusters are not
                installed.
        """
        cluster = cls(request, progress, patience=patience)
        quiet()
        try:
            if request.address in LAUNCHERS:
                cluster._launched = cluster._stack.enter_context(
                    LAUNCHERS[request.address](request, progress)
                )
            cluster._client = cluster._open(_CONNECT_SECONDS)
        except BaseException:
            cluster._stack.close()
            raise
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ignore_interrupts():
            self._close()
            self._stack.close()

    def run(self, tasks: Sequence[Task], work: Path) -> Iterator[TaskResult]:
        """Run tasks; see `core.tasks.Tasks`."""
        with tempfile.TemporaryDirectory(prefix=".cluster-", dir=work) as cache:
            store = ClusterStore(open_bucket(self._request.store), Path(cache))
            for given in {
                given.sha256: given for task in tasks for given in task.inputs.values()
            }.values():
                store.send(given)
            run = TaskRun(
                tasks,
                store=store,
                store_name=self._request.store,
                identity=own_identity(),
                name=secrets.token_hex(8),
                work=work,
                progress=self._progress,
                patience=self._patience,
                expects_workers=self._launched.expects_workers,
            )
            try:
                while run.pending:
                    try:
                        yield from run.results(self._client)
                    except ConnectionLostError:
                        self._progress.step(
                            "the connection to the scheduler is lost; connecting again"
                        )
                        self._close()
                        self._client = self._open(self._patience)
            finally:
                with ignore_interrupts():
                    run.cancel(self._client)

    def _open(self, patience: float) -> Any:  # noqa: ANN401 - a class of Dask
        """Return a client of the scheduler."""
        distributed = dask_module("distributed")
        deadline = time.monotonic() + patience
        while True:
            try:
                return distributed.Client(
                    self._launched.address,
                    security=security_of(self._request),
                    timeout=_CONNECT_SECONDS,
                    set_as_default=False,
                )
            except (OSError, ValueError, TypeError) as error:
                if time.monotonic() < deadline and isinstance(error, OSError):
                    time.sleep(1)
                    continue
                raise MachineError(
                    f"The scheduler {self._request.address} cannot be reached:"
                    f" {error}.",
                    hint=(
                        "Check --cluster and its certificates, and start `ci_build"
                        " cluster scheduler`."
                    ),
                ) from error

    def _close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close(timeout=5)
