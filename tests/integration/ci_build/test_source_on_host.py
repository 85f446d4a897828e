"""A build from source without a container: the set, and a second identical build."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.wheelset import read_set
from tests.integration.conftest import ci_build
from tests.support.file_server import Behaviour, serving
from tests.support.machine import need
from tests.support.made_jax import XLA, make_jax
from tests.support.made_rocm import TOOLS, VERSION, make_rocm, make_useless_tools

pytestmark = pytest.mark.network
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Machine:
    """A machine with a ROCm, a jax tree, and programs named bazel and clang.

    Attributes:
        folder: working folder of commands.
        path: PATH of commands.
    """

    folder: Path
    path: str

    def build(self, *more: str) -> subprocess.CompletedProcess[str]:
        words = [
            f"--rocm-version={VERSION}",
            "--targets=gfx942",
            f"--python-versions={PYTHON}",
        ]
        words += ["--therock-path=rocm", "--jax-source-dir=jax", "--host"]
        words += [
            "--clang-path=tools/clang",
            "--bazel-path=tools/bazel",
            *more,
            "dist_wheels",
        ]
        return self.run(*words)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": self.path, "CI_BUILD_CACHE_DIR": str(self.folder / "cache")}
        return ci_build(*words, cwd=self.folder, env=env)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    make_rocm(tmp_path / "rocm")
    make_jax(tmp_path / "jax")
    # Only tools that this machine may lack.
    tools = make_useless_tools(tmp_path / "tools")
    for name in set(TOOLS) - {"bazel", "clang++", "patchelf", "xxd"}:
        (tools / name).unlink()
    (tools / "clang").symlink_to("clang++")
    return Machine(tmp_path, f"{tools}:{os.environ['PATH']}")


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_host_build_records_inputs_and_is_reused(machine: Machine) -> None:
    ok(machine.build())
    made = read_set(machine.folder / "dist")
    version = f"0.10.2+rocm{VERSION}.gfx942"
    assert {(wheel.name, wheel.version) for wheel in made.wheels} == {
        ("jax-rocm7-pjrt", version),
        ("jax-rocm7-plugin", version),
        ("jaxlib", f"0.10.2+rocm{VERSION}"),
    }
    assert {wheel.filename.rpartition("-")[2] for wheel in made.wheels} == {
        "manylinux_2_28_x86_64.whl"
    }
    source = made.request["source"]
    assert source["xla_commit"] == XLA
    assert all(
        source[name]
        for name in ("jax_commit", "own_commit", "rocm", "builder", "compiler")
    )
    assert source["jax_commit"].startswith("tree-")
    assert made.request["rocm_trust"] == {"checksum": "local", "transport": "local"}
    assert [item.url for item in made.inputs if "pjrt" in item.filename] == [
        f"source:jax@{source['jax_commit']}"
    ]
    assert "nothing to do" in ok(machine.build())
    again = machine.run("set", "reproduce", "dist")
    assert (again.returncode, again.stdout.count("same ")) == (0, 3), again.stderr
    other = ok(machine.build("--no-strip"))
    assert "build jax-rocm7-pjrt" in other, "its version is another one"
    (machine.folder / "rocm/include/hip/more.h").write_text("")
    assert "build jax-rocm7-pjrt" in ok(machine.build()), "its ROCm is another one"
    (machine.folder / "jax/prebuilt/jaxlib/jaxlib/__init__.py").write_text("x = 1\n")
    assert "build jaxlib" in ok(machine.build())


def test_host_build_checks_tools_before_download(machine: Machine) -> None:
    need("git")
    with serving(Behaviour(files={})) as told:
        absent = f"--therock-path={told.url}/rocm.tar.gz"
        done = machine.build(absent, "--clang-path=/no/clang")
        assert done.returncode == 18
        assert ("/no/clang (not found)" in done.stderr) is True
        assert told.seen == []
        # With the programs, the build proceeds to the download.
        fetched = machine.build(absent)
    assert (fetched.returncode, "the server returned 404" in fetched.stderr) == (
        6,
        True,
    ), fetched.stderr
