"""Detection of resources that a test leaves behind.

JAX's arrays are counted on every platform, and processes that have a device open.
Other device memory is counted where a worker is alone on its devices.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

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
_getpid = os.getpid


class LeakCheck:
    """Check for leaks of each test.

    Args:
        lease: lease of the worker; `nodes` are files that a process has open while it
            uses the devices, and `alone` is true if no other worker uses them.
        most: bytes of arrays, or of other device memory, that a test may leave.
    """

    def __init__(self, lease: Mapping[str, Any], *, most: int) -> None:
        self._nodes = frozenset(lease["nodes"])
        self._alone = lease["alone"]
        self._most = most
        self._children = _children()
        self._owners: dict[int, str] = {}
        """Process left behind -> test that started it."""
        self._live = 0
        self._free: int | None = None
        """Free bytes of the devices after the last test, and those that jax holds in reserve."""

    def before(self) -> None:
        """Measure live arrays before a test."""
        self._live = live_bytes()

    def arrays(self) -> str:
        """Return a message about arrays that the finished test left alive; "" without them."""
        # The last failure's traceback keeps the arrays of its frames alive.
        for name in _LAST:
            vars(sys).pop(name, None)
        if live_bytes() - self._live > self._most:
            gc.collect()
        left = live_bytes() - self._live
        if left <= self._most:
            return ""
        return (
            f"The test left {_mib(left)} of arrays alive; at most {_mib(self._most)} may"
            " stay."
        )

    def device_memory(self, free: int | None) -> str:
        """Return the device memory, besides arrays, that the finished test left used, or "".

        Args:
            free: free bytes of the devices.
        """
        if free is None or not self._alone:
            return ""
        last = self._free
        self._free = free + reserved_bytes()
        lost = 0 if last is None else last - self._free
        return _mib(lost) if lost > self._most else ""

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


def reserved_bytes() -> int:
    """Return the bytes of the devices in the pools of jax's allocator; 0 without pools."""
    total = 0
    with contextlib.suppress(Exception):
        for device in sys.modules["jax"].local_devices():
            total += (device.memory_stats() or {}).get("pool_bytes", 0)
    return total


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


def _mib(size: int) -> str:
    return f"{max(0, size) / (1 << 20):.0f} MiB"
