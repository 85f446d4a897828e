"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from promotion.storage.directory_bucket import DirBucket
from tests.support.left_out import STRICT


@pytest.fixture(autouse=True, scope="package")
def unit_environment() -> Iterator[None]:
    """Skip fsync, since power failures are not tested here, and let the policy come from a clean checkout of main.

    Fixtures of modules have both, too. Unit tests start no processes, such as git.
    """
    status = f"# branch.oid {'c' * 40}\n# branch.head main\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr("ci_build.release.authority._git_status", lambda _: status)
        yield


class _OneAtATime:
    """Stands in for ThreadPoolExecutor and makes its calls one after another, in this thread."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    @staticmethod
    def map(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)


@pytest.fixture(autouse=True, scope="module")
def one_request_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start no threads for requests to buckets, which cost a third of the time here; CI starts them.

    Modules that test concurrency have the mark `threads`.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not STRICT and request.node.get_closest_marker("threads") is None:
            patch.setattr("promotion.storage.concurrency.ThreadPoolExecutor", _OneAtATime)
        yield


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket")
