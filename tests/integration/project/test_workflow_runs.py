"""Every `run:` step of ci, nightly, release and docs, in order, in a container, with real wheels and real S3."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from core.errors import MachineError, RequestError
from tests.integration.conftest import succeed
from tests.support import bare, ceph, checkout, docker
from tests.support.signing_key import signing_key
from tests.support.workflow_runner import FAILURE, SKIPPED, SUCCESS, Machine, StepRun
from tests.support.workflows import FOLDER, load, steps

HERE = "check"
"""Job of ci that runs on this machine: `.ci/run` needs every tool, and the container has no packages of Debian."""
SUDO = '#!/bin/sh\n[ "$1" = --preserve-env ] && shift\nexec "$@"\n'
pytestmark = [pytest.mark.heavy(minutes=14), pytest.mark.network]
CLONE = "/clone"
INDEX = "gfx94X-dcgpu"
ROLES = {"builder": "builder", "tester": "tester", "promoter": "promoter", "release": "promoter"}
"""Environment of the workflow -> role in the bucket."""


@pytest.fixture(scope="module")
def container(engine: docker.Docker, s3_server: ceph.Ceph) -> Iterator[bare.Bare]:
    """Run a machine with the checkout of a fork that has its own policy."""
    port = urlsplit(s3_server.url).port
    assert port is not None
    with bare.running(engine, "bookworm", bare.package_index(), ports=(port,), runner=True) as running:
        running.must("tar", "--extract", cwd=CLONE, stdin=checkout.files())
        running.must("tee", "promotion/policy.toml", cwd=CLONE, stdin=checkout.policy_of_fork().encode())
        for words in checkout.COMMANDS:
            running.must("git", *words, cwd=CLONE)
        yield running


@pytest.fixture
def machine(container: bare.Bare, tmp_path: Path) -> Machine:
    """Return a runner of workflows in the container; all jobs share a checkout, as on a machine of one's own."""
    clone, programs = tmp_path / "clone", tmp_path / "bin"
    container.must("rm", "-rf", "dist", cwd=CLONE)  # of an earlier test

    def execute_here(script: str, env: Mapping[str, str]) -> tuple[int, str]:
        if not clone.exists():
            checkout.fork(clone)
            if (types := checkout.ROOT / ".mypy_cache").is_dir():
                shutil.copytree(types, clone / ".mypy_cache")  # mypy checks changed files only
            programs.mkdir()
            (programs / "sudo").write_text(SUDO)
            (programs / "sudo").chmod(0o755)
        given = {**os.environ, **checkout.shared_venv(), "PATH": f"{programs}:{os.environ['PATH']}", **env}
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=clone, env=given, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def execute(job: str, script: str, env: Mapping[str, str]) -> tuple[int, str]:
        if job == HERE:
            return execute_here(script, env)
        words = [f"{name}={value}" for name, value in env.items()]
        done = container.run("env", *words, "bash", "-e", "-c", script, cwd=CLONE)
        return done.returncode, done.stdout

    return Machine(execute=execute)


def failed(machine: Machine) -> list[StepRun]:
    return [run for run in machine.runs if run.code]


def run_steps(name: str) -> int:
    return sum("run" in step for job in load(FOLDER / f"{name}.yml")["jobs"].values() for step in steps(job))


@pytest.fixture
def shared(machine: Machine, s3_server: ceph.Ceph, s3_client: Any, request: pytest.FixtureRequest) -> Machine:
    """Return the machine with a bucket whose policy separates builder, tester and promoter, as the fork's settings."""
    bucket = request.node.name.replace("_", "-")
    s3_client.create_bucket(Bucket=bucket)
    users = {role: s3_server.user(f"{bucket}-{role}") for role in {*ROLES.values()}}
    arns = [word for role, user in users.items() for word in (f"--{role}", f"arn:aws:iam:::user/{user.name}")]
    policy = succeed("bucket", "policy", f"s3://{bucket}", *arns, "--reader", "*").stdout
    s3_client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(json.loads(policy)))
    machine.identities = {
        place: {"AWS_ACCESS_KEY_ID": users[role].access, "AWS_SECRET_ACCESS_KEY": users[role].secret}
        for place, role in ROLES.items()
    }
    machine.variables = {
        "AWS_ROLE": "role",
        "BUCKET": f"s3://{bucket}?endpoint_url={s3_server.url}",
        "PUBLIC_URL": f"{s3_server.url}/{bucket}",
        "INDEX": INDEX,
    }
    ledger = {"LEDGER_KEY": signing_key()}
    machine.secrets = {"tester": {"SIGNING_KEY": signing_key()}, "promoter": ledger, "release": ledger}
    return machine


def released_wheels(s3_client: Any, shared: Machine) -> list[str]:
    bucket = urlsplit(shared.variables["BUCKET"]).netloc
    listed = s3_client.list_objects_v2(Bucket=bucket, Prefix=f"v2/{INDEX}/packages/")["Contents"]
    return [item["Key"].rpartition("/")[2] for item in listed if item["Key"].endswith(".whl")]


def test_every_step_of_nightly_runs(shared: Machine, s3_client: Any) -> None:
    inputs = {"payload": "published", "targets": "gfx942", "python-versions": "3.11"}
    results = shared.run(FOLDER / "nightly.yml", inputs)
    # The tests on GPUs fail on a machine without one, and the policy of this fork does not ask for them.
    assert [(run.job, run.code) for run in failed(shared)] == [
        ("gpu/device", MachineError.exit_code), ("gpu/device", MachineError.exit_code),
        ("gpu/merge", RequestError.exit_code),
    ], [run.said[-3000:] for run in failed(shared)]  # fmt: skip
    assert results == {"build": SUCCESS, "gates": SUCCESS, "gpu": FAILURE, "promote": SUCCESS}
    # Attestations need an identity of GitHub.
    assert [run.job for run in shared.runs] == [
        "build", "gates", "gpu/plan", "gpu/device", "gpu/device", "gpu/merge", "promote",
    ]  # fmt: skip
    assert any(name.startswith("jax_rocm7_plugin-") for name in released_wheels(s3_client, shared))
    assert "gfx942" in shared.runs[-1].files["GITHUB_STEP_SUMMARY"]
    first = len(shared.runs)
    assert shared.run(FOLDER / "nightly.yml", inputs) == {
        "build": SUCCESS, "gates": SKIPPED, "gpu": SKIPPED, "promote": SKIPPED,
    }  # fmt: skip
    assert len(shared.runs) == first + 1


def test_every_step_of_release_and_docs_runs(shared: Machine, s3_client: Any) -> None:
    inputs = {"payload": "published", "python-versions": "3.11", "jax-version": "0.10.2"}
    results = shared.run(FOLDER / "release.yml", inputs)
    # The test on GPUs fails, as in a night; tests that need several GPUs run in one job.
    assert [(run.job, run.code) for run in failed(shared)] == [("gpu/device", MachineError.exit_code)], [
        run.said[-3000:] for run in failed(shared)
    ]
    assert results == {"build": SUCCESS, "gates": SUCCESS, "gpu": FAILURE, "promote": SUCCESS}
    assert [run.job for run in shared.runs] == ["build", "gates", "gpu/plan", "gpu/device", "promote", "promote"]
    assert any(name.startswith("jax_rocm7_plugin-0.10.2") for name in released_wheels(s3_client, shared))
    # The tests of the pages are part of this test run.
    shared.skipped = {"Check the pages"}
    results = shared.run(FOLDER / "docs.yml", {})
    assert results == {"site": SUCCESS, "publish": SUCCESS}, shared.runs[-1].said[-3000:]
    tables = shared.execute("site", "cat compatibility.md", {})[1]
    assert f"Compatibility of JAX on ROCm: {INDEX}" in tables


def test_every_step_of_ci_runs(machine: Machine) -> None:
    """The last of these tests, so that it finds the cache of mypy, which runs beside the first ones."""
    inputs = {"tests": "tests/unit/core/test_targets.py", "families": "gfx94X-dcgpu", "python-versions": "3.11"}
    results = machine.run(FOLDER / "ci.yml", inputs)
    assert results == {"check": SUCCESS, "plan": SUCCESS, "wheels": SUCCESS}, [
        run.said[-3000:] for run in failed(machine)
    ]
    assert len(machine.runs) == run_steps("ci")
    plan = next(run for run in machine.runs if run.job == "plan")
    assert "matrix_count=1" in plan.files["GITHUB_OUTPUT"]
    assert "### dist/jax" in machine.runs[-1].files["GITHUB_STEP_SUMMARY"]
