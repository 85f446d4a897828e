"""JAX's own scripts of all releases and of HEAD; runs with a checkout of JAX in JAX_CHECKOUT."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from packaging.version import Version

from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.shell_env import read_script

FIRST = {JaxPlatform.CPU: "0.7.0", JaxPlatform.CUDA: "0.7.0", JaxPlatform.ROCM: "0.9.1"}
"""The first release whose script is read; JAX has one for ROCm since 0.9.1."""

if "JAX_CHECKOUT" in os.environ:

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", os.environ["JAX_CHECKOUT"], *words], capture_output=True, check=True).stdout

    TAGS = [tag for tag in git("tag", "--list", "jax-v0.[0-9]*.[0-9]*").decode().split() if tag.count(".") == 2]

    @pytest.mark.parametrize("platform", FIRST)
    def test_read_script_reads_every_release_and_head(platform: JaxPlatform, tmp_path: Path) -> None:
        since = [tag for tag in TAGS if Version(tag.removeprefix("jax-v")) >= Version(FIRST[platform])]
        assert len(since) > 5
        for commit in (*since, "HEAD"):
            with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "ci"))) as archive:
                archive.extractall(tmp_path / commit, filter="data")
            script = read_script(tmp_path / commit, f"ci/run_pytest_{platform}.sh")
            assert {"JAX_ENABLE_X64", "JAX_SKIP_SLOW_TESTS"} <= script.env.keys(), commit
            assert script.unread == ()
