"""Repairs of an index: pages come back, leftovers of killed promotions go, and nothing else changes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from core.errors import BucketError, BusyError, CiBuildError, RequestError
from promotion.index.audit import verify
from promotion.index.ledger import read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.repair import repair
from promotion.index.retention import RetentionRule, apply
from promotion.promote import promote
from promotion.storage.bucket import Bucket, ObjectInfo, sha256_of
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.memory_bucket import Fault, FaultyBucket, KilledError, MemoryBucket
from tests.support.promoting import POLICY, RELEASED, go, objects, staged_in
from tests.support.wheel_sets import make_wheels

pytestmark = pytest.mark.usefixtures("clean_main")

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class TimedBucket(MemoryBucket):
    """A bucket that records when objects are written, and calls a function before one of its accesses."""

    def __init__(self) -> None:
        super().__init__()
        self.time = NOW
        self.accesses, self.at = 0, -1
        self.other: Callable[[], object] = lambda: None
        self._inside, self._nested = False, threading.local()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Run the other function before an access from outside, without holding the lock of the bucket."""
        if self._inside or getattr(self._nested, "on", False):
            yield
            return
        mine, self.accesses = self.accesses == self.at, self.accesses + 1
        if mine:
            self._inside = True
            try:
                self.other()
            finally:
                self._inside = False
        self._nested.on = True
        try:
            yield
        finally:
            self._nested.on = False

    def head(self, key: str) -> ObjectInfo | None:
        with self._turn():
            return super().head(key)

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        with self._turn():
            return super().read(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        with self._turn():
            return iter([*super().list(prefix, after=after)])

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        with self._turn():
            return super().put_if_match(key, data, etag=etag)

    def put_if_absent(self, key: str, data: Any, *, sha256: str) -> bool:
        with self._turn():
            return super().put_if_absent(key, data, sha256=sha256)

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        with self._turn():
            return super().copy(source, target, sha256=sha256)

    def delete(self, key: str, *, sha256: str) -> bool:
        with self._turn():
            return super().delete(key, sha256=sha256)

    def _store(self, key: str, data: bytes) -> ObjectInfo:
        info = replace(super()._store(key, data), modified=self.time)
        self._objects[key] = data, info
        return info

    def again(self) -> TimedBucket:
        """Return another bucket with the same objects."""
        other = TimedBucket()
        other._objects, other.time = dict(self._objects), self.time
        return other


def staged_sets(bucket: Bucket, folder: Path) -> list[StagedSet]:
    """Stage two sets that share a jaxlib."""
    groups = [make_wheels(folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",)) for minor in (2, 3)]
    return [staged_in(bucket, folder / "sets", group) for group in groups]


def promoting(bucket: Bucket, staged: StagedSet, now: datetime = NOW) -> None:
    promote(bucket, staged, POLICY, now=lambda: now, allow_lower=True)


def killed(bucket: Bucket, staged: StagedSet, at: int, now: datetime = NOW) -> bool:
    """Kill a promotion at one of its writes; return whether it has so many."""
    try:
        promoting(FaultyBucket(bucket, Fault.KILLED, at), staged, now)
    except KilledError:
        return True
    return False


def mended(bucket: Bucket, now: datetime = NOW) -> Any:
    return repair(bucket, RELEASED, now=lambda: now)


def stored(bucket: Bucket) -> dict[str, bytes]:
    """Return the objects of an index without its ledger and pages, which name each repair."""
    folders = (f"{RELEASED.root}packages/", f"{RELEASED.root}sets/")
    return {key: data for key, data in objects(bucket).items() if key.startswith(folders)}


def problems(bucket: Bucket) -> list[str]:
    return [*verify(bucket, RELEASED)]


@pytest.fixture
def scene(tmp_path: Path) -> tuple[TimedBucket, StagedSet]:
    """Return an index with one set, and a second staged set."""
    bucket = TimedBucket()
    first, second = staged_sets(bucket, tmp_path)
    promoting(bucket, first)
    return bucket, second


def test_promotion_killed_anywhere_is_repaired_and_repeated(scene: tuple[TimedBucket, StagedSet]) -> None:
    start, staged = scene
    whole = start.again()
    promoting(whole, staged)
    for at in itertools.count():
        bucket = start.again()
        if not killed(bucket, staged, at):
            assert at > 20
            return
        bucket.time += 2 * DAY
        done = mended(bucket, bucket.time)
        assert problems(bucket) == []
        assert done.kept == {}
        # Either the set was promoted before the kill, or nothing of it is left.
        promoted = len(read_ledger(bucket, RELEASED).entries[-1].state.visible) == 2
        assert stored(bucket) == stored(whole if promoted else start)
        promoting(bucket, staged)
        assert problems(bucket) == []
        assert stored(bucket) == stored(whole)


def racing(scene: tuple[TimedBucket, StagedSet], act: Callable[[TimedBucket], None], other: Any) -> int:
    """Run `other` before each access of `act`, on old leftovers; return the number of accesses."""
    start, staged = scene
    killed(start, staged, 9)
    start.time += 2 * DAY
    for at in itertools.count():
        bucket = start.again()
        bucket.at, bucket.other = at, functools.partial(other, bucket)
        try:
            act(bucket)
        except BusyError:
            bucket.at = -1
            act(bucket)
        if bucket.accesses <= at:
            return at
        bucket.at = -1
        promoting(bucket, staged, bucket.time)
        assert problems(bucket) == [], f"overtaken at access {at}"
    raise AssertionError


def tolerant(act: Callable[[TimedBucket], None]) -> Callable[[TimedBucket], None]:
    def attempt(bucket: TimedBucket) -> None:
        with contextlib.suppress(BusyError):
            act(bucket)

    return attempt


def test_repair_never_takes_files_of_running_promotion(scene: tuple[TimedBucket, StagedSet]) -> None:
    """The leftovers are old, and the promotion uses them again."""

    def act(bucket: TimedBucket) -> None:
        promoting(bucket, scene[1], bucket.time)

    assert racing(scene, act, tolerant(lambda bucket: mended(bucket, bucket.time))) > 60


def test_promotion_during_repair_gets_its_files(scene: tuple[TimedBucket, StagedSet]) -> None:
    def other(bucket: TimedBucket) -> None:
        promoting(bucket, scene[1], bucket.time)

    assert racing(scene, lambda bucket: mended(bucket, bucket.time), tolerant(other)) > 60


# On disk


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> DirBucket:
    """Return an index with two sets, which each test copies."""
    folder = tmp_path_factory.mktemp("index")
    made = DirBucket(folder / "bucket")
    for staged in staged_sets(made, folder):
        go(made, staged)
    return made


@pytest.fixture
def index(bucket: DirBucket, template: DirBucket) -> DirBucket:
    """Return an index with two sets."""
    shutil.copytree(template.root, bucket.root)
    return bucket


def put(bucket: DirBucket, name: str, data: bytes = b"x") -> str:
    """Write an old object to the index."""
    key = RELEASED.root + name
    bucket.put_if_absent(key, data, sha256=sha256_of(data))
    os.utime(bucket.path(key), (0, 0))
    return key


def repaired(bucket: DirBucket, **more: Any) -> Any:
    return repair(bucket, RELEASED, **more)


FOREIGN = (
    "stranger",
    "simple/evil/index.html",
    "sets/notes.txt",
    f"sets/{'a' * 64}/wheels.json",
    "packages/jaxlib/jaxlib-0.10.2-cp311-cp311-manylinux_2_28_x86_64.whl",
    "packages/jaxlib/readme.txt",
    "packages/evil/evil-1-py3-none-any.whl.swept",
)


def test_foreign_objects_stay_unless_asked(index: DirBucket) -> None:
    before = stored(index)
    keys = [put(index, name) for name in FOREIGN]
    (index.root / RELEASED.root / "link").symlink_to("status.json")
    done = repaired(index)
    assert done.removed == ()
    assert set(done.kept) == {*keys, f"{RELEASED.root}link"}
    assert (
        sum("it is foreign; `ci_build verify multi-arch --repair --remove-foreign`" in p for p in problems(index)) == 8
    )
    done = repaired(index, foreign=True)
    assert set(done.removed) == {*keys}
    assert done.kept == {f"{RELEASED.root}link": "it cannot be read; remove it by hand"}
    (index.root / RELEASED.root / "link").unlink()
    assert stored(index) == before
    assert problems(index) == []


def test_object_that_may_not_be_removed_is_kept_and_named(index: DirBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The promoter may only remove packages and files of sets."""
    delete, key, other = DirBucket.delete, put(index, "stranger"), put(index, "packages/jaxlib/readme.txt")

    def deny(self: DirBucket, key: str, *, sha256: str) -> bool:
        if key.endswith("stranger"):
            raise BucketError(f"The store refused the request for {key}: 403 AccessDenied.")
        return delete(self, key, sha256=sha256)

    monkeypatch.setattr(DirBucket, "delete", deny)
    done = repaired(index, foreign=True)
    assert done.removed == (other,)
    assert done.kept == {key: f"it cannot be removed: The store refused the request for {key}: 403 AccessDenied."}


def test_pages_are_restored(index: DirBucket) -> None:
    before = objects(index)
    pages = [f"{RELEASED.simple}jaxlib/index.html", f"{RELEASED.simple}index.json", RELEASED.overview, RELEASED.status]
    for page in pages:
        index.path(page).unlink()
    index.path(f"{RELEASED.simple}jaxlib/index.json").write_bytes(b"defaced")
    found = problems(index)
    assert sum("`ci_build verify multi-arch --repair` restores it." in problem for problem in found) == 4
    assert any(f"{RELEASED.status} was written from entry 0 of 2: `ci_build verify" in problem for problem in found)
    done = repaired(index)
    assert {*pages, f"{RELEASED.simple}jaxlib/index.json"} == {*done.written}
    assert objects(index) == before


def test_lost_files_of_sets_are_not_hidden(index: DirBucket) -> None:
    key = next(key for key in index.list(RELEASED.root) if key.endswith(".whl"))
    index.path(key).unlink()
    repaired(index)
    assert problems(index) == [f"{key} is missing. Restore it from a backup."]


def test_repair_after_sweep_keeps_published_wheels(index: DirBucket, tmp_path: Path) -> None:
    apply(index, RELEASED, RetentionRule(days=0, keep_newest=0, grace_days=0), actor="me")
    apply(index, RELEASED, RetentionRule(days=0, keep_newest=0, grace_days=0), actor="me", now=later)
    before = objects(index)
    assert any(key.endswith(".swept") for key in before)
    assert problems(index) == []
    for key in index.list(RELEASED.root):
        os.utime(index.path(key), (0, 0))
    assert repaired(index, foreign=True).removed == ()
    assert objects(index) == before


def later() -> datetime:
    return datetime.now(UTC) + 2 * DAY


def test_interrupted_sweep_is_completed(scene: tuple[TimedBucket, StagedSet]) -> None:
    start, staged = scene
    promoting(start, staged, NOW)
    rule = RetentionRule(days=0.5, keep_newest=1, grace_days=0)
    apply(start, RELEASED, rule, actor="me", now=lambda: NOW + DAY)
    end, states = NOW + 2 * DAY, set()
    for at in itertools.count():
        bucket = start.again()
        try:
            apply(FaultyBucket(bucket, Fault.KILLED, at), RELEASED, rule, actor="me", now=lambda: end)
        except KilledError:
            bucket.time += 9 * DAY
            done = repair(bucket, RELEASED, now=lambda: NOW + 9 * DAY)
            assert problems(bucket) == [], at
            kinds = {entry.kind for entry in read_ledger(bucket, RELEASED).entries}
            states.add((bool(done.removed), EntryKind.SWEEP in kinds))
            continue
        assert {(True, False), (True, True)} <= states
        return


def test_missing_tombstone_is_restored(scene: tuple[TimedBucket, StagedSet]) -> None:
    bucket, staged = scene
    promoting(bucket, staged, NOW)
    rule = RetentionRule(days=0.5, keep_newest=1, grace_days=0)
    for day in (1, 2):
        apply(bucket, RELEASED, rule, actor="me", now=functools.partial(NOW.__add__, day * DAY))
    key = next(key for key in bucket.list(RELEASED.root) if key.endswith(".swept"))
    bucket.damage(key, None)
    (problem,) = problems(bucket)
    assert problem.startswith(f"{key} is missing, so the name of a removed wheel could be used again: `ci_build verify")
    mended(bucket)
    assert problems(bucket) == []


@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_leftover_is_known_after_staging_was_cleaned(scene: tuple[TimedBucket, StagedSet], at: int) -> None:
    """wheels.json is copied first, and describes the other files."""
    bucket, staged = scene
    killed(bucket, staged, at)
    for key in [*bucket.list(staged.root)]:
        bucket.damage(key, None)
    done = mended(bucket, NOW + 2 * DAY)
    assert done.kept == {}
    assert problems(bucket) == []


def test_repair_refuses_unknown_index_and_damaged_ledger(index: DirBucket) -> None:
    put(index, "packages/evil/evil-1-py3-none-any.whl")
    before = objects(index)
    with pytest.raises(RequestError, match="has no index gfx94X-dcgpu"):
        repair(index, replace(RELEASED, index="gfx94X-dcgpu"))
    index.path(RELEASED.ledger_entry(1)).unlink()
    with pytest.raises(CiBuildError, match="a gap"):
        repaired(index, foreign=True)
    assert objects(index) == {key: data for key, data in before.items() if key != RELEASED.ledger_entry(1)}


def test_repair_keeps_held_but_hidden_sets(index: DirBucket) -> None:
    mark(index, RELEASED, EntryKind.QUARANTINE, ["2"], reason="slow", actor="me")
    mark(index, RELEASED, EntryKind.YANK, ["1"], reason="slow", actor="me")
    for key in index.list(RELEASED.root):
        os.utime(index.path(key), (0, 0))
    before = objects(index)
    assert repaired(index, foreign=True).removed == ()
    assert objects(index) == before


# Command line


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run(["verify", "multi-arch", "--bucket", str(bucket.root), *words])


def test_verify_names_command_that_repairs(index: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    before = stored(index)
    index.path(RELEASED.overview).unlink()
    foreign = put(index, "stranger")
    assert run(index) == BucketError.exit_code
    said = capsys.readouterr().err
    assert f"{RELEASED.overview} is missing. `ci_build verify multi-arch --repair` restores it." in said
    assert "it is foreign; `ci_build verify multi-arch --repair --remove-foreign` removes it." in said
    assert run(index, "--repair", "--remove-foreign", "--dry-run") == 0
    said = capsys.readouterr().err
    assert f"would create {RELEASED.overview}" in said
    assert f"would remove {foreign}" in said
    assert index.head(RELEASED.overview) is None
    assert index.head(foreign) is not None
    assert run(index, "--repair") == BucketError.exit_code
    assert f"kept {foreign}: it is foreign; --remove-foreign removes it" in capsys.readouterr().err
    assert run(index, "--repair", "--remove-foreign", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert (found["repaired"]["removed"], found["repaired"]["kept"]) == ([foreign], {})
    assert stored(index) == before
    assert run(index, "--repair") == 0
    assert "nothing to repair" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--remove-foreign",), ("--dry-run",), ("--ledger-key", "key")])
def test_options_of_repair_need_repair(
    index: DirBucket, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(index, *words) == RequestError.exit_code
    assert f"{words[0]} has no effect without --repair." in capsys.readouterr().err


def test_repair_removes_nothing_from_cut_ledger(index: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    """The files of a lost entry would look like leftovers."""
    index.path(RELEASED.ledger_entry(2)).unlink()
    index.path(RELEASED.status).unlink()
    for key in index.list(RELEASED.root):
        os.utime(index.path(key), (0, 0))
    before = objects(index)
    assert run(index, "--repair", "--remove-foreign") == BucketError.exit_code
    assert "was cut" in capsys.readouterr().err
    assert objects(index) == before
