"""Commands take a folder, its file:// URL and an s3:// URL as their bucket."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci_build import cli
from core.errors import BucketError
from promotion.index.serve import IndexServer
from promotion.storage import s3_client
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import make_set, make_wheels, write_set

STORE = "s3://name/prefix?endpoint_url=http://127.0.0.1:9&region=us-east-1"
COMMANDS = {
    "ci tests": ("{set}",),
    "gate abi": (f"multi-arch/{'0' * 64}",),
    "nightly": ("multi-arch", "--steps", "gates", "--channel", "nightly"),
    "set stage": ("{folder}", "--dry-run"),
    "status": ("--cache-dir={folder}/cache",),
    "promote": ("{set}", "--channel", "local", "--dry-run"),
    "index yank": ("multi-arch/1", "--reason", "slow", "--dry-run"),
    "index verify": ("multi-arch", "--repair", "--dry-run"),
}
"""Command -> its arguments without --bucket."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """Return a bucket with a released set, the set, and its folder."""
    folder = tmp_path_factory.mktemp("scene")
    bucket = DirBucket(folder / "a bucket")
    wheels = make_wheels(folder / "w", pythons=("3.12",))
    staged = staged_in(bucket, folder / "sets", wheels)
    go(bucket, staged)
    return bucket.root, str(staged), write_set(folder / "set", wheels, make_set(wheels))


@pytest.fixture
def place(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Run commands in an empty folder, with a store that answers at once that it is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(s3_client, "_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(IndexServer, "wait", lambda _: None)
    return tmp_path


def run(name: str, scene: tuple[Path, str, Path], bucket: str) -> int:
    _, staged, folder = scene
    words = [word.format(set=staged, folder=folder) for word in COMMANDS[name]]
    return cli.run([*name.split(), *words, "--bucket", bucket])


@pytest.mark.parametrize("name", COMMANDS)
def test_command_takes_folder_and_its_url(
    name: str,
    scene: tuple[Path, str, Path],
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = shutil.copytree(scene[0], place / "a bucket")
    results = []
    for bucket in (str(root), f"file://{str(root).replace(' ', '%20')}", "a bucket"):
        code = run(name, scene, bucket)
        told = capsys.readouterr()
        results.append(
            (code, told.out.replace(str(root), "a bucket").partition(" at http:")[0])
        )
        assert "is not a bucket" not in told.err
    assert results[0] == results[1] == results[2]
    assert sorted(path.name for path in place.iterdir()) == ["a bucket"]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_takes_url_of_store(
    name: str,
    scene: tuple[Path, str, Path],
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command tries to reach the store, and none makes a folder with the name of the URL."""
    assert run(name, scene, STORE) == BucketError.exit_code
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert list(place.iterdir()) == []
