"""Every command takes a folder, its file:// URL and an s3:// URL as its bucket, and refuses other URLs early."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import click
import pytest
from botocore.loaders import JSONFileLoader

from ci_build import cli
from ci_build.docs import site as docs_site
from ci_build.docs.publish import ENTRY
from ci_build.docs.request import DocsRequest
from core.errors import BucketError, RequestError
from promotion.index.serve import IndexServer
from promotion.storage import s3_client
from promotion.storage.directory_bucket import DirBucket
from tests.support.files import write_files
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import make_set, make_wheels, write_set

STORE = "s3://name/prefix?endpoint_url=http://127.0.0.1:9&region=us-east-1"
SET, ABSENT = "{set}", f"multi-arch/{'0' * 64}"
GATES = ("abi", "compile", "coverage", "inspection", "install", "load", "structure")
COMMANDS = {
    "matrix tests": (SET,),
    "compat": ("multi-arch",),
    "docs": ("--dry-run",),
    "history": ("multi-arch",),
    **{f"gate {gate}": (ABSENT,) for gate in GATES},
    **{f"gate {gate}": (ABSENT, "--platform", "cpu") for gate in ("device", "merge")},
    "policy check": (SET, "--channel", "local"),
    "attest": (SET, "--verify"),
    "reproduce": (SET,),
    "release": ("--local", "--dry-run", "--payload=published", "--python-versions=3.12"),
    "nightly": ("--index", "multi-arch", "--steps", "gates", "--channel", "nightly"),
    "stage": ("{folder}", "--dry-run"),
    "staging gc": ("multi-arch",),
    "staging list": ("multi-arch",),
    "status": ("--cache-dir={folder}/cache",),
    "promote": (SET, "--channel", "local", "--dry-run"),
    "bundle": (SET,),
    "rollback": ("multi-arch", "--reason", "slow", "--dry-run"),
    "yank": ("multi-arch/1", "--reason", "slow", "--dry-run"),
    "unyank": ("multi-arch/1", "--dry-run"),
    "quarantine": ("multi-arch/1", "--reason", "slow", "--dry-run"),
    "unquarantine": ("multi-arch/1", "--dry-run"),
    "pin": ("multi-arch/1", "--reason", "slow", "--dry-run"),
    "unpin": ("multi-arch/1", "--dry-run"),
    "retention": ("multi-arch", "--days", "60"),
    "verify": ("multi-arch",),
    "index publish": ("multi-arch", "--dry-run"),
    "index sign": ("multi-arch", "--reason", "slow", "--dry-run"),
    "index serve": ("--port", "0"),
}
"""Command -> its arguments without --bucket."""
OTHERS = ("s3:/name", "s3:name", "gs://name", "http://host/b", "file://host/b", "s3://")
PLANS = ("release",)
"""Commands whose dry run does not access the bucket."""
DESCRIPTIONS = cache(partial(JSONFileLoader.load_file, JSONFileLoader()))
"""Path -> content of a file that describes AWS; the client of each session reads 1 MB of them."""


def commands_with_bucket(command: click.Command, name: str = "") -> Iterator[str]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from commands_with_bucket(found, f"{name} {child}".strip())
    elif any("--bucket" in parameter.opts for parameter in command.params):
        yield name


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
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run commands in an empty folder, with a store that answers at once that it is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(s3_client, "_ATTEMPTS", 1)
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: DESCRIPTIONS(path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("CI_BUILD_BUCKET", raising=False)
    monkeypatch.setattr(IndexServer, "wait", lambda _: None)
    monkeypatch.setattr(docs_site, "build_site", small_site)
    return tmp_path


def small_site(request: DocsRequest, folder: Path, **more: object) -> None:
    """Write a page instead of the documentation, which takes seconds to build."""
    write_files(folder, {ENTRY: "<!doctype html>"})


def run(name: str, scene: tuple[Path, str, Path], bucket: str) -> int:
    _, staged, folder = scene
    words = [word.format(set=staged, folder=folder) if "{" in word else word for word in COMMANDS[name]]
    at = words.index("--") if "--" in words else len(words)
    return cli.run([*name.split(), *words[:at], "--bucket", bucket, *words[at:]])


def test_all_commands_with_a_bucket_are_tested() -> None:
    assert sorted({*commands_with_bucket(cli.main)}) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_takes_folder_and_its_url(
    name: str, scene: tuple[Path, str, Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shutil.copytree(scene[0], place / "a bucket")
    results = []
    for bucket in (str(root), f"file://{str(root).replace(' ', '%20')}", "a bucket"):
        code = run(name, scene, bucket)
        told = capsys.readouterr()
        told_out = told.out.replace(str(root), "a bucket")
        results.append((code, told_out.partition(" at http:")[0] if "serve" in name else told_out))
        assert "is not a bucket" not in told.err
        (place / f"{scene[1].replace('/', '-')[:23]}.tar").unlink(missing_ok=True)
    assert results[0] == results[1] == results[2]
    assert sorted(path.name for path in place.iterdir()) == ["a bucket"]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_takes_url_of_store(
    name: str, scene: tuple[Path, str, Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command tries to reach the store, and none makes a folder with the name of the URL."""
    assert run(name, scene, STORE) == (0 if name in PLANS else BucketError.exit_code)
    told = capsys.readouterr()
    assert ("s3://name/prefix/v2" in told.out) if name in PLANS else ("127.0.0.1:9" in told.err)
    assert sorted(path.name for path in place.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_command_refuses_other_urls_by_name(
    name: str, scene: tuple[Path, str, Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for bucket in OTHERS:
        assert run(name, scene, bucket) == RequestError.exit_code
        told = capsys.readouterr()
        assert repr(bucket) in told.err
        assert told.out == ""
    assert sorted(path.name for path in place.iterdir()) == []
