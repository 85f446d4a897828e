"""The pipeline of GitLab, run by gitlab-ci-local with its shell executor, on published wheels."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import MachineError
from tests.support import ceph, npm
from tests.support.checkout import fork, shared_venv
from tests.support.machine import need
from tests.support.signing_key import signing_key

pytestmark = [pytest.mark.heavy(minutes=6), pytest.mark.network]


def run_pipeline(clone: Path, source: str, variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Run the jobs of a pipeline, and return job -> PASS or FAIL, and the output."""
    need("node", "npm", "rsync", "jq")
    # Project variables are known to child pipelines too.
    (clone / ".gitlab-ci-local-variables.yml").write_text(json.dumps(dict(variables)))
    (clone / ".git" / "info" / "exclude").write_text(".gitlab-ci-local*\n")
    argv = ["node", str(npm.program("gitlab-ci-local")), f"--variable=CI_PIPELINE_SOURCE={source}"]
    argv += ["--ignore-predefined-vars=CI_PIPELINE_SOURCE"]
    done = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    results = {name: word for word, name in re.findall(r"^\s*(PASS|FAIL)\s+(\S.*?)\s*$", said, re.MULTILINE)}
    return results, said


@pytest.fixture
def clone(tmp_path: Path, work_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the checkout of a fork, with the cache and the `.venv` of these tests."""
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(work_cache))
    for name, value in shared_venv().items():
        monkeypatch.setenv(name, value)
    folder = fork(tmp_path / "clone")
    for words in (
        "remote add origin https://gitlab.example/group/project.git",
        "symbolic-ref refs/remotes/origin/HEAD refs/remotes/origin/main",
    ):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    return folder


def test_merge_request_builds_and_gates_each_family(clone: Path) -> None:
    results, said = run_pipeline(clone, "merge_request_event", {"FAMILIES": "gfx94X-dcgpu", "PYTHONS": "3.12"})
    name = "jax0.10.2-rocm7.2.0-gfx94X-dcgpu-py3.12"
    assert results == {"plan-builds": "PASS", "builds": "PASS", f"[builds] -> {name}": "PASS"}, said[-6000:]
    wheel_set = json.loads((clone / "dist" / name / "wheels.json").read_text())
    assert (wheel_set["targets"], wheel_set["python_versions"]) == (["gfx942"], ["3.12"])
    assert [*(clone / "bucket" / "v2-staging" / wheel_set["index"]).glob("*/evidence/install/any/*.json")]


def test_schedule_promotes_a_night_and_hands_out_gpu_jobs(clone: Path, s3_server: ceph.Ceph, s3_client: Any) -> None:
    s3_client.create_bucket(Bucket="gitlab")
    public = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::gitlab/*"}
    s3_client.put_bucket_policy(Bucket="gitlab", Policy=json.dumps({"Version": "2012-10-17", "Statement": [public]}))
    variables = {
        "INDEX": "gfx94X-dcgpu",
        "CI_BUILD_BUCKET": f"s3://gitlab?endpoint_url={s3_server.url}",
        "CI_BUILD_PUBLIC_URL": f"{s3_server.url}/gitlab",
        "CI_BUILD_PAYLOAD": "published",
        "CI_BUILD_TARGETS": "gfx942",
        "CI_BUILD_PYTHON_VERSIONS": "3.12",
        "CI_BUILD_SIGNING_KEY": signing_key(),
        "CI_BUILD_LEDGER_KEY": signing_key(),
        "AWS_ACCESS_KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    results, said = run_pipeline(clone, "schedule", variables)
    # The policy of this fork asks for no evidence of devices, which this machine does not have.
    for number in (1, 2):
        device = f"gfx94X-dcgpu py3.12 large single {number}/2"
        assert results.pop(device, "") == "FAIL", f"{results}\n{said[-9000:]}"
        code = MachineError.exit_code
        assert re.search(rf"\[gpu-tests\] -> {device} finished in .+ FAIL {code}\b", said), said[-9000:]
    names = ("night-build", "night-gates", "night-promote")
    assert {name: results.get(name) for name in names} == dict.fromkeys(names, "PASS"), said[-6000:]
    keys = [item["Key"] for item in s3_client.list_objects_v2(Bucket="gitlab", Prefix="v2/")["Contents"]]
    assert any(key.startswith("v2/gfx94X-dcgpu/simple/jax-rocm7-plugin/") for key in keys)
    assert "gfx942" in (clone / "out" / "night.md").read_text()
    results, said = run_pipeline(clone, "schedule", variables)
    assert {*results.values()} == {"PASS"}, said[-6000:]
    assert "The inputs did not change." in said
