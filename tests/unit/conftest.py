"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from promotion.storage.directory_bucket import DirBucket
from tests.support.hypothesis_profile import load_profile
from tests.support.left_out import STRICT

load_profile()


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, since power failures are not tested here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class _OneAtATime:
    """Stands in for ThreadPoolExecutor and makes its calls one after another, in this thread."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    @staticmethod
    def map(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)


@pytest.fixture(autouse=True)
def one_request_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no threads for requests to buckets, which cost a third of the time here; CI starts them.

    Modules that test concurrency have the mark `threads`.
    """
    if not STRICT and request.node.get_closest_marker("threads") is None:
        monkeypatch.setattr("promotion.storage.concurrency.ThreadPoolExecutor", _OneAtATime)


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket")


@pytest.fixture(autouse=True)
def clean_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy come from a clean checkout of main, since unit tests start no processes."""
    status = f"# branch.oid {'c' * 40}\n# branch.head main\n"
    monkeypatch.setattr("ci_build.release.authority._git_status", lambda _: status)
