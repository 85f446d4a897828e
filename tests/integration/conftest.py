"""Fixtures of integration tests: engines, servers, and one finished release."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.store import hold_lock
from kernels.tests.conftest import (  # noqa: F401 - fixtures
    environment,
    hip_include,
    stand_ins,
)
from promotion.storage.s3_client import connect
from tests.support import ceph, docker
from tests.support import podman as own_podman

LAUNCHER = str(Path(__file__).resolve().parents[2] / "build" / "ci_build")
CI_BUILD = [sys.executable, LAUNCHER]


def ci_build(
    *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the launcher with these variables added to the environment."""
    variables = {**os.environ, **(env or {})}
    return subprocess.run(
        [*CI_BUILD, *words],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def succeed(
    *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the launcher, and fail unless it succeeds."""
    done = ci_build(*words, env=env)
    assert done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True)
class Released:
    """A release made for these tests, shared by several workers; tests write to a copy.

    Attributes:
        folder: working folder of the command.
        said: output of the command.
    """

    folder: Path
    said: str

    @property
    def install_line(self) -> str:
        found = re.search(r"^  (pip install .+)$", self.said, re.MULTILINE)
        assert found is not None
        return found[1]

    def copy(self, folder: Path) -> None:
        """Copy the files to another folder by hard links, since they never change.

        Locks are not linked, because a linked lock would be shared.
        """
        unwanted = shutil.ignore_patterns("*.lock")
        shutil.copytree(
            self.folder,
            folder,
            copy_function=os.link,
            dirs_exist_ok=True,
            ignore=unwanted,
        )


@pytest.fixture(scope="session")
def build_lock(shared_folder: Path) -> Path:
    """Return the lock of builds of the published wheels.

    Each finds the finished steps of earlier ones in the cache.
    """
    return shared_folder / "build.lock"


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.Docker]:
    """Start a real Docker daemon for these tests."""
    if why := docker.obstacle():
        pytest.skip(f"a Docker daemon {why}")
    with docker.running() as started:
        yield started


@pytest.fixture(scope="session")
def podman() -> own_podman.Podman:
    """Provide a real Podman for these tests."""
    if why := own_podman.obstacle():
        pytest.skip(f"podman {why}")
    return own_podman.made()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ceph.Ceph]:
    """Start a real S3 server; each test creates its buckets."""
    if why := ceph.obstacle():
        pytest.skip(f"a real S3 server {why}")
    with ceph.running() as started:
        yield started


@pytest.fixture
def s3_client(s3_server: ceph.Ceph, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a client with the owner's keys, which are also in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.owner.access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.owner.secret)
    return connect(endpoint=s3_server.url)


@pytest.fixture(scope="session")
def released(shared_folder: Path, work_cache: Path, build_lock: Path) -> Released:
    """Run the main job once."""
    folder = shared_folder / "release"
    outcome = shared_folder / "release.json"
    with hold_lock(shared_folder / "release.lock"):
        if not outcome.exists():
            folder.mkdir()
            argv = [*CI_BUILD, "release", "--local", f"--cache-dir={work_cache}"]
            with hold_lock(build_lock):
                done = subprocess.run(
                    argv, capture_output=True, text=True, check=False, cwd=folder
                )
            outcome.write_text(
                json.dumps({"returncode": done.returncode, "said": done.stderr})
            )
    # A failed start is reported by every worker and not repeated.
    told = json.loads(outcome.read_text())
    assert told["returncode"] == 0, told["said"]
    return Released(folder, told["said"])
