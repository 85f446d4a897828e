"""Changes that code makes to its process; programs that the Python of a site runs load this file by its path.

A package that jax imports in every program must not change the program: its environment, signals, search paths, threads
and the functions of other modules. Only the standard library is used.
"""

from __future__ import annotations

import atexit
import gc
import locale
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

State = dict[str, Any]
"""Name of a part of the process -> its value."""
_LIMITS = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_AS,
    resource.RLIMIT_STACK,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_CORE,
)
_WATCHED = (socket, subprocess)
"""Modules that are imported so that a replaced function of them is seen."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = {
    **dict.fromkeys(("socket.connect", "socket.getaddrinfo", "socket.sendto"), "uses the network"),
    **dict.fromkeys(("os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.Popen"), "starts a process"),
    **dict.fromkeys(
        ("os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"),
        "changes files",
    ),
}
"""Audit event of Python -> clause about it."""
_recorders: list[list[str]] = []
_hooked: list[bool] = []
"""Not empty once Python calls `_audit`, which cannot be undone."""


def state() -> State:
    """Return the parts of the process that imports must not change."""
    signals = {f"the handler of {number.name}": signal.getsignal(number) for number in signal.Signals}
    return {
        **{f"the environment variable {name}": value for name, value in os.environ.items()},
        **signals,
        "sys.path": tuple(sys.path),
        "sys.meta_path": tuple(sys.meta_path),
        "warnings.filters": tuple(warnings.filters),
        "hidden modules": tuple(name for name, module in sys.modules.items() if module is None),
        "the recursion limit": sys.getrecursionlimit(),
        "the garbage collector": (gc.isenabled(), gc.get_threshold()),
        "the umask": _umask(),
        "the limits of resources": tuple(resource.getrlimit(number) for number in _LIMITS),
        "the working directory": os.getcwd(),  # noqa: PTH109 # Path.cwd is slower, and may be simulated
        "the locale": locale.setlocale(locale.LC_ALL),
        "logging": (logging.root.manager.disable, logging.root.level, tuple(logging.root.handlers)),
        "the threads": tuple(threading.enumerate()),
    }


def _umask() -> int:
    mask = os.umask(0)  # it can be read only by a change
    os.umask(mask)
    return mask


def functions() -> State:
    """Return the functions and classes of the loaded modules of the standard library."""
    modules = [
        (name, module)
        for name, module in sys.modules.items()
        if name.partition(".")[0] in sys.stdlib_module_names and isinstance(module, ModuleType)
    ]
    return {
        f"{name}.{key}": value for name, module in modules for key, value in vars(module).items() if callable(value)
    }


def differences(before: State, after: State) -> list[str]:
    """Return a clause for each part that was added, removed or replaced; a new function was not replaced."""
    changed = [name for name, value in before.items() if name in after and not _same(value, after[name])]
    added = [name for name in after.keys() ^ before.keys() if name.startswith("the environment variable ")]
    return [f"changes {name}" for name in sorted((*changed, *added))]


def _same(one: object, other: object) -> bool:
    return one is other or (not callable(one) and one == other)


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Yield a list that gets a clause for each effect of the block."""
    effects: list[str] = []
    before = state() | functions()
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked.append(True)
    _recorders.append(effects)
    try:
        with _recorded_exits(effects):
            yield effects
    finally:
        _recorders.pop()
        effects += differences(before, state() | functions())


@contextmanager
def _recorded_exits(effects: list[str]) -> Iterator[None]:
    """Record functions that modules outside of the standard library run at exit."""
    module: Any = atexit
    register: Callable[..., Any] = module.register

    def recording(function: Callable[..., Any], *args: object, **options: object) -> object:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if caller.partition(".")[0] not in sys.stdlib_module_names:
            effects.append("runs a function at exit")
        return register(function, *args, **options)

    module.register = recording
    try:
        yield
    finally:
        module.register = register


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _recorders:
        return
    clause, path = _EVENTS.get(event, ""), args[0] if args else ""
    if event == "open" and isinstance(path, (str, bytes)) and isinstance(args[2], int) and args[2] & _WRITING:
        clause = "writes files"  # Python opens the descriptors of bytecode a second time
    own, text = sys.pycache_prefix, os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
    if clause and text != os.devnull and not (own and text.startswith(own)) and clause not in _recorders[-1]:
        _recorders[-1].append(clause)
