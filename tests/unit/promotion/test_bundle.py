"""Bundles that fail leave nothing beside the archive, in particular no bucket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from ci_build import cli
from ci_build.cli.commands import bundle as command
from core.digests import sha256_of
from core.errors import BucketError, RequestError
from promotion import offline_bundle
from promotion.offline_bundle import bundle
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.silent import Silent
from tests.support.wheel_sets import make_set, make_wheels, write_set

LOCK = b'lock-version = "1.0"\ncreated-by = "tests"\npackages = []\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return write_set(
        tmp_path / "dist", wheels, make_set(wheels, python_versions=("3.12",))
    )


def listing(tmp_path: Path) -> list[str]:
    return sorted(str(path) for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("out", ["notes.txt", "gone.tar"])
def test_bundle_refuses_existing_out_before_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    Path("notes.txt").write_text("a user's text")
    Path("gone.tar").symlink_to("none")
    before = listing(folder.parent)
    monkeypatch.setattr(command, "open_bucket", None)
    assert (
        cli.run(["set", "bundle", str(folder), f"--out={out}"])
        == RequestError.exit_code
    )
    assert listing(folder.parent) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--platform=cpu"], "--platform needs --python"),
        (["--python=3.12"], "--python has no effect without --platform"),
        (
            ["--platform=cpu", "--python=3.9"],
            "does not support Python 3.9",
        ),
        (
            ["--platform=cuda", "--python=3.12"],
            "--platform cuda needs --also",
        ),
        (
            ["--platform=cpu", "--python=3.12", "--jax-tests=jax"],
            "--jax-tests has no commit",
        ),
    ],
)
def test_bundle_for_gate_refuses_contradictions(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    before = listing(folder.parent)
    assert cli.run(["set", "bundle", str(folder), *words]) == RequestError.exit_code
    assert said in capsys.readouterr().err
    assert listing(folder.parent) == before


LOCKED = """# written by uv
one==1.0 ; python_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via two
two==2.0 \\
    --hash=sha256:cc
three==3.0 ; sys_platform == 'win32' \\
    --hash=sha256:dd
"""


def test_locks_are_read_for_the_python_of_the_runner(tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(LOCKED)
    both = ["one==1.0 --hash=sha256:aa --hash=sha256:bb", "two==2.0 --hash=sha256:cc"]
    assert list(offline_bundle._applicable(tmp_path / "x.lock", "3.11")) == both
    assert list(offline_bundle._applicable(tmp_path / "x.lock", "3.12")) == both[1:]


@pytest.mark.parametrize(
    "name", ["pylock.toml", "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.whl"]
)
def test_bundle_refuses_forged_file(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Whoever can write to staging must not choose the wheels that the lock file pins."""
    wheels = make_wheels(folder.parent / "w", pythons=("3.12",))
    bare = make_set(wheels, python_versions=("3.12",))
    made = replace(
        bare,
        files={**bare.files, "pylock.toml": sha256_of(LOCK)},
        file_sizes={**bare.file_sizes, "pylock.toml": len(LOCK)},
    )
    bucket = DirBucket(Path("bucket"))
    staged = stage(bucket, write_set(folder, wheels, made, {"pylock.toml": LOCK}))
    path = bucket.path(staged.file(name))
    path.unlink()
    path.write_bytes(b"forged")
    assert cli.run(["set", "bundle", str(staged)]) == BucketError.exit_code
    assert name in capsys.readouterr().err
    assert not [*Path.cwd().glob("*.tar")]


@pytest.mark.usefixtures("folder")
def test_bundle_of_same_set_has_equal_bytes() -> None:
    bucket = DirBucket(Path("bucket"))
    bare = make_set((), python_versions=("3.12",))
    made = replace(
        bare,
        files={**bare.files, "pylock.toml": sha256_of(LOCK)},
        file_sizes={**bare.file_sizes, "pylock.toml": len(LOCK)},
    )
    staged = stage(bucket, write_set(Path("empty"), (), made, {"pylock.toml": LOCK}))
    for folder in ("a", "b"):
        Path(folder).mkdir()
        bundle(bucket, staged, Path(folder, "x.tar"), Mock(), Silent())
    assert Path("a/x.tar").read_bytes() == Path("b/x.tar").read_bytes()


def test_bundle_of_unknown_set_leaves_nothing(tmp_path: Path) -> None:
    staged = StagedSet(index="multi-arch", digest="a" * 64)
    with pytest.raises(BucketError, match="has no set"):
        bundle(DirBucket(tmp_path), staged, tmp_path / "out.tar", Mock(), Silent())
    assert list(tmp_path.iterdir()) == []
