"""Processes that hold locks: the kernel's table, and processes that end meanwhile."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from core.lock_holders import lock_holders
from core.store import ContentStore


def test_process_with_locked_folder_is_found(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "steps")
    with store.scratch() as folder:
        (found,) = lock_holders(tmp_path)
        assert found.pid == os.getpid()
        assert found.paths == (folder,)
        assert (
            Path(found.argv[0]).name.startswith("python")
            or found.argv[0] == sys.executable
        )
        assert found.started < time.time()
    assert lock_holders(tmp_path) == ()


def test_system_without_table_of_locks_has_no_holders(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "steps").scratch():
        assert lock_holders(tmp_path, tmp_path / "proc") == ()
