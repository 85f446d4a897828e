"""Detection of resources that a test leaves behind.

Live arrays, processes with open devices, used device memory.

JAX's arrays are counted on every platform. Other device memory is measured where the
kernel reports it in a file, as amdgpu does, and only on devices that are not shared.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_GIVEN_BACK_SECONDS = 2.0
"""Seconds for a driver to release the memory of a process that ended."""
_EXITING, _KILLED = 0x404, 1 << (signal.SIGKILL - 1)
"""Flags of a task that exits or was killed (Linux, include/linux/sched.h).

Mask of its pending signals.
"""
_LAST = ("last_type", "last_value", "last_traceback", "last_exc")

# Copies of functions that tests may replace or mock.
_kill = os.kill
_readlink = os.readlink
_listdir = os.listdir
_file = open
_clock = time.monotonic
_sleep = time.sleep
_getpid = os.getpid


class LeakCheck:
    """Check for leaks of each test.

    Args:
        lease: lease of the worker; `nodes` are files that a process has open while it
            uses the devices, `gauges` are pairs of files with a device's total and used
            bytes.
        most: bytes of arrays that a test may leave alive.
        least: bytes that must be free after a test if they were free before the test.
    """

    def __init__(self, lease: Mapping[str, Any], *, most: int, least: int) -> None:
        self._nodes = frozenset(lease["nodes"])
        self._gauges = [tuple(pair) for pair in lease["gauges"]]
        self._most = most
        self._least = least
        self._children = _children()
        self._owners: dict[int, str] = {}
        """Process left behind -> test that started it."""
        self._live = 0
        self._free = least

    def before(self) -> None:
        """Measure live arrays and free memory before a test."""
        self._live, self._free = live_bytes(), self._free_bytes()

    def memory(self) -> str:
        """Return a message about memory that the finished test did not release.

        "" if there is none.
        """
        # The last failure's traceback keeps the arrays of its frames alive.
        for name in _LAST:
            vars(sys).pop(name, None)
        if self._persists(lambda: live_bytes() - self._live > self._most):
            return (
                f"The test left {_mib(live_bytes() - self._live)} of arrays alive; at"
                f" most {_mib(self._most)} may stay."
            )
        if self._free >= self._least and self._persists(
            lambda: self._free_bytes() < self._least, _GIVEN_BACK_SECONDS
        ):
            needed = f"later tests need {_mib(self._least)}"
            return (
                f"The test left its device with {_mib(self._free_bytes())} of memory"
                f" free; {needed}."
            )
        return ""

    def processes(self, test: str) -> list[int]:
        """Return the living processes that the finished test left behind."""
        living = _children()
        new = sorted(living - self._children)
        self._children |= living
        self._owners = {
            pid: owner for pid, owner in self._owners.items() if pid in living
        } | dict.fromkeys(new, test)
        return new

    def holders(self) -> Iterator[tuple[str, str]]:
        """Kill processes left behind with an open device.

        Yield the test and a message for each process.
        """
        for pid, test in [*self._owners.items()]:
            if node := self._held(pid):
                del self._owners[pid]
                with contextlib.suppress(OSError):
                    _kill(pid, signal.SIGKILL)
                yield (
                    test,
                    (
                        f"The test left process {pid} behind, which had {node} open and"
                        " was killed."
                    ),
                )

    @staticmethod
    def _persists(problem: Callable[[], bool], seconds: float = 0.0) -> bool:
        """Return whether a problem persists after garbage collection."""
        if not problem():
            return False
        gc.collect()
        until = _clock() + seconds
        while (still := problem()) and _clock() < until:
            _sleep(0.05)
        return still

    def _free_bytes(self) -> int:
        """Return the free bytes of the fullest device, or `least` if they are unknown."""
        with contextlib.suppress(OSError, ValueError):
            return min(
                (_number(total) - _number(used) for total, used in self._gauges),
                default=self._least,
            )
        return self._least

    def _held(self, pid: int) -> str:
        if not self._nodes:
            return ""
        with contextlib.suppress(OSError):
            for name in _listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if (path := _readlink(f"/proc/{pid}/fd/{name}")) in self._nodes:
                        return path
        return ""


def live_bytes() -> int:
    """Return the bytes of JAX's live arrays.

    0 if no backend has started, since none must be started here.
    """
    jax = sys.modules.get("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    try:
        return (
            sum(array.nbytes for array in jax.live_arrays())
            if jax and started and started()
            else 0
        )
    except Exception:  # a test may have broken jax itself
        return 0


def is_dying(pid: int) -> bool:
    """Return whether a process is dead or was sent SIGKILL (proc(5), /proc/[pid]/stat).

    The result is False if the state is unknown, since a test may have exhausted all
    file descriptors.
    """
    try:
        with _file(f"/proc/{pid}/stat", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        return words[0] in "ZX" or bool(
            int(words[6]) & _EXITING or int(words[28]) & _KILLED
        )
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError, IndexError):
        return False


def _children() -> set[int]:
    """Return the living children of this thread."""
    with (
        contextlib.suppress(OSError, ValueError),
        _file(f"/proc/self/task/{_getpid()}/children") as file,
    ):
        return set(map(int, file.read().split()))
    return set()


def _number(path: str) -> int:
    with _file(path) as file:
        return int(file.read())


def _mib(size: int) -> str:
    return f"{max(0, size) / (1 << 20):.0f} MiB"
