"""Finished steps: stored once, shared by runs, and never removed by the cleanup of another run."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.wheelset.output_dir import (
    locked,
    remove_leftovers,
    replace_folder,
    replacement,
)
from core import cache_entries as cache
from core.errors import BusyError
from core.steps import FinishedStep, StepStore
from core.store import ContentStore, lock_alone, lock_file, lock_shared, remove
from tests.support.sets import wheel_set

DATA = b"the wheel"
WHEEL = replace(
    wheel_set().wheels[0], sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA)
)
KEY = "0" * 64


def keep(store: StepStore, saved: str) -> FinishedStep:
    with store.scratch() as name:
        folder = Path(name) / "step"
        folder.mkdir()
        (folder / WHEEL.filename).write_bytes(DATA)
        return store.keep(KEY, FinishedStep(wheel=WHEEL, folder=folder, saved=saved))


def test_store_keeps_first_of_two_equal_results(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    first = keep(store, "first")
    inode = (first.folder / WHEEL.filename).stat().st_ino
    second = keep(store, "second")
    assert second == first
    assert (first.folder / WHEEL.filename).stat().st_ino == inode


@pytest.mark.parametrize("file", [WHEEL.filename, "result.json"])
def test_store_keep_replaces_damaged_result(tmp_path: Path, file: str) -> None:
    store = StepStore(tmp_path)
    (keep(store, "first").folder / file).write_bytes(b"damaged")
    assert keep(store, "second").saved == "second"
    assert store.find(KEY) == keep(store, "third")


def test_store_find_keeps_step_from_gc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StepStore(tmp_path / "steps")
    folder = keep(store, "first").folder
    os.utime(folder, (1, 1))
    found = store.find(KEY)
    assert found is not None
    assert cache.collect(tmp_path, limit=-1, kinds=["steps"]) == ()
    monkeypatch.setattr(os, "utime", fail)
    assert store.find(KEY) == found


def fail(*_: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("use", [lambda folder: os.utime(folder), lock_shared])
def test_gc_keeps_entry_used_after_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], int | None]
) -> None:
    entries = cache.entries
    descriptors = []
    folders = [tmp_path / f"steps/{digit * 64}" for digit in "012"]
    for folder in folders:
        folder.mkdir(parents=True)
        os.utime(folder, (1, 1))

    def fake_entries(*args: Any) -> tuple[cache.CacheEntry, ...]:
        """Let other runs use one entry and remove another one after the listing."""
        listed = entries(*args)
        descriptors.append(use(folders[0]))
        folders[2].rmdir()
        return listed

    monkeypatch.setattr(cache, "entries", fake_entries)
    assert [entry.name for entry in cache.collect(tmp_path, limit=-1)] == [
        f"steps/{'1' * 64}"
    ]
    assert folders[0].is_dir()
    for descriptor in filter(None, descriptors):
        os.close(descriptor)


def test_store_sweeps_scratch_folders_of_dead_runs_only(tmp_path: Path) -> None:
    for name in (".new-dead", ".new-alive", "0123"):
        (tmp_path / name).mkdir()
    lock = lock_shared(tmp_path / ".new-alive")
    with ContentStore(tmp_path).scratch() as own:
        ContentStore(tmp_path).sweep()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            [".new-alive", own.name, "0123"]
        )
    os.close(lock)
    ContentStore(tmp_path).sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["0123"]
    ContentStore(tmp_path / "none").sweep()
    assert not (tmp_path / "none").exists()


def test_remove_of_link_keeps_its_target(tmp_path: Path) -> None:
    target = tmp_path / "target/inner"
    target.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(target.parent)
    assert remove(link)
    assert not link.is_symlink()
    assert target.is_dir()


def test_lock_alone_waits_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "parts/one"
    waiting = threading.Event()

    def second() -> bool:
        with lock_alone(folder, waiting.set) as waited:
            assert folder.is_dir()
            return waited

    with ThreadPoolExecutor(1) as pool:
        with lock_alone(folder, lambda: None) as waited:
            other = pool.submit(second)
            waiting.wait()
            assert not waited
        assert other.result()
    assert list(tmp_path.iterdir()) == []


def test_lock_file_excludes_others_and_disappears(tmp_path: Path) -> None:
    with lock_file(tmp_path / ".dist.lock"):
        with pytest.raises(BlockingIOError), lock_file(tmp_path / ".dist.lock"):
            pass
        assert (tmp_path / ".dist.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_output_dir_failure_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a/b/dist"
    with pytest.raises(KeyboardInterrupt), locked(out), replacement(out):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_output_dir_success_leaves_set_only(tmp_path: Path) -> None:
    (tmp_path / ".dist.lock").touch()  # of a killed run
    (tmp_path / ".dist.new-abcd_123").mkdir()
    with locked(tmp_path / "dist"), replacement(tmp_path / "dist") as fresh:
        (fresh / "wheels.json").write_text("{}")
        with (
            pytest.raises(BusyError, match="Another run uses"),
            locked(tmp_path / "dist"),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]


def test_store_removes_leftovers_but_not_files_in_use(tmp_path: Path) -> None:
    users = [".dist-packages", ".dist-original", ".dist.new-config"]
    others = [
        *users,
        ".dist-2.new-abcd_123",
        ".dist-2.lock",
        ".dist.lock",
        "dist",
        "dist-2",
    ]
    for name in [*others, ".dist.new-abcd_123"]:
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path / "dist")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_swap_failure_restores_previous_set(tmp_path: Path) -> None:
    out, fresh, old = (tmp_path / name for name in ("dist", "fresh", "old"))
    out.mkdir()
    (out / "wheels.json").write_text("before")
    with pytest.raises(FileNotFoundError):
        replace_folder(fresh, out, old)
    assert (out / "wheels.json").read_text() == "before"
    fresh.mkdir()
    replace_folder(fresh, out, old)
    assert list(out.iterdir()) == []
    assert (old / "wheels.json").read_text() == "before"
