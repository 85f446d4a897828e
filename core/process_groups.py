"""End of the commands of a process that was killed, which cannot end them itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

from core.process import CREDENTIAL_VARIABLES, merge_environment

_PROGRAM = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class GroupGuard:
    """A process that kills the registered process groups when this process is gone.

    PR_SET_PDEATHSIG of Linux would end only the direct child: the compilers that a
    driver starts would run on. The guard sees the end of its standard input, whose
    other end only this process has. It starts with the first group.

    Args:
        environment: environment of the guard, from which credentials are removed, since
            the commands can read it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = merge_environment(
            environment, dict.fromkeys(CREDENTIAL_VARIABLES, "")
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def add(self, group: int) -> None:
        """Register a process group, named by its leader."""
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Forget a process group, which has ended."""
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                argv = [sys.executable, "-I", "-S", "-c", _PROGRAM]
                # Ctrl-C in a terminal, which ends this process, must not end the guard.
                self._process = subprocess.Popen(
                    argv,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
            assert self._process.stdin is not None
            with suppress(OSError):  # the guard was killed; commands run without it
                os.write(self._process.stdin.fileno(), line.encode())
