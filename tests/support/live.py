"""Checks of an index that changes while it is read, on a folder and on an S3 store."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from promotion.index.audit import verify
from promotion.index.ledger import read_ledger
from promotion.index.publish import publish
from promotion.index.repair import repair
from promotion.storage.bucket import Bucket
from promotion.storage.keys import StagedSet
from tests.support.bucket_contract import run_together
from tests.support.http_reader import HttpReader
from tests.support.promoting import RELEASED, objects, offered, staged_in
from tests.support.promotion_child import act
from tests.support.reading import Reader
from tests.support.wheel_sets import SetWheel, make_wheels

ROOT = Path(__file__).resolve().parents[2]
OWN = "{}.{}".format(*sys.version_info[:2])
COUNT = 8
CHILD = "tests.support.promotion_child"
POOL = ThreadPoolExecutor(COUNT)
"""Threads that wait for child processes."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A bucket with staged sets of one index.

    Attributes:
        where: name of the bucket on the command line.
        simple: URL of the released index.
        environment: environment of processes that use the bucket.
    """

    bucket: Bucket
    where: str
    simple: str
    sets: Sequence[StagedSet]
    groups: Sequence[Sequence[SetWheel]]
    environment: Mapping[str, str]

    @property
    def wheels(self) -> list[SetWheel]:
        return [wheel for group in self.groups for wheel in group]

    def names(self, *sets: int) -> frozenset[str]:
        return frozenset(wheel.wheel.filename for number in sets for wheel in self.groups[number])

    def start(self, operation: str, argument: str = "", *die: int) -> Future[subprocess.CompletedProcess[str]]:
        """Start an operation in a child process."""
        argv = [sys.executable, "-m", CHILD, self.where, operation, argument, *map(str, die)]
        environment = {**os.environ, **self.environment}
        run = partial(subprocess.run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        return POOL.submit(run, argv)

    def start_new(self, operation: str, argument: str) -> subprocess.Popen[bytes]:
        """Start an operation in a new Python, which the caller can kill."""
        argv = [sys.executable, "-m", CHILD, self.where, operation, argument]
        return subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, **self.environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def reader(self) -> HttpReader:
        return HttpReader(self.simple, Reader(self.wheels))

    def sound(self) -> None:
        assert list(verify(self.bucket, RELEASED)) == []


def staged_sets(bucket: Bucket, folder: Path, count: int) -> tuple[list[StagedSet], list[list[SetWheel]]]:
    """Stage sets of three wheels each."""
    groups = [make_wheels(folder / "w", version=f"0.10.2+rocm7.{n}.0", pythons=(OWN,)) for n in range(count)]
    return [staged_in(bucket, folder / "sets", group) for group in groups], groups


def ended(process: Future[subprocess.CompletedProcess[str]]) -> int:
    """Wait for a process; fail with its output unless it succeeded or was killed."""
    done = process.result(timeout=120)
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


def check_processes_that_promote_at_once(scene: Scene) -> None:
    """Promote each set in its own process, and check that the ledger has each set once and nothing is lost."""
    processes = [scene.start("promote", staged.digest) for staged in scene.sets]
    assert [ended(process) for process in processes] == [0] * len(scene.sets)
    check_all_are_there(scene)


def check_threads_that_promote_at_once(scene: Scene) -> None:
    failed: list[BaseException] = []

    def go(digest: str) -> None:
        try:
            act(scene.bucket, "promote", digest)
        except BaseException as error:
            failed.append(error)

    run_together([partial(go, staged.digest) for staged in scene.sets])
    assert failed == []
    check_all_are_there(scene)


def check_all_are_there(scene: Scene) -> None:
    entries = read_ledger(scene.bucket, RELEASED).entries
    assert [entry.number for entry in entries] == list(range(1, len(scene.sets) + 1))
    assert {e.promoted.set_digest for e in entries if e.promoted} == {staged.digest for staged in scene.sets}
    assert offered(scene.bucket).keys() == scene.names(*range(len(scene.sets)))
    assert publish(scene.bucket, RELEASED, everything=True) == ()
    scene.sound()


def check_readers_while_everything_happens(scene: Scene) -> None:
    """Check that readers see no problem during concurrent promotions, rollback, kills and retention."""
    with scene.reader() as reader:
        act(scene.bucket, "promote", scene.sets[0].digest)
        watched(reader)
        for process in [scene.start("promote", staged.digest) for staged in scene.sets[1:4]]:
            assert ended(process) == 0
        watched(reader)
        for operation, argument, at in (
            ("rollback", "1", 2), ("rollback", "4", 3), ("promote", scene.sets[4].digest, 22), ("retire", "", 1),
            ("sweep", "", 4),
        ):  # fmt: skip
            assert ended(scene.start(operation, argument, at)) == -signal.SIGKILL, operation
            watched(reader)
            act(scene.bucket, operation, argument)
            watched(reader)
            scene.sound()
    assert reader.problems == []
    assert {scene.names(0), scene.names(*range(4)), scene.names(*range(5))} <= reader.views.keys()
    assert len(offered(scene.bucket)) == 3, "of retired sets only the newest stayed"


def watched(reader: HttpReader, seconds: float = 30) -> None:
    """Wait until the reader has seen the current state."""
    seen, end = sum(reader.views.values()), time.monotonic() + seconds
    while sum(reader.views.values()) < seen + 4 and time.monotonic() < end and not reader.problems:
        time.sleep(0.02)
    assert sum(reader.views.values()) >= seen + 4, reader.problems


def check_killed_and_run_again(scene: Scene, undisturbed: Mapping[str, bytes], kills: Sequence[int]) -> None:
    """Kill a promotion at several writes, and compare the result with an uninterrupted one."""
    digest = scene.sets[0].digest
    assert [ended(scene.start("promote", digest, at)) for at in kills] == [-signal.SIGKILL] * len(kills)
    assert ended(scene.start("promote", digest)) == 0
    assert objects(scene.bucket) == undisturbed
    scene.sound()


def check_killed_and_repaired(scene: Scene, kills: Sequence[int]) -> None:
    """Kill a promotion at some writes, and repair the index each time; then promote the set."""
    act(scene.bucket, "promote", scene.sets[0].digest)
    before = objects(scene.bucket)
    for at in kills:
        assert ended(scene.start("promote", scene.sets[1].digest, at)) == -signal.SIGKILL
        young = repair(scene.bucket, RELEASED, grace=timedelta(days=1))
        assert young.kept, "a promotion could be running"
        assert not young.removed
        done = repair(scene.bucket, RELEASED, grace=timedelta(0))
        assert set(done.removed) == set(young.kept)
        assert {key: data for key, data in objects(scene.bucket).items() if key != RELEASED.status} == {
            key: data for key, data in before.items() if key != RELEASED.status
        }, f"killed at write {at}"
        scene.sound()
    act(scene.bucket, "promote", scene.sets[1].digest)
    scene.sound()
    assert offered(scene.bucket).keys() == scene.names(0, 1)


def check_killed_at_any_time(scene: Scene, delays: Sequence[float]) -> None:
    """Kill promotions after some delays, also during a write, and complete them."""
    with scene.reader() as reader:
        for number, delay in enumerate(delays):
            process = scene.start_new("promote", scene.sets[number].digest)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(delay)
            process.kill()
            said, _ = process.communicate(timeout=120)
            assert process.returncode in (0, -signal.SIGKILL), said.decode()
        for number in range(len(delays)):
            act(scene.bucket, "promote", scene.sets[number].digest)
        watched(reader)
    assert reader.problems == []
    assert offered(scene.bucket).keys() == scene.names(*range(len(delays)))
    assert sorted(e.number for e in read_ledger(scene.bucket, RELEASED).entries) == list(range(1, len(delays) + 1))
    scene.sound()
