"""Early end of functions in threads: running, finished and waiting ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.interrupts import EndableCalls


def test_end_raises_in_running_function() -> None:
    calls = EndableCalls()
    begun = threading.Event()
    ended = threading.Event()

    def work() -> None:
        begun.set()
        ended.wait()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(calls.run, work)
        begun.wait()
        calls.end()
        ended.set()
        assert isinstance(future.exception(), SystemExit)


def test_end_leaves_thread_of_finished_function_alone() -> None:
    calls = EndableCalls()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(calls.run, divmod, 7, 2).result() == (3, 1)
        calls.end()
        assert pool.submit(divmod, 9, 2).result() == (4, 1)


def test_run_after_end_does_not_call_function() -> None:
    calls = EndableCalls()
    called = list[int]()
    calls.end()
    with pytest.raises(SystemExit):
        calls.run(called.append, 1)
    assert called == []
