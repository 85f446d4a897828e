"""Several requests to a store at the same time, so that a set costs the time of a few and not of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

MAX_REQUESTS = 8
"""Requests that one command has under way at most."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_concurrently(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> tuple[_Result, ...]:
    """What a function gives for each item, in the items' order; up to LIMIT calls run at the same time.

    For what may happen in any order. After a failure none is begun any more, those under way come to their end, and
    then the first failure in the items' order is raised.
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

    with ThreadPoolExecutor(min(MAX_REQUESTS, len(items))) as pool:
        calls = [pool.submit(call, item) for item in items]
        try:
            wait(calls)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    # Whatever was not begun lies after a failure or beside one, which is raised here.
    for error in (one.exception() for one in calls if not one.cancelled()):
        if error is not None:
            raise error
    return tuple(one.result() for one in calls)  # type: ignore[misc]
