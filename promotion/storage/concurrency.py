"""Concurrent requests to a store: all files of a set cost the time of a few requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

MAX_REQUESTS = 8
"""Maximum number of concurrent requests of one command."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_concurrently(
    function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> tuple[_Result, ...]:
    """Call a function for each item, up to MAX_REQUESTS at once, and return ordered results.

    After a failure no further call starts. When the running calls have ended, the first
    failure in the items' order is raised.
    """
    items = tuple(items)
    if len(items) < 2:
        return tuple(function(item) for item in items)
    failed = threading.Event()

    def call(item: _Item) -> _Result | None:
        if failed.is_set():
            return None
        try:
            return function(item)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(min(MAX_REQUESTS, len(items))) as pool:
        # Every call that did not start follows a failure, which is raised here.
        return cast("tuple[_Result, ...]", tuple(pool.map(call, items)))
