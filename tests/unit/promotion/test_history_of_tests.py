"""`ci_build history INDEX --tests` and `ci_build gate explain` on a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_build.cli import run as ci_build
from promotion.evidence import known_tests
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.evidence.test_runs import record
from promotion.policy import policy
from promotion.storage.directory_bucket import DirBucket
from tests.support.device_results import WAIVER
from tests.unit.promotion.test_known_tests import entry
from tests.unit.promotion.test_test_runs import run


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    runs = [run(number, suite="smoke", family=family) for number, family in ((1, "gfx94X-dcgpu"), (2, "gfx1151"))]
    verdicts = {"a_test.py::test_x[1]": TestVerdict.FLAKY, "b_test.py::test_y": TestVerdict.PASSED}
    results = [TestResult(id=name, verdict=verdict, seconds=1.25, attempts=1) for name, verdict in verdicts.items()]
    record(DirBucket(folder), "gfx94X-dcgpu", [(run, results) for run in runs])
    return folder


def history(*words: str) -> int:
    return ci_build(["history", "gfx94X-dcgpu", *words])


def test_history_command_lists_outcomes(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history("--tests", "--bucket", str(bucket)) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if "_test.py" in line] == [
        "a_test.py::test_x[1]",
        "b_test.py::test_y",
    ] * 2
    assert history("--tests=a_test.py::*[1]", "--family", "gfx1151", "--json", "--bucket", str(bucket)) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["seconds"], found["run"]["finished"]) == ("flaky", 1.25, "2026-01-02T00:00:00Z")


def test_history_command_prints_trend(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history("--tests", "--trend", "--bucket", str(bucket)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "2026-01-0" in line]
    assert [(line[0][:10], line[2]) for line in lines] == [("2026-01-02", "gfx1151"), ("2026-01-01", "gfx94X-dcgpu")]
    assert history("--tests", "--trend", "--limit=1", "--json", "--bucket", str(bucket)) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["verdicts"], found["skipped"], found["seconds"]) == ({"flaky": 1, "passed": 1}, {}, 2.5)
    assert (found["previous"], found["changes"]) == ("", [])


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    """Return a bucket with three runs on one family, in which a test breaks and another one becomes slow."""
    folder = tmp_path / "bucket"
    verdicts = {1: ("passed", 1.0), 2: ("failed", 1.0), 3: ("flaky", 1.0)}
    runs = [
        (
            run(number, set_digest=f"{number:064x}", python="3.12", passes="single"),
            [
                TestResult(id="a_test.py::test_x[1]", verdict=TestVerdict(verdict), seconds=seconds, attempts=1),
                TestResult(id="b_test.py::test_y", verdict=TestVerdict.PASSED, seconds=8.0 * number, attempts=1),
            ],
        )
        for number, (verdict, seconds) in verdicts.items()
    ]
    record(DirBucket(folder), "gfx94X-dcgpu", runs)
    return folder


def test_history_trend_names_changes_of_each_run(changing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history("--tests", "--trend", "--bucket", str(changing)) == 0
    third, second, first, *named = (line for line in capsys.readouterr().out.splitlines() if "2026-01-0" in line)
    assert "1 flaky " in third
    assert "1 broken, 1 slower" in second
    assert ("first run" in first, "rocm gfx94X-dcgpu py3.12" in first) == (True, True)
    assert named == [
        f"{run(3).finished} flaky: a_test.py::test_x[1]",
        f"{run(2).finished} broken: a_test.py::test_x[1]",
    ]
    assert history("--tests", "--trend", "--json", "--limit=2", "--bucket", str(changing)) == 0
    found = json.loads(capsys.readouterr().out)[1]
    assert found["previous"] == f"{1:064x}"
    assert [(item["kind"], item["before"], item["now"]) for item in found["changes"]] == [
        ("broken", "passed", "failed"),
        ("slower", "passed", "passed"),
    ]
    assert [item["seconds_before"] for item in found["changes"]] == [1.0, 8.0]


def test_history_trend_of_a_pattern_follows_tests(changing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history("--tests=*_test.py::*", "--trend", "--bucket", str(changing)) == 0
    out = capsys.readouterr().out
    first, second = (line.split() for line in out.splitlines() if "_test.py" in line)
    assert (first[0], first[6], first[7:10]) == ("a_test.py::test_x[1]", ".F~", ["flaky", "since", run(3).finished])
    assert second[6:] == ["...", "passed", "since", run(1).finished, "3", "0", "0", "16.0", "s", "24.0", "s"]
    assert "F failed, ~ flaky" in out
    assert history("--tests=b*", "--trend", "--json", "--bucket", str(changing)) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["test"], found["verdicts"], found["seconds"]) == ("b_test.py::test_y", ["passed"] * 3, [8, 16, 24])
    assert [item["set_digest"][-1] for item in found["runs"]] == ["1", "2", "3"]
    assert history("--tests=*_test.py::*", "--trend", "--limit=1", "--json", "--bucket", str(changing)) == 0
    assert [item["test"] for item in json.loads(capsys.readouterr().out)] == ["a_test.py::test_x[1]"]


def test_history_command_refuses_options_without_effect(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history("--family", "gfx1151", "--bucket", str(bucket)) == 2
    assert "--trend, --rebuild, --family and --limit have no effect without --tests" in capsys.readouterr().err
    assert history("--tests", "--family", "gfx94x-dcgpu", "--bucket", str(bucket)) == 2
    assert "Give one of gfx1151, gfx94X-dcgpu" in capsys.readouterr().err


def explain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = ci_build(["gate", "explain", "a_test.py::test_x[1]", *words])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_explain_prints_entries_and_outcomes(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = explain(capsys, "--family=gfx94x-dcgpu")
    assert (status, "Unknown family: 'gfx94x-dcgpu'" in said) == (2, True)
    status, said = explain(capsys)
    assert (status, "No ledger entry matches a_test.py::test_x[1]" in said) == (0, True)
    status, said = explain(capsys, "--index=gfx94X-dcgpu", f"--bucket={bucket}")
    assert "2026-01-02T00:00:00Z: flaky in 1.2 s on gfx1151" in said


def test_explain_prints_why_entry_does_not_apply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    today = datetime.now(UTC).date()
    more: dict[str, Any] = {
        "pattern": "a_test.py",
        "jax": "any",
        "families": "any",
        "opened": today - timedelta(days=9),
    }
    entries = (entry(id="now", **more, expires=today + timedelta(days=1)), entry(id="over", **more, expires=today))
    monkeypatch.setattr(known_tests, "load_entries", lambda: entries)
    status, said = explain(capsys, "--family=gfx94X-dcgpu")
    applies, over = said.splitlines()
    assert (status, applies.startswith("applies: now, by somebody")) == (0, True)
    assert over.startswith(f"does not apply (it expired on {today}): over")
    assert applies.endswith("see jax#1")
    _, said = explain(capsys, "--platform=cpu", "--json")
    (first, second) = json.loads(said)["entries"]
    assert (first["why_not"], first["entry"]["id"], second["entry"]["expires"]) == (
        "it is for the platforms rocm",
        "now",
        str(today),
    )
    assert (first["entry"]["jax"], first["entry"]["families"]) == ("any", "any")


def test_explain_lists_waivers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    today = datetime.now(UTC).date()
    waiver = replace(WAIVER, test="a_test.py", opened=today, expires=today + timedelta(days=1))
    over = replace(waiver, owner="another", index="gfx94X-dcgpu", opened=today - timedelta(days=9), expires=today)
    monkeypatch.setattr(policy, "load_waivers", lambda: (waiver, over, replace(waiver, test="b_test.py")))
    _, said = explain(capsys)
    assert said.splitlines()[1:] == [
        f"applies: waiver for gfx942 in multi-arch, channel nightly, {waiver}",
        f"does not apply (it expired on {today}): waiver for gfx942 in gfx94X-dcgpu, channel nightly, {over}",
    ]
    _, said = explain(capsys, "--json")
    found = json.loads(said)["waivers"]
    assert [(row["waiver"]["owner"], row["why_not"]) for row in found] == [
        ("somebody", ""),
        ("another", f"expired on {today}"),
    ]
