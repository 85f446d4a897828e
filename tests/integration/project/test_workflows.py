"""The workflows of GitHub: schemas, linters, and rules that no linter checks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci_build.cli.options.environment import ledger_request
from tests.support.tiers import TierTable
from tests.support.workflows import FOLDER, load, steps

FILES = sorted(FOLDER.glob("*.yml"))
BIN = Path(sys.prefix, "bin")
SCHEMA = "vendor.github-workflows"
"""Schema that SchemaStore publishes; check-jsonschema contains it."""


def run(*argv: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, argv)), capture_output=True, text=True, check=False, cwd=cwd
    )


def validate(*files: Path) -> subprocess.CompletedProcess[str]:
    return run(BIN / "check-jsonschema", "--builtin-schema", SCHEMA, *files)


def zizmor(*places: Path) -> subprocess.CompletedProcess[str]:
    return run(
        BIN / "zizmor",
        "--offline",
        "--no-config",
        "--persona=auditor",
        "--no-progress",
        *places,
    )


def test_workflows_match_published_schema() -> None:
    done = validate(*FILES)
    assert done.returncode == 0, done.stdout


def test_zizmor_finds_nothing() -> None:
    done = zizmor(FOLDER)
    assert done.returncode == 0, done.stdout
    assert "No findings to report" in done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_workflow_follows_house_rules(file: Path) -> None:
    workflow = load(file)
    assert workflow["permissions"] == {}
    assert "concurrency" in workflow
    for name, job in workflow["jobs"].items():
        assert "permissions" in job, name
        assert ("timeout-minutes" in job) != ("uses" in job), name
        for step in steps(job):
            assert "${{" not in step.get("run", ""), f"{name}: {step}"
            if "actions/checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
    for used in re.findall(r"uses: (.+)", file.read_text()):
        assert re.fullmatch(
            r"\./\.github/workflows/[\w-]+\.yml( #.+)?|[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+",
            used,
        )


@pytest.mark.parametrize("name", ["nightly", "release"])
def test_builder_tester_and_promoter_have_separate_identities(name: str) -> None:
    jobs = load(FOLDER / f"{name}.yml")["jobs"]
    promoter = "promoter" if name == "nightly" else "release"
    identities = {
        job: body["environment"] for job, body in jobs.items() if "environment" in body
    }
    assert identities == {
        "build": "builder",
        "gates": "tester",
        "promote": promoter,
    }
    assert {
        job["environment"] for job in load(FOLDER / "gpu-tests.yml")["jobs"].values()
    } == {"tester"}
    for job, body in jobs.items():
        lines = " ".join(step.get("run", "") for step in steps(body))
        assert ("promote" in lines) == (job == "promote")
        assert ("secrets.SIGNING_KEY" in str(body)) == (job == "gates")
        assert ("secrets.LEDGER_KEY" in str(body)) == (job == "promote")
        assert all(
            step.get("if") == "vars.AWS_ROLE != ''"
            for step in steps(body)
            if "aws-actions" in step.get("uses", "")
        )


@pytest.mark.parametrize("name", ["maintenance", "nightly", "release"])
def test_promoters_keep_the_newest_ledger_entries(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached folder is the one that the commands use."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    used = ledger_request(None, bucket="s3://name/prefix").heads
    jobs = load(FOLDER / f"{name}.yml")["jobs"]
    job = jobs["maintain" if name == "maintenance" else "promote"]
    (cached,) = (s["with"] for s in steps(job) if "actions/cache@" in s.get("uses", ""))
    assert used is not None
    assert used.is_relative_to(tmp_path / cached["path"].removeprefix("~/"))


def test_maintenance_runs_every_week() -> None:
    workflow = load(FOLDER / "maintenance.yml")
    (schedule,) = workflow["on"]["schedule"]
    assert schedule["cron"].endswith(" * * 0")
    job = workflow["jobs"]["maintain"]
    assert job["env"]["CI_BUILD_BUCKET"].endswith("${{ matrix.folder }}")
    lines = [step.get("run", "") for step in steps(job)]
    commands = [" ".join(line.split()[2:4]) for line in lines if line]
    assert commands == [
        "index verify",
        "index retention",
        "set collect",
        "index verify",
    ]


def test_nightly_runs_every_shard() -> None:
    job = load(FOLDER / "nightly.yml")["jobs"]["tests"]
    count = TierTable.load().shards
    assert job["strategy"]["matrix"]["shard"] == [*range(1, count + 1)]
    assert job["steps"][-1]["env"]["SHARD"] == f"${{{{ matrix.shard }}}}/{count}"


def inputs(name: str, event: str) -> dict[str, Any]:
    found: dict[str, Any] = load(FOLDER / f"{name}.yml")["on"][event]["inputs"]
    return found


def test_continuous_nights_have_buckets_of_their_own() -> None:
    job = load(FOLDER / "continuous.yml")["jobs"]["night"]
    rows = job["strategy"]["matrix"]["include"]
    assert [(row["jax-version"], row["xla"]) for row in rows] == [
        ("head", "pin"),
        ("head", "head"),
        ("newest", "head"),
    ]
    assert len({row["name"] for row in rows}) == len(rows)
    assert all("matrix.name" in job["with"][name] for name in ("bucket", "public-url"))
    assert set(job["with"]) <= set(inputs("nightly", "workflow_call"))
