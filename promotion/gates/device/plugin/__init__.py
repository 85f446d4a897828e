"""pytest plugin of the device gate.

It locks a lease before jax is imported, and writes a crash-proof journal.

The plugin runs in the tested environment. PYTEST_PLUGINS loads it in every process of a
session, before any conftest.py. It uses only the standard library and pytest.

JAX_GATE_SESSION is the session's folder with `plan.json`: `leases` (device, env,
memory, nodes, alone), `only` (node ids, or null for all), `listed` and `shard` (see
`choose`), `broken` (files to ignore), `solo` (this
process runs the tests itself, without workers), `most_left` (see `leak_check`). Each
process that runs tests writes `<worker>.jsonl` there, one line per event; faulthandler
writes `<worker>.crash`. Every line is written through a newly opened file, because a
test may close all file descriptors.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from .worker_hooks import EventWriter, WorkerPlugin

SESSION = "JAX_GATE_SESSION"
_EXIT_SECONDS = 2.0
"""Seconds for a lost worker to exit; a worker that only lost its connection may go on."""


class ControllerPlugin:
    """Hooks of the process that distributes tests to workers."""

    def __init__(self, folder: Path) -> None:
        self.journal = EventWriter(folder, "controller")
        # A SIGINT from a test must not end the session.
        signal.signal(signal.SIGINT, lambda *_: None)
        self.journal.write("controller", pid=self.journal.pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ANN401 - xdist's controller of a worker
        """Record how a lost worker ended: its exit status, or the negative number of a signal.

        A worker that finished has no error. Its process ends only when the controller
        ends it.
        """
        if not error:
            return
        with contextlib.suppress(AttributeError, ChildProcessError):
            status = _wait_status(
                node.gateway._io.popen.pid
            )  # execnet offers no public way
            if status is not None:
                self.journal.write("down", worker=node.gateway.id, status=status)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Record that the session exited normally."""
        self.journal.write("finish", status=int(exitstatus))


def _wait_status(child: int) -> int | None:
    """Return how a child ended, without reaping it; None if it goes on."""
    until = time.monotonic() + _EXIT_SECONDS
    while (
        ended := os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    ) is None:
        if time.monotonic() > until:
            return None
        time.sleep(0.01)
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _start() -> WorkerPlugin | ControllerPlugin | None:
    folder = os.environ.get(SESSION)
    if not folder:
        return None
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        if not json.loads(Path(folder, "plan.json").read_bytes())["solo"]:
            return ControllerPlugin(Path(folder))
        worker = "solo"
    # Processes that tests start are not workers of this session.
    for key in (SESSION, "PYTEST_PLUGINS"):
        os.environ.pop(key, None)
    return WorkerPlugin(Path(folder), worker)


gate = _start()


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks; the import of this module has already locked the lease."""
    if gate is not None:
        config.pluginmanager.register(gate, "jax-release-gate")
