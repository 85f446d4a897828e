"""MD5 of several messages at once, compared with hashlib."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.util
import random
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelkit.gpu import md5_lanes
from wheelkit.gpu.md5_lanes import LANES, ROW, Md5Lanes

SIZES = (0, 1, 55, 56, 63, 64, 65, 119, 120, ROW - 1, ROW, ROW + 1, 2 * ROW + 64)


def expected(messages: list[bytes]) -> list[bytes]:
    return [hashlib.md5(message).digest() for message in messages]


def message(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture(params=["together", "hashlib"])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Md5Lanes:
    """Lanes with the machine code of this machine, and as on a machine without it."""
    if request.param == "hashlib":
        monkeypatch.setattr(md5_lanes, "_function", lambda: None)
    elif md5_lanes._function() is None:
        pytest.skip("this machine cannot run the machine code")
    return Md5Lanes()


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_md5_of_messages_of_all_lengths(lanes: Md5Lanes) -> None:
    for start in range(0, len(SIZES), LANES):
        messages = [message(size) for size in SIZES[start : start + LANES]]
        assert lanes.of(messages) == expected(messages)
    assert lanes.of([]) == []


@settings(max_examples=30, deadline=None)
@given(
    blocks=st.lists(st.lists(st.integers(0, 40), max_size=5), min_size=1, max_size=LANES),
    rests=st.lists(st.integers(0, 63), min_size=LANES, max_size=LANES),
)
def test_md5_of_messages_in_parts_of_all_sizes(blocks: list[list[int]], rests: list[int]) -> None:
    lanes = Md5Lanes()
    parts = [[message(64 * count) for count in counts] for counts in blocks]
    for own, rest in zip(parts, rests, strict=False):
        own.append(message(rest))
    lanes.begin()
    for number in range(max(map(len, parts))):
        turn = [own[number] if number < len(own) else b"" for own in parts]
        for row, part in zip(lanes.rows, turn, strict=False):
            row[: len(part)] = part
        lanes.update([len(part) for part in turn])
    assert lanes.digests()[: len(parts)] == expected([b"".join(own) for own in parts])


def test_part_after_the_last_one_is_refused(lanes: Md5Lanes) -> None:
    lanes.update([65])
    with pytest.raises(ValueError, match="only the last part"):
        lanes.update([64])


def test_threads_that_begin_at_once_keep_their_machine_code(switching: None) -> None:
    """Each of them may have encoded it; the code of none may be freed."""
    results = []
    barrier = threading.Barrier(8)

    def digest() -> None:
        barrier.wait()
        lanes = Md5Lanes()
        barrier.wait()
        gc.collect()
        results.append(lanes.of([message(100_000)]))

    md5_lanes._function.cache_clear()
    threads = [threading.Thread(target=digest) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected([message(100_000)])] * 8


@pytest.mark.parametrize("why", ["no encoder", "another processor", "memory may not be executed"])
def test_machine_that_cannot_run_the_machine_code_uses_hashlib(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "no encoder":  # it has wheels for x86-64 machines only
        monkeypatch.setitem(sys.modules, "iced_x86", None)
    spec: Any = importlib.util.spec_from_file_location("md5_elsewhere", md5_lanes.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, elsewhere)
    spec.loader.exec_module(elsewhere)
    if why == "another processor":
        monkeypatch.setattr(elsewhere.platform, "machine", lambda: "aarch64")
    if why == "memory may not be executed":
        monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mprotect=lambda *_: -1))
    assert elsewhere._function() is None
    assert elsewhere.Md5Lanes().of([message(100)]) == expected([message(100)])
