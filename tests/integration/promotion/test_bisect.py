"""`ci_build bisect` with real environments: clean installations, a command that imports, and a set for `gate`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from ci_build import cli
from core.errors import GateError, RequestError
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels, ordinary_index

OWN = "{}.{}".format(*sys.version_info[:2])
CHECK = """
import importlib.metadata, pathlib, sys
import jax
version = importlib.metadata.version("jax-rocm7-plugin")
assert sys.prefix != sys.base_prefix
print("tried", version, pathlib.Path(sys.argv[1], "wheels.json").is_file())
sys.exit(version >= "0.10.2+rocm7.5")
"""


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an index with six sets, which tests copy."""
    folder = tmp_path_factory.mktemp("promoted")
    made = DirBucket(folder / "bucket")
    for minor in range(2, 8):
        version = f"0.10.2+rocm7.{minor}.0"
        wheels = make_wheels(folder / "w", version=version, pythons=(OWN,))
        go(made, staged_in(made, folder / "sets", wheels, rocm_version=f"7.{minor}.0"))
    return made.root


@pytest.fixture
def bucket(promoted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirBucket:
    """Return an index with six sets; the fourth, of ROCm 7.5, is the first bad one."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(ordinary_index(tmp_path / "ordinary")))
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(tmp_path / "cache"))
    return DirBucket(shutil.copytree(promoted, tmp_path / "bucket"))


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run(["bisect", "multi-arch", "--bucket", str(bucket.root), "--python", OWN, *words])


def test_bisect_names_first_bad_set(bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "check.py"
    script.write_text(CHECK)
    words = ("--good", "1", "--bad", "6", "--json", "--", "python", str(script), "{set}")
    assert run(bucket, *words) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    (logs,) = (tmp_path / "cache/bisect").glob("*")
    assert {path.stem for path in logs.glob("*.log")} == {*answer["codes"]}
    assert (logs / "4.log").read_text() == "tried 0.10.2+rocm7.5.0 True\n"
    assert f"ended with 1, output in {logs / '4.log'}" in said.err
    assert (answer["good"]["number"], answer["bad"]["number"], answer["skipped"]) == (3, 4, [])
    assert answer["changed"]["rocm_version"] == ["7.4.0", "7.5.0"]
    assert len(answer["codes"]) <= 3
    script.write_text("raise SystemExit(200)")
    assert run(bucket, *words) == 0, "a finished bisection runs nothing again"
    assert not list((tmp_path / "cache/bisect").glob("*/bisect-*"))


def test_bisect_skips_set_that_cannot_be_installed(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A set for another Python is skipped, and named in the result."""
    wheels = make_wheels(tmp_path / "other", version="0.10.2+rocm7.8.0", pythons=("3.99",))
    go(bucket, staged_in(bucket, tmp_path / "sets", wheels))
    last = make_wheels(tmp_path / "last", version="0.10.2+rocm7.9.0", pythons=(OWN,))
    go(bucket, staged_in(bucket, tmp_path / "sets", last))
    assert run(bucket, "--good", "6", "--bad", "8", "--", "{python}", "-c", "") == 0
    out = capsys.readouterr().out
    assert "skipped, so it may be the first bad set: multi-arch/7" in out
    assert "first bad set: multi-arch/8" in out


def test_bisect_refuses_changed_wheel(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    (wheel,) = (key for key in bucket.list(RELEASED.root) if key.endswith(".whl") and "pjrt-0.10.2+rocm7.3" in key)
    bucket.path(wheel).chmod(0o644)
    bucket.path(wheel).write_bytes(b"other")
    assert run(bucket, "--good", "1", "--bad", "3", "--", "true") == GateError.exit_code
    assert "has other bytes" in capsys.readouterr().err


def test_bisect_needs_command_and_order(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bucket, "--good", "1", "--bad", "3") == 2
    assert run(bucket, "--good", "3", "--bad", "1", "--", "true") == RequestError.exit_code
    assert "is not older than" in capsys.readouterr().err
