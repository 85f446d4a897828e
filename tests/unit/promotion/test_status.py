"""`ci_build status`: running work, and staged sets with what blocks them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci_build import cli
from core.errors import RequestError
from core.store import ContentStore
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import make_set, make_wheels, write_set


def words(bucket: DirBucket, cache: Path) -> list[str]:
    return [
        "status",
        f"--bucket={bucket.root}",
        f"--cache-dir={cache}",
        "--channel=local",
    ]


def test_sets_have_their_state_and_what_blocks_them(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {
        minor: make_wheels(
            tmp_path / str(minor), version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",)
        )
        for minor in (2, 3, 4)
    }
    promoted, ready = (
        staged_in(bucket, tmp_path / "sets", folders[minor]) for minor in (2, 3)
    )
    go(bucket, promoted)
    blocked = stage(
        bucket, write_set(tmp_path / "blocked", folders[4], make_set(folders[4]))
    )
    cut = tmp_path / "cut"
    cut.write_text("x")
    bucket.path(f"v2-staging/multi-arch/{'a' * 64}/x.whl").parent.mkdir(parents=True)
    cut.rename(bucket.path(f"v2-staging/multi-arch/{'a' * 64}/x.whl"))
    for folder in ("_tests", "_nights"):
        bucket.path(f"v2-staging/{folder}").mkdir()
        bucket.path(f"v2-staging/{folder}/multi-arch.json").write_text("{}")
    assert cli.run([*words(bucket, tmp_path / "cache"), "--json"]) == 0
    found = {
        item["digest"]: item for item in json.loads(capsys.readouterr().out)["staged"]
    }
    states = {digest: item["state"] for digest, item in found.items()}
    assert states == {
        promoted.digest: "promoted",
        ready.digest: "ready",
        blocked.digest: "blocked",
        "a" * 64: "incomplete",
    }
    assert any("inspection" in reason for reason in found[blocked.digest]["blocked_by"])
    assert set(found[ready.digest]["tiers"].values()) == {"compiled"}
    assert cli.run(words(bucket, tmp_path / "cache")) == 0
    said = capsys.readouterr().out
    assert f"multi-arch/{blocked.digest[:12]} blocked" in said
    assert f"multi-arch/{ready.digest[:12]} ready" in said


def test_running_work_is_listed(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.root.mkdir()
    cache = tmp_path / "cache"
    with ContentStore(cache / "steps").scratch() as folder:
        assert cli.run(words(bucket, cache)) == 0
        said = capsys.readouterr().out
        assert f"process {os.getpid()}: " in said
        assert f"  uses {folder}" in said
    assert cli.run(words(bucket, cache)) == 0
    assert f"no process uses {cache}" in capsys.readouterr().out


def test_only_the_default_bucket_may_be_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = f"--cache-dir={tmp_path / 'cache'}"
    assert cli.run(["status", cache]) == 0
    for name in ("none", "ftp://x/y"):
        assert cli.run(["status", f"--bucket={name}", cache]) == RequestError.exit_code
