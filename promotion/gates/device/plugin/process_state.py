"""State of a process that a test may leave changed to later tests of its worker."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

State = Mapping[tuple[str, Any], Any]
"""Kind and name of a part of the state -> its value."""
_TIMERS = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
_NOT_OF_TESTS = ("PYTEST_CURRENT_TEST", "PYTHONPATH")
"""Variables that pytest sets, and that every test class of JAX sets for its processes."""
_MODULES = ("modules", "")

# Copies of functions that tests may replace or mock.
_folder = os.getcwd
_change_folder = os.chdir
_environ = os.environ
_handler = signal.getsignal
_set_handler = signal.signal
_timer = signal.getitimer
_set_timer = signal.setitimer
_threads = threading.enumerate


def current_state() -> dict[tuple[str, Any], Any]:
    """Return folder, timers, handlers of signals, environment, jax's options and threads."""
    state: dict[tuple[str, Any], Any] = {_MODULES: len(sys.modules)}
    with contextlib.suppress(OSError):  # the folder may be deleted
        state["working folder", ""] = _folder()
    for name in _TIMERS:
        state["timer", name] = _timer(getattr(signal, name))[0] > 0
    for sign in signal.Signals:
        state["handler", sign.name] = _handler(sign)
    for name, text in dict(_environ).items():
        state["variable", name] = text
    for name, value in _options().items():
        state["jax.config", name] = value
    for thread in _threads():
        state["thread", thread] = True
    for name in _NOT_OF_TESTS:
        state.pop(("variable", name), None)
    return state


def left_changed(before: State, after: State, last: State) -> list[tuple[str, Any]]:
    """Return the parts that a test changed and its tear-down did not restore.

    Args:
        before, after: state around the call of the test, without fixtures.
        last: state after the tear-down.
    """
    # A module that the test imports may define options and variables, and start threads.
    imported = before.get(_MODULES) != after.get(_MODULES)
    left = []
    for part in {**before, **after}:
        stays = after.get(part) == last.get(part) != before.get(part)
        ignored = part[0] == "thread" if part in before else imported
        if stays and not ignored and part != _MODULES:
            left.append(part)
    return left


def restore(part: tuple[str, Any], before: State) -> str:
    """Restore one part of the state, except threads, and return its name."""
    kind, name = part
    value: Any = before.get(part)
    with contextlib.suppress(Exception):
        match kind:
            case "working folder":
                _change_folder(value)
            case "timer":
                _set_timer(getattr(signal, name), 0)
            case "handler":
                _set_handler(signal.Signals[name], value)
            case "variable" if value is None:
                _environ.pop(name)
            case "variable":
                _environ[name] = value
            case "jax.config":
                sys.modules["jax"].config.update(name, value)
            case "thread":
                name = name.name
    return f"{kind} {name}".rstrip()


def _options() -> dict[str, Any]:
    """Return jax's options; none if jax was not imported, or a test broke it."""
    with contextlib.suppress(Exception):
        return dict(sys.modules["jax"].config.values)
    return {}
