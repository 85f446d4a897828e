"""Pytest's part of the device gate: takes a lease before jax is imported, and keeps a journal that outlives crashes.

Runs in the environment that is tested, loaded by PYTEST_PLUGINS in every process of a session, so that it comes before
any conftest.py. Standard library and pytest only, no package of ours.

JAX_GATE_SESSION names a folder. It holds `plan.json`: `leases` (slot, device, cpus, env, nodes, gauges), `only` (node
ids, or null for all), `broken` (files that are not collected), `skips` (regex, entry, reason), `solo` (there are no
workers: this very process runs the tests), `most_left` and `least_free` (see `left.py`), `gate` (process id of who
started it all). Each process that runs tests writes `<worker>.jsonl` there, a line for each event, and
`<worker>.crash`, where faulthandler writes.
Every line is written by a file of its own that is closed again: a test may close, or use up, all file descriptors.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from .journal import Journal
from .worker import Gate

SESSION = "JAX_GATE_SESSION"


class Controller:
    """The hooks of the process that only deals out tests to workers."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder, "controller")
        # A test that interrupts its parent is no person who wants all to end.
        signal.signal(signal.SIGINT, lambda *_: None)
        self.journal.note("controller", pid=self.journal.pid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Tell that the session ended of its own will."""
        self.journal.note("finish", status=int(exitstatus))


def _start() -> Gate | Controller | None:
    folder = os.environ.get(SESSION)
    if not folder:
        return None
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        if not json.loads(Path(folder, "plan.json").read_bytes())["solo"]:
            return Controller(Path(folder))
        worker = "solo"
    # What a test starts is no worker of this session.
    for key in (SESSION, "PYTEST_PLUGINS"):
        os.environ.pop(key, None)
    return Gate(Path(folder), worker)


gate = _start()


def pytest_configure(config: pytest.Config) -> None:
    """Take part; that it was imported so early was for the lease."""
    if gate is not None:
        config.pluginmanager.register(gate, "jax-release-gate")
