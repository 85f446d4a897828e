"""Commands that undo and retain, as entered on the command line."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.release import gating
from core.errors import BucketError, RequestError
from promotion.evidence.evidence import TIME, read_all
from promotion.gates.common import runs
from promotion.index.retention import digests_in
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import POLICY, RELEASED, go, objects, offered, staged_in
from tests.support.wheel_sets import make_set, make_wheels, write_set

pytestmark = pytest.mark.usefixtures("clean_main")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> DirBucket:
    """Return an index with two sets, which each test copies."""
    folder = tmp_path_factory.mktemp("index")
    made = DirBucket(folder / "bucket")
    for minor in (2, 3):
        wheels = make_wheels(folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))
        go(made, staged_in(made, folder / "sets", wheels))
    return made


@pytest.fixture
def bucket(bucket: DirBucket, template: DirBucket, monkeypatch: pytest.MonkeyPatch) -> DirBucket:
    """Return an index with two sets."""
    monkeypatch.setenv("USER", "somebody")
    shutil.copytree(template.root, bucket.root)
    return bucket


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run([*words, "--bucket", str(bucket.root)])


def test_rollback_and_undo_restore_index(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert POLICY.channel == "local"
    before = offered(bucket)
    assert run(bucket, "rollback", "multi-arch", "--reason", "wrong numbers") == 0
    assert "no longer offered: the sets of entries 2" in capsys.readouterr().err
    assert len(offered(bucket)) < len(before)
    assert run(bucket, "rollback", "multi-arch", "--to", "2", "--reason", "they were right") == 0
    assert offered(bucket) == before
    assert run(bucket, "history", "multi-arch", "--json") == 0
    entries = json.loads(capsys.readouterr().out)
    assert [(e["kind"], e["reason"], e["actor"].partition("@")[0]) for e in entries[:2]] == [
        ("rollback", "they were right", "somebody"),
        ("rollback", "wrong numbers", "somebody"),
    ]
    assert run(bucket, "verify", "multi-arch") == 0


@pytest.mark.parametrize(("kind", "back"), [("yank", "unyank"), ("quarantine", "unquarantine"), ("pin", "unpin")])
def test_mark_commands_change_index(
    bucket: DirBucket, kind: str, back: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = offered(bucket)
    assert run(bucket, kind, "multi-arch/2", "--reason", "because") == 0
    assert (offered(bucket) == before) == (kind == "pin")
    assert run(bucket, kind, "multi-arch/2", "--reason", "because") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert run(bucket, back, "multi-arch/2") == 0
    assert offered(bucket) == before
    assert run(bucket, back, "multi-arch/2") == 0, "running it again, because it died, is no mistake"
    assert run(bucket, "verify", "multi-arch") == 0


def test_dry_run_lists_writes_without_writing(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    before = objects(bucket)
    assert run(bucket, "rollback", "multi-arch", "--reason", "to see", "--dry-run") == 0
    said = capsys.readouterr().err
    assert f"would create {RELEASED.ledger_entry(3)}" in said
    assert f"would replace {RELEASED.status}" in said
    assert said.endswith("dry run: nothing was changed\n")
    assert objects(bucket) == before


def test_retention_prints_plan_and_applies_it(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("retention", "multi-arch", "--days", "1", "--keep-newest", "1")
    before = objects(bucket)
    assert run(bucket, *words) == 0
    assert "the set of entry 1 leaves the pages" in (said := capsys.readouterr().err)
    assert "nothing was changed; --apply applies the plan" in said
    assert objects(bucket) == before
    digest = json.loads(bucket.get(RELEASED.status))["sets"][1]["digest"]
    wheels_json = bucket.path(RELEASED.set_file(digest, "wheels.json"))
    assert run(bucket, *words, "--keep-lock", str(wheels_json)) == 0
    assert "the set of entry 1 stays: named in a lock file" in capsys.readouterr().err
    assert run(bucket, *words, "--apply") == 0
    assert len(offered(bucket)) < 5
    assert run(bucket, "verify", "multi-arch") == 0


def test_retention_refuses_lock_without_digests(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, lock = objects(bucket), tmp_path / "requirements.txt"
    for text in ("", "jax==0.10.2\n", f"sha256:{'0' * 63}\n"):
        lock.write_text(text)
        words = ("retention", "multi-arch", "--days", "1", "--keep-newest", "1", "--keep-lock", str(lock), "--apply")
        assert run(bucket, *words) == RequestError.exit_code
        assert f"{lock} names no sha256." in capsys.readouterr().err
    assert objects(bucket) == before


def test_retention_reads_digests_in_upper_case(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f'sha256 = "{"AB" * 32}"')
    assert digests_in(tmp_path / "lock") == {"ab" * 32}


def test_promote_json_has_receipt(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    digest = json.loads(bucket.get(RELEASED.status))["last_set"]
    assert run(bucket, "promote", f"multi-arch/{digest}", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "index": RELEASED.simple,
        "ledger_entry": 2,
        "tiers": {"gfx942": "compiled", "gfx950": "compiled"},
        "bypasses": [],
        "waivers": [],
        "attested": {},
        "new": False,
        "warnings": [],
    }


def test_rollback_prints_withheld_sets(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bucket, "quarantine", "multi-arch/2", "--reason", "leaks") == 0
    assert run(bucket, "rollback", "multi-arch", "--to", "2", "--reason", "back") == 0
    said = capsys.readouterr().err
    assert "not restored, since quarantined, retired or removed: the sets of entries 2\nnothing to do\n" in said


def test_commands_refuse_unknown_index(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("verify", "history"):
        assert run(bucket, command, "gfx94X-dcgpu") == RequestError.exit_code
        assert "The bucket has no index gfx94X-dcgpu." in capsys.readouterr().err


def test_verify_prints_problems(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    bucket.path(RELEASED.overview).write_bytes(b"defaced")
    assert run(bucket, "verify", "multi-arch") == BucketError.exit_code
    assert "multi-arch/index.html has sha256" in capsys.readouterr().err
    assert run(bucket, "index", "publish", "multi-arch") == 0
    assert run(bucket, "verify", "multi-arch") == 0
    assert run(bucket, "index", "publish", "multi-arch", "--everything") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert run(bucket, "yank", "two", "--reason", "x") == 2
    assert run(bucket, "yank", "multi-arch/2") == 2
    assert run(bucket, "yank", "multi-arch/7", "--reason", "x") == RequestError.exit_code
    for words in (("verify", "../multi-arch"), ("policy", "check", "multi/arch/123456")):
        assert run(bucket, *words) == RequestError.exit_code
        assert "is not a valid name of an index. Use a family name" in capsys.readouterr().err


# JSON output


def answer(bucket: DirBucket, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the JSON output of a command."""
    capsys.readouterr()
    assert run(bucket, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_operations_print_json(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    (yanked,) = answer(bucket, capsys, "yank", "multi-arch/2", "--reason", "slow")
    assert (yanked["index"], yanked["ledger_entry"], yanked["withheld"]) == ("multi-arch", 3, [])
    assert yanked["pages"]
    assert all(bucket.head(key) for key in yanked["pages"])
    (again,) = answer(bucket, capsys, "yank", "multi-arch/2", "--reason", "slow")
    assert again["ledger_entry"] is None
    (gone,) = answer(bucket, capsys, "quarantine", "multi-arch/2", "--reason", "bad")
    assert (gone["ledger_entry"], gone["no_longer_offered"]) == (4, [2])
    back = answer(bucket, capsys, "rollback", "multi-arch", "--to", "3", "--reason", "no")
    assert (back["ledger_entry"], back["now_offered"], back["withheld"]) == (None, [], [2]), "in quarantine it stays"
    verified = answer(bucket, capsys, "verify", "multi-arch")
    assert (verified["head"].partition(":")[0], verified["problems"]) == ("4", [])


def test_verify_prints_json(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    (bucket.root / RELEASED.root / "stranger").write_bytes(b"x")
    assert run(bucket, "verify", "multi-arch", "--json") != 0
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith("v2/multi-arch/stranger does not belong to a set of this index")


def test_stage_prints_json(bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheels = make_wheels(tmp_path / "more", pythons=("3.12",))
    made = make_set(wheels)
    folder = write_set(tmp_path / "set", wheels, made)
    said = answer(bucket, capsys, "stage", str(folder))
    assert said == {
        "index": "multi-arch",
        "digest": made.digest,
        "set": f"multi-arch/{made.digest}",
        "installable": f"v2-staging/multi-arch/{made.digest}/simple/",
    }


def test_publish_refuses_unknown_index(bucket: DirBucket, capsys: pytest.CaptureFixture[str]) -> None:
    before = objects(bucket)
    for more in ((), ("--everything",), ("--dry-run",)):
        assert run(bucket, "index", "publish", "multi-arhc", *more) == RequestError.exit_code
        assert "The bucket has no index multi-arhc." in capsys.readouterr().err
    assert objects(bucket) == before
    assert run(bucket, "index", "publish", "multi-arch") == 0


@pytest.mark.parametrize(
    "page", ["simple/jaxlib/index.html", "simple/jaxlib/index.json", "simple/index.json", "index.html"]
)
@pytest.mark.parametrize("data", [None, b"other"])
def test_index_publish_restores_page(
    bucket: DirBucket, page: str, data: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = objects(bucket)
    path = bucket.path(RELEASED.root + page)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    assert run(bucket, "index", "publish", "multi-arch") == 0
    assert "1 pages written" in capsys.readouterr().err
    assert {key: one for key, one in objects(bucket).items() if "status.json" not in key} == {
        key: one for key, one in before.items() if "status.json" not in key
    }
    assert run(bucket, "index", "publish", "multi-arch") == 0
    assert "nothing to do" in capsys.readouterr().err
    assert run(bucket, "verify", "multi-arch") == 0


@pytest.mark.parametrize("command", [("promote",), ("policy", "check")])
def test_shared_bucket_needs_explicit_channel(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI_BUILD_CHANNEL", raising=False)
    words = [*command, f"multi-arch/{'0' * 64}", "--bucket", "s3://name/prefix?endpoint_url=http://127.0.0.1:9"]
    assert cli.run(words) == RequestError.exit_code
    assert "channel must be named" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("channel", "days", "expected"),
    [("nightly", 2, "passed before"), ("nightly", 4, "too old for the policy"), ("local", 4, "passed before")],
)
def test_gate_repeats_pass_that_policy_calls_too_old(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    channel: str,
    days: int,
    expected: str,
) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    staged = stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels)))
    then = (datetime.now(UTC) - timedelta(days=days)).strftime(TIME)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "now", lambda: then)
        assert run(bucket, "gate", "coverage", str(staged)) == 0
    assert run(bucket, "gate", "coverage", str(staged), "--channel", channel) == 0
    assert expected in capsys.readouterr().err
    latest = {evidence.evidence.ended > then for evidence in read_all(bucket, staged).values()}
    assert (True in latest) == (expected != "passed before")


def test_gate_uses_channel_of_index(
    bucket: DirBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index that was promoted on another channel limits the age, whatever --channel says."""
    monkeypatch.setattr(gating, "channel_of", lambda *_: "nightly")
    wheels = make_wheels(tmp_path / "w", version="0.10.2+rocm7.4.0", pythons=("3.12",))
    staged = stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels)))
    with monkeypatch.context() as patch:
        patch.setattr(runs, "now", lambda: "2026-01-02T03:04:05Z")
        assert run(bucket, "gate", "coverage", str(staged)) == 0
    assert run(bucket, "gate", "coverage", str(staged)) == 0
    assert "too old for the policy" in capsys.readouterr().err
