"""A real Slurm of two nodes: kernels compiled by workers in its jobs, jobs that end, and an interrupt."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import CI_BUILD
from tests.support import docker
from tests.support import slurm as own_slurm

KERNELS = ("kernels", "build", "--targets=gfx942,gfx1100", "--modules=rms_norm", "--allow-partial", "--json")
JOBS = ("--slurm=cpus-per-task=4", "--slurm=mem=4000M", "--slurm=time=10", "--slurm=listen=10.77.0.1")


@pytest.fixture(scope="module")
def slurm(engine: docker.Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[own_slurm.Slurm]:
    """Start a Slurm whose hosts share a folder."""
    with own_slurm.running(engine, tmp_path_factory.mktemp("slurm")) as started:
        yield started


def downloads(cache: Path, to: Path) -> None:
    """Give a cache the compilers and sources of another one, since the hosts have no network."""
    (to / "kernels").mkdir(parents=True)
    for name in ("sources", "toolchains"):
        shutil.copytree(cache / "kernels" / name, to / "kernels" / name, symlinks=True, copy_function=shutil.copy2)
    shutil.copytree(cache / "kernels" / "zig", to / "kernels" / "zig", symlinks=True)


def command(slurm: own_slurm.Slurm, name: str, *words: str) -> list[str]:
    """Return a command for the login node, with an empty store of compiled kernels."""
    return [sys.executable, "-m", "ci_build.cli", *KERNELS, f"--cache-dir={slurm.shared / name}",
            f"--out={slurm.shared / name / 'out'}", "--cluster=slurm", f"--cluster-store={slurm.shared / 'store'}",
            *JOBS, *words]  # fmt: skip
