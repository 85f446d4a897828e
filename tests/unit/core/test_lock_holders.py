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
        assert (found.pid, found.paths) == (os.getpid(), (folder,))
        assert Path(found.argv[0]).name.startswith("python") or found.argv[0] == sys.executable
        assert found.started < time.time()
    assert lock_holders(tmp_path) == ()


def test_locks_elsewhere_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with ContentStore(tmp_path / "steps").scratch():
        assert lock_holders(tmp_path / "other") == ()


def test_ended_processes_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    locked = tmp_path / "cache" / "entry"
    locked.mkdir(parents=True)
    status = locked.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    proc = tmp_path / "proc"
    (proc / "77").mkdir(parents=True)
    (proc / "77" / "cmdline").write_bytes(b"python\0-m\0ci_build.cli\0")
    (proc / "77" / "stat").write_text("77 (a ) b) S 1 " + " ".join(map(str, range(5, 30))))
    rows = [
        f"1: FLOCK  ADVISORY  READ 77 {place} 0 EOF",
        f"1: -> FLOCK  ADVISORY  WRITE 78 {place} 0 EOF",
        f"2: POSIX  ADVISORY  WRITE 79 {place} 0 EOF",
        f"3: FLOCK  ADVISORY  READ 80 {place} 0 EOF",
        "4: FLOCK  ADVISORY  READ 77 00:01:1 0 EOF",
    ]
    (proc / "locks").write_text("\n".join(rows) + "\n")
    (found,) = lock_holders(tmp_path / "cache", proc)
    assert (found.pid, found.argv, found.paths) == (77, ("python", "-m", "ci_build.cli"), (locked,))


def test_system_without_table_of_locks_has_no_holders(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "steps").scratch():
        assert lock_holders(tmp_path, tmp_path / "proc") == ()
