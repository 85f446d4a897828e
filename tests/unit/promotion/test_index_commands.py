"""Commands that undo and retain, as entered on the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.release import gating
from core.errors import BucketError, RequestError
from promotion.evidence.evidence import TIME, read_all, time_of
from promotion.gates.common import gate_runs as runs
from promotion.index.upkeep import last_upkeep
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import UPKEEP
from tests.support.promoting import (
    RELEASED,
    objects,
    offered,
)
from tests.support.wheel_sets import make_set, make_wheels, write_set

pytestmark = pytest.mark.usefixtures("clean_main")


@pytest.fixture
def bucket(two_sets: DirBucket, monkeypatch: pytest.MonkeyPatch) -> DirBucket:
    monkeypatch.setenv("USER", "somebody")
    return two_sets


def run(bucket: DirBucket, *words: str) -> int:
    group = [] if words[0] in ("gate", "set") else ["index"]
    return cli.run([*group, *words, "--bucket", str(bucket.root)])


def answer(bucket: DirBucket, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the JSON output of a command."""
    capsys.readouterr()
    assert run(bucket, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_rollback_and_undo_restore_index(
    bucket: DirBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    before = offered(bucket)
    done = answer(
        bucket,
        capsys,
        "rollback",
        "multi-arch",
        "--reason",
        "wrong numbers",
    )
    assert (done["ledger_entry"], done["no_longer_offered"]) == (3, [2])
    assert all(bucket.head(key) for key in done["pages"])
    assert len(offered(bucket)) < len(before)
    back = answer(
        bucket,
        capsys,
        "rollback",
        "multi-arch",
        "2",
        "--reason",
        "they were right",
    )
    assert (back["ledger_entry"], back["now_offered"], back["withheld"]) == (4, [2], {})
    assert offered(bucket) == before
    entries = answer(bucket, capsys, "history", "multi-arch")
    assert [
        (e["kind"], e["reason"], e["actor"].partition("@")[0]) for e in entries[:2]
    ] == [
        ("rollback", "they were right", "somebody"),
        ("rollback", "wrong numbers", "somebody"),
    ]
    verified = answer(bucket, capsys, "verify", "multi-arch")
    assert (verified["head"].partition(":")[0], verified["problems"]) == ("4", [])


@pytest.mark.parametrize("kind", ["yank", "quarantine", "pin"])
def test_mark_commands_change_index(
    bucket: DirBucket, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = offered(bucket)
    for entry in (3, None):
        (done,) = answer(
            bucket,
            capsys,
            kind,
            "multi-arch/2",
            "--reason",
            "because",
        )
        assert (done["index"], done["ledger_entry"]) == ("multi-arch", entry)
    assert (offered(bucket) == before) == (kind == "pin")
    for entry in (4, None):  # running it again, because it died, is no mistake
        (done,) = answer(bucket, capsys, kind, "multi-arch/2", "--undo")
        assert done["ledger_entry"] == entry
    assert offered(bucket) == before
    assert run(bucket, "verify", "multi-arch") == 0


def test_retention_prints_plan_and_applies_it(
    bucket: DirBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("retention", "multi-arch", "--days", "1", "--keep-newest", "1")
    before = objects(bucket)
    assert run(bucket, *words) == 0
    assert "the set of entry 1 leaves the pages" in capsys.readouterr().err
    assert objects(bucket) == before
    assert run(bucket, *words, "--apply") == 0
    assert len(offered(bucket)) < 5
    assert run(bucket, "verify", "multi-arch") == 0


def test_upkeep_is_recorded_unless_nothing_was_done(bucket: DirBucket) -> None:
    nothing = dict.fromkeys(UPKEEP, "")
    retention = ("retention", "multi-arch", "--days=1")
    collect = ("set", "collect", "multi-arch")
    for words in (
        retention,
        collect,
        ("verify", "multi-arch", "--repair", "--dry-run"),
    ):
        assert run(bucket, *words) == 0
    assert last_upkeep(bucket, RELEASED) == nothing
    bucket.path(RELEASED.overview).write_text("damage")
    assert run(bucket, "verify", "multi-arch") == BucketError.exit_code
    assert last_upkeep(bucket, RELEASED) == nothing
    verify = ("verify", "multi-arch", "--repair")
    for words in ((*retention, "--apply"), (*collect, "--apply"), verify):
        assert run(bucket, *words) == 0
    first = last_upkeep(bucket, RELEASED)
    assert all(map(time_of, first.values()))
    bucket.path(RELEASED.upkeep("verify")).write_text("yesterday")
    assert last_upkeep(bucket, RELEASED) == {**first, "verify": ""}


def test_commands_refuse_unknown_names(
    bucket: DirBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    before = objects(bucket)
    for words in (
        ("verify",),
        ("history",),
        ("verify", "--repair"),
        ("retention", "--days=1"),
    ):
        assert run(bucket, *words, "gfx94X-dcgpu") == RequestError.exit_code
        assert "The bucket has no index gfx94X-dcgpu." in capsys.readouterr().err
    for wrong in (
        ("verify", "../multi-arch"),
        ("yank", "two", "--reason=x"),
        ("yank", "multi-arch/7", "--reason=x"),
    ):
        assert run(bucket, *wrong) == RequestError.exit_code
    assert objects(bucket) == before


def test_stage_prints_json(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = make_wheels(tmp_path / "more", pythons=("3.12",))
    made = make_set(wheels)
    folder = write_set(tmp_path / "set", wheels, made)
    said = answer(bucket, capsys, "set", "stage", str(folder))
    assert said == {
        "index": "multi-arch",
        "digest": made.digest,
        "set": f"multi-arch/{made.digest}",
        "installable": f"v2-staging/multi-arch/{made.digest}/simple/",
    }


@pytest.mark.parametrize("command", [("promote",), ("ci", "policy")])
def test_shared_bucket_needs_explicit_channel(
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("CI_BUILD_CHANNEL", raising=False)
    words = [
        *command,
        f"multi-arch/{'0' * 64}",
        "--bucket",
        "s3://name/prefix?endpoint_url=http://127.0.0.1:9",
    ]
    assert cli.run(words) == RequestError.exit_code
    assert "channel must be named" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("channel", "of_index", "days", "expected"),
    [
        ("nightly", "", 2, "passed before"),
        ("nightly", "", 4, "too old for the policy"),
        ("local", "", 4, "passed before"),
        # The channel of an index that has promotions counts first.
        ("local", "nightly", 4, "too old for the policy"),
    ],
)
def test_gate_repeats_pass_that_policy_calls_too_old(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    channel: str,
    of_index: str,
    days: int,
    expected: str,
) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    staged = stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels)))
    monkeypatch.setattr(gating, "channel_of", lambda *_: of_index)
    then = (datetime.now(UTC) - timedelta(days=days)).strftime(TIME)
    words = ("gate", "coverage", str(staged), "--channel", channel)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "now", lambda: then)
        assert run(bucket, *words) == 0
    assert run(bucket, *words) == 0
    assert expected in capsys.readouterr().err
    ended = [file.evidence.ended for file in read_all(bucket, staged).values()]
    assert (max(ended) > then) == (expected != "passed before")
