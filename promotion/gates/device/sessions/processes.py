"""Processes of a run: which there are, and how they are ended; only those that the run started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

RUN = "JAX_GATE_RUN"
"""Marks every process of a run, so that what tests leave behind is found, and nothing else."""
_PATIENCE = 10.0
"""Seconds that killed processes may take to go, as those do that wait for a driver."""


def marked_processes(run: str) -> Iterator[int]:
    """Processes that a run started, whatever became of their parents."""
    wanted = f"{RUN}={run}".encode()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            with suppress(OSError):
                if wanted in (place / "environ").read_bytes().split(b"\0"):
                    yield int(place.name)


def kill_marked(run: str) -> None:
    """End what a run left behind, which may hold a device or be writing its journal, and wait until it is gone."""
    until, dying = time.monotonic() + _PATIENCE, set[int]()
    while time.monotonic() < until:
        found = {*marked_processes(run)}
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # One that is killed loses its environment at once, and what it has open only in the end.
        dying = {*found, *filter(alive, dying)}
        if not dying:
            return
        time.sleep(0.01)


def send_signal(pid: int, leader: int, sign: signal.Signals) -> None:
    """Send a signal to a worker, if the number is still that of a process of this session."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getsid(pid) == leader:
            os.kill(pid, sign)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def was_killed(child: int) -> bool:
    """Whether a signal ended a child of this process that nobody has reaped yet; it stays for whoever waits for it."""
    try:
        told = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return told is not None and told.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
