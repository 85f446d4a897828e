"""Search and termination of the processes of a run; other processes are never touched."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from promotion.gates.device.gpu_machine import control_groups

RUN = "JAX_GATE_RUN"
"""Variable with the session's folder, which marks every process that a session starts."""
_EXIT_SECONDS = 10.0
"""Seconds for killed processes to exit, such as those that wait for a driver."""


def marked_processes(session: Path) -> Iterator[int]:
    """Yield the processes that a session started, including orphans."""
    marker = f"{RUN}={session}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def kill_marked(session: Path) -> None:
    """Kill the processes that a session left behind, and wait until they are gone."""
    until = time.monotonic() + _EXIT_SECONDS
    dying = set[int]()
    while time.monotonic() < until:
        pids = {*marked_processes(session)}
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # A killed process loses its environment at once, and its open files only at the
        # end.
        dying = {*pids, *filter(alive, dying)}
        if not dying:
            return
        time.sleep(0.01)


def send_signal(pid: int, leader: int, sign: signal.Signals) -> None:
    """Send a signal to a worker, if its process id still belongs to this session."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getsid(pid) == leader:
            os.kill(pid, sign)


def alive(pid: int) -> bool:
    """Return whether a process has a thread that has not ended.

    Its first thread may end before the others.
    """
    try:
        state = (
            Path(f"/proc/{pid}/stat")
            .read_text(errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
        return state not in "ZX" or len([*Path(f"/proc/{pid}/task").iterdir()]) > 1
    except (OSError, IndexError):
        return False


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this control group the kernel has killed for want of memory.

    A container beside the gate that exceeds its limit does not count. Without such a
    counter, as in the root group of cgroup v2, all kills of the machine count. Source:
    Linux, mm/oom_kill.c and mm/memcontrol.c, which count a kill as `oom_kill` in the
    victim's group and its parents, and in /proc/vmstat.
    """
    groups = [folder / "memory.events" for folder in control_groups(root)]
    for path in (*groups, root / "proc/vmstat"):
        with suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
    return 0
