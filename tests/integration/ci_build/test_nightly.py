"""`ci_build nightly`.

New inputs, nothing new, interruptions, missing evidence, tables of nights.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.release import gating
from core.errors import GateError, PromotionBlockedError
from core.report import Reporter
from promotion.index.audit import verify
from promotion.index.publish import read_head
from promotion.nights import list_nights, read_night
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet
from tests.support.nights import (
    INDEX,
    Nights,
    nights,
    publish_wheels,
    record_passes,
    small_release,
)

__all__ = ["nights", "small_release"]

NEW_ROCM = "--rocm-version=7.2.1"


def night(nights: Nights, *words: str) -> int:
    return nights.run("nightly", INDEX, *words)


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the sets of a summary in JSON."""
    sets: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["sets"]
    return sets


def objects(nights: Nights) -> dict[str, bytes]:
    bucket = DirBucket(nights.bucket)
    objects = {}
    for top in ("v2/", "v2-staging/"):
        for key in bucket.list(top):
            objects[key] = bucket.get(key)
    return objects


def entries(nights: Nights) -> int:
    return read_head(DirBucket(nights.bucket), ReleasedIndex(index=INDEX))[0].number


def test_night_promotes_and_second_run_does_nothing(
    nights: Nights,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert night(nights, "--json") == 0
    (one,) = said(capsys)
    assert one["state"] == "promoted"
    assert one["entry"] == 1
    assert one["checks"] == {"pip": "passed", "uv": "passed"}
    bucket = DirBucket(nights.bucket)
    (recorded,) = list_nights(bucket, INDEX)
    assert recorded.lock == one["lock"]
    assert str(recorded.staged) == one["set"]
    assert recorded.checked is True
    record = read_night(bucket, recorded)
    assert record["lock"]["build"]["rocm_version"] == "7.2.0"
    assert len(record["lock"]["wheels"]) == 4
    assert one["upkeep"] == {"verify": "", "retention": "", "collect": ""}
    where = f"--bucket={nights.bucket}"
    assert cli.run(["index", "retention", INDEX, "--days=1", "--apply", where]) == 0
    shutil.rmtree(nights.bucket / "v2-staging" / INDEX)  # as `set collect` does
    before = objects(nights)
    shutil.rmtree(tmp_path / "dist")  # another machine, without the set
    capsys.readouterr()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    assert night(nights, "--json") == 0
    (again,) = said(capsys)
    assert again["state"] == "unchanged"
    assert again["entry"] == 1
    assert again["set"] == one["set"]
    summary = (tmp_path / "s.md").read_text()
    assert "### unchanged: jax 0.10.2, ROCm 7.2.0" in summary
    ran = again["upkeep"]["retention"]
    assert f"verify not recorded, retention {ran}, collect not recorded." in summary
    assert ran.endswith("Z")
    assert objects(nights) == before
    assert len(nights.gated) == 1
    assert len(nights.checked) == 1
    assert (tmp_path / "dist").exists() is False
    assert [*verify(bucket, ReleasedIndex(index=INDEX))] == []


def killed(nights: Nights, before: str) -> int:
    """Do a night that is killed before a group of its output, return the exit code."""
    group = Reporter.group

    def stop(self: Reporter, title: str) -> Any:
        if title.startswith(before):
            os.kill(os.getpid(), signal.SIGKILL)
        return group(self, title)

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reporter, "group", stop)
            raise SystemExit(night(nights))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize(
    "before", ["dist_wheels", "stage", "gates", "policy", "promote", "check"]
)
def test_night_killed_before_any_step_continues(
    nights: Nights, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert killed(nights, before) == -signal.SIGKILL
    capsys.readouterr()
    assert night(nights, "--json") == 0
    (one,) = said(capsys)
    assert one["state"] == "promoted"
    assert one["entry"] == 1
    assert entries(nights) == 1
    assert len(nights.checked) == 1
    assert len(list_nights(DirBucket(nights.bucket), INDEX)) == 1
    assert [*verify(DirBucket(nights.bucket), ReleasedIndex(index=INDEX))] == []


def ran(
    nights: Nights, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> list[tuple[str, str, int]]:
    """Do a night, and return ROCm, state and entry of its sets."""
    capsys.readouterr()
    assert night(nights, *words, "--json") == code
    return [(one["rocm"], one["state"], one["entry"]) for one in said(capsys)]


def test_night_without_gpu_waits_for_evidence_and_then_promotes(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.device = False
    assert night(nights, "--json") == 0
    (one,) = said(capsys)
    assert one["state"] == "pending"
    assert one["entry"] == 0
    commands = [item["command"].split()[3:5] for item in one["missing"]]
    assert commands == [["device", one["set"]]] * 2
    # The job that promotes fails as long as the evidence is missing.
    promote = ["nightly", INDEX, f"--bucket={nights.bucket}", "--steps=promote,check"]
    assert cli.run(promote) == PromotionBlockedError.exit_code
    bucket = DirBucket(nights.bucket)
    record_passes(bucket, gating.find_staged(one["set"], bucket), ["device"])
    capsys.readouterr()
    assert cli.run([*promote, "--json"]) == 0
    assert [(item["state"], item["entry"]) for item in said(capsys)] == [
        ("promoted", 1)
    ]
    assert len(nights.gated) == 1


def test_evidence_of_an_earlier_night_promotes_its_set_first(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.device = False
    assert night(nights) == 0
    first = StagedSet(index=INDEX, digest=nights.gated[0])
    assert night(nights, NEW_ROCM) == 0
    record_passes(DirBucket(nights.bucket), first, ["device"])
    new = ("7.2.1", "pending", 0)
    assert ran(nights, capsys, NEW_ROCM) == [("7.2.0", "promoted", 1), new]
    nights.device = True
    assert ran(nights, capsys, NEW_ROCM) == [("7.2.1", "promoted", 2)]


def test_blocked_earlier_night_does_not_fail_the_next(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.failing = ["compile"]
    failed = [("7.2.0", "failed", 0)]
    assert ran(nights, capsys, code=GateError.exit_code) == failed
    nights.failing = []
    both = [("7.2.0", "blocked", 0), ("7.2.1", "promoted", 1)]
    assert ran(nights, capsys, NEW_ROCM) == both
    assert ran(nights, capsys, NEW_ROCM) == [("7.2.1", "unchanged", 1)]


def test_failed_check_of_the_index_is_repeated(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.broken_index = True
    assert night(nights) == GateError.exit_code
    assert "promoted as ledger entry 1, but" in capsys.readouterr().err
    nights.broken_index = False
    assert ran(nights, capsys) == [("7.2.0", "promoted", 1)]
    assert ran(nights, capsys) == [("7.2.0", "unchanged", 1)]
    assert len(nights.checked) == 2


def test_changed_wheels_of_a_version_become_a_post_release(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(*words: str) -> str:
        ((_, state, _),) = ran(nights, capsys, *words)
        assert state == "promoted"
        bucket = DirBucket(nights.bucket)
        return read_night(bucket, list_nights(bucket, INDEX)[-1])["version"]

    targets = "gfx942.gfx950"
    assert version() == f"0.10.2+rocm7.2.0.{targets}"
    shutil.copytree(nights.wheels, nights.folder / "wheels")
    nights.wheels = nights.folder / "wheels"
    publish_wheels(nights.wheels, comment="another build of the same version")
    assert version() == f"0.10.2.post1+rocm7.2.0.{targets}"
    # A newer ROCm keeps the number, so that pip selects its wheels.
    assert version(NEW_ROCM) == f"0.10.2.post1+rocm7.2.1.{targets}"
    assert version(NEW_ROCM, "--redo") == f"0.10.2.post2+rocm7.2.1.{targets}"


def test_dry_run_of_a_night_writes_nothing(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    assert night(nights, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "jax 0.10.2, ROCm 7.2.0, lock " in out
    assert "were not done yet" in out
    assert "promote: the set is copied" in out
    assert "check: pip and uv install" in out
    assert night(nights, "--dry-run", "--steps=build") == 0
    assert "promote: " not in capsys.readouterr().out
    assert not [*nights.bucket.iterdir()]
    assert night(nights) == 0
    capsys.readouterr()
    assert night(nights, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "were done on " in out
    assert "promote: " not in out
