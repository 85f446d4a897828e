"""An index in a folder while processes promote, roll back, sweep and are killed, with real readers, pip and uv."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from promotion.index.serve import IndexServer
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support import live
from tests.support.live import COUNT, OWN, Scene, staged_sets
from tests.support.machine import user_environment
from tests.support.promoting import RELEASED, objects
from tests.support.promotion_child import act
from tests.support.wheel_sets import SetWheel, ordinary_index


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StagedSet], list[list[SetWheel]]]:
    """Return the folder of a bucket with staged sets, which tests copy, the sets and their wheels."""
    folder = tmp_path_factory.mktemp("staged")
    return folder / "bucket", *staged_sets(DirBucket(folder / "bucket"), folder, COUNT)


@pytest.fixture
def scene(staged: tuple[Path, list[StagedSet], list[list[SetWheel]]], tmp_path: Path) -> Iterator[Scene]:
    root, sets, groups = staged
    bucket = DirBucket(shutil.copytree(root, tmp_path / "bucket"))
    with IndexServer(bucket.root) as server:
        yield Scene(
            bucket=bucket,
            where=str(bucket.root),
            simple=server.url + RELEASED.simple,
            sets=sets,
            groups=groups,
            environment={},
        )


def test_promote_in_eight_threads_keeps_all_sets(scene: Scene) -> None:
    live.check_threads_that_promote_at_once(scene)


def test_promote_in_eight_processes_keeps_all_sets(scene: Scene) -> None:
    live.check_processes_that_promote_at_once(scene)


def test_readers_always_see_consistent_pages(scene: Scene) -> None:
    live.check_readers_while_everything_happens(scene)


def undisturbed(scene: Scene, folder: Path) -> dict[str, bytes]:
    other = DirBucket(folder)
    staged_sets(other, folder.parent / "again", 1)
    act(other, "promote", scene.sets[0].digest)
    return objects(other)


def test_promote_killed_at_some_writes_is_completed(scene: Scene, tmp_path: Path) -> None:
    live.check_killed_and_run_again(scene, undisturbed(scene, tmp_path / "undisturbed"), (0, 13, 18, 1, 3))


@pytest.mark.heavy
def test_promote_killed_at_every_write_is_completed(scene: Scene, tmp_path: Path) -> None:
    expected = undisturbed(scene, tmp_path / "undisturbed")
    bucket = scene.bucket
    assert isinstance(bucket, DirBucket)
    for at in range(200):
        if live.ended(scene.start("promote", scene.sets[0].digest, at)) == 0:
            break
        act(bucket, "promote", scene.sets[0].digest)
        assert objects(bucket) == expected, f"killed at write {at}"
        bucket.path(RELEASED.root.rstrip("/")).rename(tmp_path / f"done-{at}")
    assert at >= 20


def test_promote_killed_at_some_writes_is_repaired(scene: Scene) -> None:
    live.check_killed_and_repaired(scene, (0, 5, 12))


def test_promote_killed_at_any_time_is_completed(scene: Scene) -> None:
    live.check_killed_at_any_time(scene, (0.25, 0.4, 0.5, 0.65))


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_installers_always_find_consistent_set(scene: Scene, tmp_path: Path, client: str) -> None:
    act(scene.bucket, "promote", scene.sets[0].digest)
    ordinary = ordinary_index(tmp_path / "ordinary")
    stop = threading.Event()

    def change() -> None:
        for number in range(1, COUNT):
            act(scene.bucket, "promote", scene.sets[number].digest)
            stop.wait(0.3)
        while not stop.is_set():
            for entry in (1, COUNT):
                act(scene.bucket, "rollback", str(entry))
                stop.wait(0.3)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        chosen = [resolved(client, scene.simple, ordinary, tmp_path / f"out-{number}") for number in range(5)]
    finally:
        stop.set()
        changing.join()
    assert all(version.startswith("0.10.2+rocm7.") for version in chosen), chosen


def resolved(client: str, simple: str, ordinary: Path, out: Path) -> str:
    """Return the version of the plugin that an installer resolves; its pjrt must have the same version."""
    out.mkdir()
    if client == "pip":
        argv = [sys.executable, "-m", "pip", "download", "--dest", str(out), "--no-cache-dir", "--only-binary=:all:"]
    else:
        (out / "in.txt").write_text("jax-rocm7-plugin\n")
        argv = [find_uv_bin(), "pip", "compile", str(out / "in.txt"), "--no-cache", "--python-version", OWN]
        argv += ["--no-header", "--no-annotate", "--output-file", str(out / "out.txt")]
    argv += ["--index-url", simple, "--find-links", str(ordinary)]
    argv += ["jax-rocm7-plugin"] if client == "pip" else ["--index-strategy", "unsafe-best-match"]
    done = subprocess.run(argv, env=user_environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    if client == "uv":
        pins = dict(line.split("==") for line in (out / "out.txt").read_text().split())
    else:
        pins = {path.name.split("-")[0].replace("_", "-"): path.name.split("-")[1] for path in out.glob("*.whl")}
    assert pins["jax-rocm7-pjrt"] == pins["jax-rocm7-plugin"]
    return pins["jax-rocm7-plugin"]
