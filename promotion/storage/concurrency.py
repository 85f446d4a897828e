"""Concurrent requests to a store, so that a set costs the time of a few requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

MAX_REQUESTS = 8
"""Maximum number of concurrent requests of one command."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_concurrently(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, most: int = MAX_REQUESTS
) -> tuple[_Result, ...]:
    """Call a function for each item, up to `most` at the same time, and return the results in the items' order.

    After a failure no further call starts. When the running calls have ended, the first failure in the items' order is
    raised.
    """
    items = tuple(items)
    if len(items) < 2:
        return tuple(function(item) for item in items)
    failed: list[bool] = []

    def call(item: _Item) -> _Result | None:
        if failed:
            return None
        try:
            return function(item)
        except BaseException:
            failed.append(True)
            raise

    with ThreadPoolExecutor(min(most, len(items))) as pool:
        calls = [pool.submit(call, item) for item in items]
        try:
            wait(calls)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    # Every call that did not start follows a failure, which is raised here.
    for error in (one.exception() for one in calls if not one.cancelled()):
        if error is not None:
            raise error
    return tuple(one.result() for one in calls)  # type: ignore[misc]
