"""Single faults of a folder's bucket: each trial disturbs one system call of one command, then runs the command again.

    python -m tests.support.folder_faults FOLDER COUNT SEED

Runs COUNT trials in FOLDER in which a process is killed by SIGKILL, and prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from core.errors import CiBuildError
from promotion.storage.directory_bucket import DirBucket
from tests.support.failing_disk import FailingDisk
from tests.support.fault_campaign import Content, Tally, World, attempt, differences, life


def content(root: Path) -> Content:
    """Return the bytes of every object of a folder's bucket."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name[0] != ".")
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


class FolderTrials:
    """Undisturbed states of a bucket before and after each command, for trials that start from them."""

    def __init__(self, folder: Path) -> None:
        self.world = World.made(folder / "sets")
        self.tally = Tally()
        self._folder, self._work = folder, folder / "work"
        self._calls: dict[str, int] = {}
        self._after: dict[str, Content] = {}
        self._work.mkdir()
        for name, act in life(self.world).items():
            shutil.copytree(self._work, self._before(name))
            with FailingDisk(self._work) as disk:
                act(DirBucket(self._work))
            self._calls[name], self._after[name] = disk.calls, content(self._work)

    def _before(self, name: str) -> Path:
        return self._folder / "before" / name

    @property
    def calls(self) -> int:
        """Number of system calls of all commands, each of which can meet a fault."""
        return sum(self._calls.values())

    def sample(self, count: int, seed: int) -> Iterator[tuple[str, int, int]]:
        """Yield (command, number of a system call, seed), the commands in turn."""
        chance = random.Random(seed)
        names = [*self._calls]
        for number in range(count):
            name = names[number % len(names)]
            yield name, chance.randrange(self._calls[name]), chance.randrange(1 << 30)

    def trial(self, name: str, at: int, seed: int, *, kill: bool = False) -> None:
        """Disturb one system call of a command, look at the pages, and run the command again."""
        shutil.rmtree(self._work)
        shutil.copytree(self._before(name), self._work)
        bucket, act, tally = DirBucket(self._work), life(self.world)[name], self.tally
        disk = FailingDisk(self._work, at=at, seed=seed, kill=kill)
        if kill:
            tally.commands += 1
            killed = _killed(disk, lambda: act(bucket))
            disk.injected = f"killed at call {at}" if killed else ""
            tally.interrupted += killed
        else:
            with disk:
                attempt(act, bucket, tally, f"{name}, call {at}, seed {seed}")
        what = f"{name}, {disk.injected}"
        tally.faults += bool(disk.injected)
        tally.problems += [f"{what}: {problem}" for problem in self.world.problems(bucket)]
        try:
            with FailingDisk(self._work):
                act(bucket)
        except CiBuildError as error:
            tally.problems.append(f"{what}: run again: {error}")
        found = content(self._work)
        tally.problems += [f"{what}: {problem}" for problem in differences(found, self._after[name])]
        if not kill and "unlink" not in disk.injected:
            tally.problems += [f"{what}: left {path}" for path in self._work.rglob(".new-*")]


def _killed(disk: FailingDisk, act: object) -> bool:
    """Run an action in a copy of this process, and return whether it was killed."""
    assert callable(act)
    child = os.fork()
    if child == 0:
        try:
            with disk:
                act()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


if __name__ == "__main__":
    trials = FolderTrials(Path(sys.argv[1]))
    for command, call, chosen in trials.sample(int(sys.argv[2]), int(sys.argv[3])):
        trials.trial(command, call, chosen, kill=True)
    sys.stdout.write(json.dumps(asdict(trials.tally)))
