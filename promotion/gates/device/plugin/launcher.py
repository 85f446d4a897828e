"""Program that runs pytest for one session, and ends every process that tests leave behind.

It runs in the tested Python and uses only the standard library. Arguments: `solo` or
`controller`, the name of pytest's process, and its command. Orphans become children of
this process, also those of daemons that replaced their environment. If the gate is
killed, the kernel ends this process, which ends the others. Source: prctl(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_EXIT_SECONDS = 10.0
"""Seconds for killed processes to exit, such as those that wait for a driver."""


def main(name: str, *argv: str) -> int:
    """Run the command, record how it ended, and return its exit status."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        status = subprocess.call(argv)
        line = json.dumps({"event": "down", "worker": name, "status": status})
        journal = Path(os.environ["JAX_GATE_SESSION"], "controller.jsonl")
        with journal.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    finally:
        end_children()
    return status % 256


def end_children() -> None:
    """Kill all children, and wait for them; those of a killed child become children."""
    until = time.monotonic() + _EXIT_SECONDS
    while time.monotonic() < until:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            # A kernel without this file leaves them to the gate's search by environment.
            with contextlib.suppress(OSError):
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
                for child in children.split():
                    os.kill(int(child), signal.SIGKILL)
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
