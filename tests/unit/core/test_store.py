"""Finished steps: stored once, shared by runs, and never removed by the cleanup of another run."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.build.output_dir import locked, remove_leftovers, replace_folder, replacement
from core import cache
from core.errors import BusyError
from core.model import to_json
from core.steps import FinishedStep, StepStore
from core.store import ContentStore, in_use, lock_alone, lock_file, lock_shared, remove
from tests.support.sets import wheel_set

DATA = b"the wheel"
WHEEL = replace(wheel_set().wheels[0], sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
KEY = "0" * 64


def keep(store: StepStore, saved: str) -> FinishedStep:
    with store.scratch() as name:
        folder = Path(name) / "step"
        folder.mkdir()
        (folder / WHEEL.filename).write_bytes(DATA)
        return store.keep(KEY, folder, WHEEL, saved)


def test_store_keeps_first_of_two_equal_results(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    first = keep(store, "first")
    inode = (first.folder / WHEEL.filename).stat().st_ino
    second = keep(store, "second")
    assert second == first
    assert (first.folder / WHEEL.filename).stat().st_ino == inode


def test_store_race_returns_winners_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winner = StepStore(tmp_path)

    def late(value: object) -> Any:
        """Let the other run finish while this run writes the description of its result."""
        monkeypatch.undo()
        keep(winner, "other")
        return to_json(value)

    monkeypatch.setattr("core.steps.to_json", late)
    assert keep(StepStore(tmp_path), "own").saved == "other"


def test_store_race_for_damaged_result_returns_winners_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, winner = shutil.rmtree, StepStore(tmp_path)
    (keep(winner, "damaged").folder / "result.json").write_text("{")

    def late(path: Path, *, ignore_errors: bool = False) -> None:
        """Let the other run finish just after the place was cleared."""
        real(path, ignore_errors=ignore_errors)
        monkeypatch.undo()
        keep(winner, "other")

    monkeypatch.setattr(shutil, "rmtree", late)
    assert keep(StepStore(tmp_path), "own").saved == "other"


@pytest.mark.parametrize("file", [WHEEL.filename, "result.json"])
def test_store_keep_replaces_damaged_result(tmp_path: Path, file: str) -> None:
    store = StepStore(tmp_path)
    (keep(store, "first").folder / file).write_bytes(b"damaged")
    assert keep(store, "second").saved == "second"
    assert store.find(KEY) == keep(store, "third")


def test_store_recreates_damaged_result(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    (keep(store, "first").folder / WHEEL.filename).write_bytes(b"damaged")
    assert store.find(KEY) is None
    assert keep(store, "second").saved == "second"


def test_store_find_keeps_step_from_gc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    entries, descriptors, folders = cache.entries, [], [tmp_path / f"steps/{digit * 64}" for digit in "012"]
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
    assert [entry.name for entry in cache.collect(tmp_path, limit=-1)] == [f"steps/{'1' * 64}"]
    assert folders[0].is_dir()
    for descriptor in filter(None, descriptors):
        os.close(descriptor)


def test_entries_leave_out_what_another_run_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, removed = (tmp_path / "steps" / (digit * 64) for digit in "01")
    for folder in (kept, removed):
        folder.mkdir(parents=True)
    size_of = cache._size

    def remove_during(folder: Path) -> int:
        size = size_of(folder)
        if folder == removed:
            folder.rmdir()
        return size

    monkeypatch.setattr(cache, "_size", remove_during)
    assert [entry.path for entry in cache.entries(tmp_path)] == [kept]


def test_gc_keeps_folders_of_projects(tmp_path: Path) -> None:
    """A project may have folders with the names of those of a cache."""
    mine = [tmp_path / name for name in ("docs/guide", "sources/thesis", "results/run1", "inputs/data", "bazel/rules")]
    names = ("a" * 64, f"jax-{'b' * 40}", "bazel", ".new-dead", "context-abc")
    cached = [
        tmp_path / kind / name
        for kind, name in zip(("inputs", "sources", "bazel", "rocm/trees", "images/contexts"), names, strict=True)
    ]
    for folder in (*mine, *cached):
        folder.mkdir(parents=True)
        os.utime(folder, (1, 1))
    assert {entry.path for entry in cache.collect(tmp_path, limit=-1)} == {*cached}
    assert all(folder.is_dir() for folder in mine)


def test_store_sweeps_scratch_folders_of_dead_runs_only(tmp_path: Path) -> None:
    for name in (".new-dead", ".new-alive", "0123"):
        (tmp_path / name).mkdir()
    lock = lock_shared(tmp_path / ".new-alive")
    with ContentStore(tmp_path).scratch() as own:
        ContentStore(tmp_path).sweep()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".new-alive", own.name, "0123"])
    os.close(lock)
    ContentStore(tmp_path).sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["0123"]
    ContentStore(tmp_path / "none").sweep()
    assert not (tmp_path / "none").exists()


def test_store_sweep_spares_folder_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = tempfile.mkdtemp

    def fake_mkdtemp(**options: Any) -> str:
        """Let another run sweep between the creation of a folder and its lock."""
        name = str(create(**options))
        ContentStore(tmp_path).sweep()
        return name

    monkeypatch.setattr(tempfile, "mkdtemp", fake_mkdtemp)
    with ContentStore(tmp_path).scratch() as work:
        assert work.is_dir()


def test_store_sweep_spares_folder_that_is_being_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").mkdir()
    real, left = shutil.rmtree, []

    def fake_rmtree(path: Path, *, ignore_errors: bool = False) -> None:
        """Let another run sweep before the files are removed."""
        monkeypatch.undo()
        ContentStore(tmp_path).sweep()
        left.append(path.is_dir())
        real(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", fake_rmtree)
    assert remove(tmp_path / "old")
    assert (left, list(tmp_path.iterdir())) == ([True], [])


def folder_behind_link(link: Path, folder: Path) -> Path:
    """Create a link to a folder with an old subfolder, which is returned."""
    inner = folder / "inner"
    inner.mkdir(parents=True)
    for path in (inner, folder):
        path.chmod(0o755)
        os.utime(path, (1, 1))
    link.parent.mkdir(parents=True)
    link.symlink_to(folder)
    return inner


def test_remove_of_link_keeps_its_target(tmp_path: Path) -> None:
    link = tmp_path / f"steps/{KEY}"
    inner = folder_behind_link(link, tmp_path / "elsewhere")
    assert remove(link)
    assert list(link.parent.iterdir()) == []
    assert [path.stat().st_mode & 0o777 for path in (inner, inner.parent)] == [0o755, 0o755]


def test_gc_ignores_link(tmp_path: Path) -> None:
    link = tmp_path / f"steps/{KEY}"
    folder_behind_link(link, tmp_path / "elsewhere")
    assert cache.entries(tmp_path) == cache.collect(tmp_path, limit=-1) == ()
    assert link.is_symlink()


def test_lock_alone_waits_and_leaves_nothing(tmp_path: Path) -> None:
    folder, waits = tmp_path / "parts/one", []

    def second() -> bool:
        with lock_alone(folder, lambda: waits.append(in_use(folder))) as waited:
            assert folder.is_dir()
            return waited

    with ThreadPoolExecutor(1) as pool:
        with lock_alone(folder, lambda: None) as waited:
            other = pool.submit(second)
            while not waits:
                time.sleep(0.002)
            assert not waited
        assert other.result()
    assert (waits, list(tmp_path.iterdir())) == ([True], [])


def test_lock_alone_keeps_files(tmp_path: Path) -> None:
    with lock_alone(tmp_path / "parts/one", lambda: None):
        (tmp_path / "parts/one/data").write_bytes(b"x")
    assert (tmp_path / "parts/one/data").exists()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_lock_ignores_file_that_previous_owner_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path, real, calls = tmp_path / "lock", fcntl.flock, []

    def fake_flock(fd: int, operation: int) -> None:
        """Remove the file between its opening and the lock, as another run does at its end."""
        calls.append(operation)
        if len(calls) == 1:
            path.rmdir() if what == "folder" else path.unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", fake_flock)
    with lock_alone(path, lambda: None) if what == "folder" else lock_file(path):
        monkeypatch.undo()
        assert in_use(path)
    assert len(calls) == 2


def test_lock_file_excludes_others_and_disappears(tmp_path: Path) -> None:
    with lock_file(tmp_path / ".dist.lock"):
        with pytest.raises(BlockingIOError), lock_file(tmp_path / ".dist.lock"):
            pass
        assert (tmp_path / ".dist.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_lock_alone_on_impossible_folder_ends(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"), lock_alone(Path("/proc/none/x"), lambda: None):
        pass


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_output_dir_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def build(out: Path) -> None:
        with locked(out), replacement(out) as fresh:
            (fresh / "wheel").write_bytes(b"x")
            raise error

    with pytest.raises(error):
        build(tmp_path / "a/b/dist")
    assert list(tmp_path.iterdir()) == []


def test_output_dir_success_leaves_set_only(tmp_path: Path) -> None:
    (tmp_path / ".dist.lock").touch()  # of a killed run
    (tmp_path / ".dist.new-abcd_123").mkdir()
    with locked(tmp_path / "dist"), replacement(tmp_path / "dist") as fresh:
        (fresh / "wheels.json").write_text("{}")
        with pytest.raises(BusyError, match="Another run uses"), locked(tmp_path / "dist"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]


def test_output_dir_error_in_block_is_not_another_run(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), locked(tmp_path / "dist"):
        raise BlockingIOError


def test_store_removes_leftovers_but_not_files_in_use(tmp_path: Path) -> None:
    users = [".dist-packages", ".dist-original", ".dist.new-config"]
    others = [*users, ".dist-2.new-abcd_123", ".dist-2.lock", ".dist.lock", "dist", "dist-2"]
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
