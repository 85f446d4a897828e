"""Early end of functions that run in other threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

END_LOCK = threading.Lock()
"""Lock that delays `EndableCalls.end`, for a thread that must not end at the moment.

The others do not end either.
"""


class EndableCalls:
    """Functions in the threads of a pool, which the pool's owner can end early.

    Python interrupts only the main thread, which then waits for the threads of its
    pools; a thread that reads device code would finish minutes later. The `with` and
    `finally` blocks of a function clean up. Threads of pools that a function started
    itself, and idle threads of its own pool, are left alone: if an idle one ended, its
    pool would never do the work that it has accepted.
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._ended = False

    def run(self, function: Callable[..., _Result], *args: object) -> _Result:
        """Run a function in this thread.

        Raise SystemExit if it is ended, or was before its start.
        """
        thread = threading.get_ident()
        with END_LOCK:
            if self._ended:
                raise SystemExit
            self._threads.add(thread)
        try:
            return function(*args)
        finally:
            with END_LOCK:
                self._threads.discard(thread)
                _raise_in(
                    thread, None
                )  # the function has returned: do not end what this thread runs next

    def end(self) -> None:
        """Raise SystemExit once in each running function, at its next Python instruction."""
        with END_LOCK:
            self._ended = True
            for thread in self._threads:
                _raise_in(thread, SystemExit)
            self._threads.clear()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Set the exception that a thread raises next; None removes one that it has not raised yet."""
    value = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)
