"""A build from source through Podman, with compiled wheels cached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.wheelset import read_set
from tests.integration.conftest import ci_build
from tests.support.made_jax import make_jax
from tests.support.made_rocm import VERSION, make_rocm
from tests.support.podman import Podman

pytestmark = pytest.mark.network


def test_podman_builds_set(podman: Podman, tmp_path: Path) -> None:
    make_rocm(tmp_path / "rocm")
    make_jax(tmp_path / "jax")
    image = podman.builder()
    argv = [
        f"--rocm-version={VERSION}",
        "--targets=gfx942",
        "--python-versions=3.13",
        "--therock-path=rocm",
    ]
    argv += [
        "--jax-source-dir=jax",
        "--container-engine=podman",
        f"--builder-image={image}",
        "--cache-dir=cache",
    ]
    done = ci_build(*argv, "dist_wheels", env=podman.environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = read_set(tmp_path / "dist")
    assert {wheel.name for wheel in made.wheels} == {
        "jax-rocm7-pjrt",
        "jax-rocm7-plugin",
        "jaxlib",
    }
    built = podman.ask("image", "inspect", "--format={{.Id}}", image)
    assert made.request["source"]["builder"].removeprefix("sha256:") == built
    outputs = [
        *(tmp_path / "dist").rglob("*"),
        *(tmp_path / "dist.logs").iterdir(),
        *(tmp_path / "cache").rglob("*"),
    ]
    assert {path.lstat().st_uid for path in outputs} == {os.getuid()}
    mine = f"--filter=volume={tmp_path / 'cache' / 'builds' / 'out'}"
    assert podman.ask("ps", "--all", "--quiet", mine) == ""
