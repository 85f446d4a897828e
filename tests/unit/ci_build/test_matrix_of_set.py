"""`ci_build ci tests`: the jobs of a staged set, as entered on the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.wheelset.source.pins import load_pins
from core.targets import expand
from promotion.evidence.evidence import EvidenceFile
from promotion.policy.promotion_policy import load_policy
from promotion.policy.tier_requirements import EvidenceCase
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import PYTHONS, make_wheels, passing_evidence
from tests.support.workflows import FOLDER, load

NOW = datetime(2026, 1, 3, tzinfo=UTC)
MOST_PASSED = {"smoke": 501}
"""Number of tests of a suite; JAX's own suites have many thousands."""
WHEN = {
    "nightly": "${{ inputs.channel == 'release' && 'weekly' || 'nightly' }}",
    "release": "weekly",
}
"""Expressions of the workflows; they evaluate to the words of the test."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[DirBucket, StagedSet]:
    """Return a bucket with a promoted set for gfx942 and gfx950, which each test copies."""
    folder = tmp_path_factory.mktemp("bucket")
    bucket = DirBucket(folder / "bucket")
    staged = staged_in(bucket, folder / "sets", make_wheels(folder / "w"))
    go(bucket, staged)
    return bucket, staged


@pytest.fixture
def staged(
    tmp_path: Path,
    template: tuple[DirBucket, StagedSet],
    monkeypatch: pytest.MonkeyPatch,
) -> StagedSet:
    """Return a promoted set for gfx942 and gfx950 in the default bucket of the current folder."""
    bucket, staged = template
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bucket.root, tmp_path / "bucket")
    return staged


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the printed JSON."""
    assert cli.run(["ci", "tests", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_matrix_tests_reads_targets_and_pythons_of_the_set(
    staged: StagedSet, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("multi-arch/1", str(staged), str(staged)[:18]):
        body = printed(capsys, name, "--when=nightly")
        assert {(job["family"], job["python"]) for job in body["include"]} == {
            (family, python)
            for family, python in product(("gfx94X-dcgpu", "gfx950-dcgpu"), PYTHONS)
        }
        assert {job["run"].split()[4] for job in body["include"]} == {str(staged)}
        assert body["sets"] == [str(staged)]
        assert body["without_runner"] == []
        assert body["without_family"] == []
    words = ("--python-versions=3.12", "--family=gfx950-dcgpu", "--jax-tests=smoke")
    one = printed(capsys, "multi-arch/1", "--when=nightly", *words)
    assert [(job["targets"], job["python"]) for job in one["include"]] == [
        (["gfx950"], "3.12")
    ]


def test_matrix_tests_runs_the_suite_of_the_set(
    staged: StagedSet, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = f"https://github.com/jax-ml/jax@{load_pins().tags['0.10.2']}"
    words = ("multi-arch/1", "--when=nightly", "--python-versions=3.12")
    body = printed(capsys, *words)
    for job in body["include"]:
        at = job["run"].split().index("--jax-tests")
        assert job["run"].split()[at : at + 4] == [
            "--jax-tests",
            suite,
            "--size",
            "large",
        ]
    smoke = printed(capsys, *words, "--jax-tests=smoke")
    assert not any("--jax-tests" in job["run"].split() for job in smoke["include"])


@pytest.mark.parametrize(
    ("index", "targets"),
    [
        ("multi-arch", ("default",)),
        ("gfx94X-dcgpu", ("gfx942",)),
        ("gfx950-dcgpu", ("gfx950",)),
        ("gfx1151", ("gfx1151",)),
        ("gfx120X-all", ("gfx1200", "gfx1201")),
    ],
)
@pytest.mark.parametrize(
    ("workflow", "channel"),
    [
        ("nightly", "nightly"),
        ("nightly", "release"),
        ("release", "release"),
    ],
)
def test_jobs_of_the_workflows_can_meet_the_policy(
    index: str,
    targets: tuple[str, ...],
    workflow: str,
    channel: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    bucket = DirBucket(tmp_path / "bucket")
    expanded = tuple(map(str, chain.from_iterable(map(expand, targets))))
    staged = staged_in(
        bucket,
        tmp_path / "sets",
        make_wheels(tmp_path / "w"),
        index=index,
        targets=expanded,
    )
    wheel_set = read_staged(bucket, staged)
    policy = replace(load_policy(index, channel=channel), keys=None, unsigned=True)
    gpu = load(FOLDER / f"{workflow}.yml")["jobs"]["gpu"]
    assert gpu["with"]["when"] == WHEN[workflow]
    when = "weekly" if channel == "release" else "nightly"
    jobs = printed(capsys, str(staged), f"--when={when}")["include"]
    found = []
    for item in passing_evidence(wheel_set, policy):
        for job in jobs:
            if item.gate == "device" and item.target in job["targets"]:
                suite = job["suite"]
                passed = MOST_PASSED.get(job["suite"], 10_000)
                settings = {
                    "version": "1",
                    "platform": "rocm",
                    "size": suite.removeprefix("smoke"),
                }
                settings["passes"] = (
                    "single multi" if job["devices"] == "multi" else "single"
                )
                counts = {
                    **item.counts,
                    "collected": passed,
                    "run": passed,
                    "passed": passed,
                }
                found.append(
                    EvidenceFile(
                        evidence=replace(item, settings=settings, counts=counts)
                    )
                )
    case = EvidenceCase(wheel_set=wheel_set, files=found, policy=policy, now=NOW)
    device = [item for item in case.requirements() if item.gate == "device"]
    assert device
    assert {item.target: item.problems for item in device if item.problems} == {}


def test_matrix_tests_passes_bucket_to_every_job(
    staged: StagedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = str(tmp_path / "bucket")
    words = ("multi-arch/1", "--when=nightly", "--jax-tests=/jax")
    for bucket, given in (("bucket", False), (where, True)):
        body = printed(capsys, *words, f"--bucket={bucket}")
        assert body["include"]
        for job in body["include"]:
            command = job["run"]
            assert (f"--bucket {where}" in command) == given
