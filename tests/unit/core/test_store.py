"""Finished steps: stored once, shared by runs, and never removed by the cleanup of another run."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.build.output_dir import remove_leftovers, replace_folder
from core.steps import FinishedStep, StepStore
from core.store import ContentStore
from tests.support.sets import wheel_set

DATA = b"the wheel"
WHEEL = replace(wheel_set().wheels[0], sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA))


def keep(store: StepStore, saved: str) -> FinishedStep:
    with store.scratch() as name:
        folder = Path(name) / "step"
        folder.mkdir()
        (folder / WHEEL.filename).write_bytes(DATA)
        return store.keep("key", folder, WHEEL, saved)


def test_store_keeps_first_of_two_equal_results(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    first = keep(store, "first")
    inode = (first.folder / WHEEL.filename).stat().st_ino
    second = keep(store, "second")
    assert second == first
    assert (first.folder / WHEEL.filename).stat().st_ino == inode


def test_store_race_returns_winners_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, winner = shutil.rmtree, StepStore(tmp_path)

    def late(path: Path, *, ignore_errors: bool = False) -> None:
        """Let the other run finish just after the place was cleared."""
        real(path, ignore_errors=ignore_errors)
        monkeypatch.undo()
        keep(winner, "other")

    monkeypatch.setattr(shutil, "rmtree", late)
    assert keep(StepStore(tmp_path), "own").saved == "other"


def test_store_recreates_damaged_result(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    (keep(store, "first").folder / WHEEL.filename).write_bytes(b"damaged")
    assert store.find("key") is None
    assert keep(store, "second").saved == "second"


def test_store_sweeps_old_scratch_folders_only(tmp_path: Path) -> None:
    for name in (".new-old", ".new-young", "0123"):
        (tmp_path / name).mkdir()
    for name in (".new-old", "0123"):
        os.utime(tmp_path / name, times=(0, time.time() - 48 * 3600))
    ContentStore(tmp_path).sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-young", "0123"]


def test_store_removes_leftovers_but_not_files_in_use(tmp_path: Path) -> None:
    others = [".dist-2-abcd_123", ".dist-2.lock", ".dist.lock", ".dist-config", "dist", "dist-2"]
    for name in [*others, ".dist-abcd_123"]:
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
