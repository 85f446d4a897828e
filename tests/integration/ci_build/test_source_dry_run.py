"""Dry run of a build from source: every command is shown as it would run, and nothing is changed."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.build.source.build_py import IN_CONTAINER, build_commands
from ci_build.build.source.pins import pins_for
from core.model import GfxTarget
from core.versions import set_version
from tests.integration.conftest import ci_build
from tests.support.golden_build_py import inputs, request

SEED = [
    "--compiler=clang",
    "--python-versions=3.12",
    "--rocm-version=7.10.0a20251120",
    "--therock-path=https://127.0.0.1:1/therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
]


def dry_run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    env = {"CI_BUILD_CACHE_DIR": str(folder / "cache")}
    done = ci_build(*SEED, "dist_wheels", "--dry-run", *more, cwd=folder, env=env)
    assert list(folder.iterdir()) == [], "a dry run touches nothing"
    return done


def shown(text: str) -> list[list[str]]:
    """Return the argument lists of build.py, without the environment in front."""
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines() if "build/build.py" in line]
    return [[word for word in shlex.split(line) if not word.partition("=")[0].isupper()] for line in lines]


def test_dry_run_shows_commands_of_plan(tmp_path: Path) -> None:
    done = dry_run(tmp_path)
    assert done.returncode == 0, done.stderr
    asked = request("0.10.2")
    # The default target is the family in the tarball's name.
    asked = replace(asked, python_versions=("3.12",), targets=(GfxTarget.parse("gfx942"),))
    commands = build_commands(asked, inputs("0.10.2"), set_version(asked), IN_CONTAINER)
    wanted = [list(command.argv) for command in commands]
    assert shown(done.stdout) == wanted
    pinned = pins_for("0.10.2")
    assert pinned is not None
    assert f"fetch jax at {pinned.jax}" in done.stdout
    assert "would build in a container of jax-manylinux_2_28:" in done.stderr
    assert "$ docker build --file Dockerfile --tag jax-manylinux_2_28:" in done.stderr
    assert "docker build" not in dry_run(tmp_path, "--builder-image=mine:1").stderr


def test_dry_run_prints_json(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "--json", "--targets=gfx942")
    lines = json.loads(done.stdout)["plan"]
    assert sum("build/build.py build --wheels=" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (["--rocm-build-job=nightly"], 2, "No URL template was given"),
        (["--rocm-build-job=nightly", "--rocm-build-url=https://h/{job}"], 2, "excludes --rocm-build-job"),
        (["--jax-source-dir=."], 2, "is not a jax tree"),
        (["--targets=gfx950"], 2, "is for gfx94X-dcgpu, but --targets has gfx950"),
    ],
)
def test_dry_run_refuses_impossible_builds(tmp_path: Path, more: list[str], status: int, words: str) -> None:
    done = dry_run(tmp_path, *more)
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr


def test_dry_run_refuses_build_without_rocm(tmp_path: Path) -> None:
    done = ci_build("dist_wheels", "--rocm-version=7.10.0", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "A build from source needs a ROCm." in done.stderr


def test_dry_run_uses_rocm_of_build_job(tmp_path: Path) -> None:
    name = "therock-dist-linux-gfx950-dcgpu-7.10.0a20251120.tar.gz"
    url = "--rocm-build-url=https://127.0.0.1:1/{job}/{num}/" + name
    done = ci_build("dist_wheels", "--rocm-build-job=nightly", "--rocm-build-num=7", url, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"would download https://127.0.0.1:1/nightly/7/{name}" in done.stderr
    assert all("--rocm_amdgpu_targets=gfx950" in argv for argv in shown(done.stdout))
