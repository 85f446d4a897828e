"""End of threads whose work is not wanted any more."""

from __future__ import annotations

import ctypes
import threading


def end_threads(prefix: str) -> None:
    """Raise SystemExit in the threads whose names start with a prefix, at their next Python instruction.

    Python interrupts only the main thread, which then waits for the threads of its pools; a thread that reads device
    code would finish minutes later. The `with` and `finally` blocks of a thread clean up. The threads of pools that it
    started itself are left alone: if an idle one ended, its pool would never do the work that it has accepted.
    """
    for thread in threading.enumerate():
        if thread.name.startswith(prefix) and thread.ident:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
