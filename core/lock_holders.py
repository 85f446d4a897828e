"""Processes that hold locks below a folder, from the kernel's table of locks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from core.frozen import frozen

_DEPTH = 3
"""Levels below the folder that are searched; stores and their entries are within these."""


@frozen
class LockHolder:
    """A process with locks.

    Attributes:
        argv: its command line; empty if it belongs to someone else.
        started: seconds since 1970.
        paths: locked files and folders.
    """

    pid: int
    argv: tuple[str, ...]
    started: float
    paths: tuple[Path, ...]


def lock_holders(root: Path, proc: Path = Path("/proc")) -> tuple[LockHolder, ...]:
    """Return the processes that hold locks below a folder, oldest first.

    None on systems without /proc/locks (proc(5)).

    Processes of other containers are not visible.
    """
    try:
        rows = (proc / "locks").read_text().splitlines()
    except OSError:
        return ()
    held: dict[tuple[int, int], set[int]] = {}
    for words in map(str.split, rows):
        # "1: FLOCK ADVISORY READ 4242 08:01:123 0 EOF"; a line with "->" is a process
        # that waits.
        if len(words) == 8 and words[1] == "FLOCK" and words[4].isdecimal():
            major, minor, inode = words[5].split(":")
            device = os.makedev(int(major, 16), int(minor, 16))
            held.setdefault((device, int(inode)), set()).add(int(words[4]))
    paths: dict[int, list[Path]] = {}
    for path, status in _below(root, _DEPTH) if held else ():
        for pid in held.get((status.st_dev, status.st_ino), ()):
            paths.setdefault(pid, []).append(path)
    holders = [_holder(pid, sorted(found), proc) for pid, found in paths.items()]
    alive = [holder for holder in holders if holder]
    return tuple(sorted(alive, key=lambda holder: (holder.started, holder.pid)))


def _below(root: Path, depth: int) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        with os.scandir(root) as directory:
            for entry in directory:
                yield Path(entry.path), entry.stat(follow_symlinks=False)
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    yield from _below(Path(entry.path), depth - 1)
    except OSError:  # removed just now, or not readable
        return


def _holder(pid: int, paths: list[Path], proc: Path) -> LockHolder | None:
    """Return a process; None if it ended."""
    folder = proc / str(pid)
    try:
        command = (folder / "cmdline").read_text(errors="replace").rstrip("\0")
        # Field 22 of stat, after the name in parentheses: ticks between the boot and
        # the start of the process.
        stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2]
        ticks = int(stat.split()[19])
    except (OSError, IndexError, ValueError):
        return None
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")
    argv = tuple(command.split("\0"))
    return LockHolder(pid=pid, argv=argv, started=started, paths=tuple(paths))
