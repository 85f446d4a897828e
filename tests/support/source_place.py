"""Builds from source in tests.

A small jax, a ROCm, a container that stands in for manylinux_2_28.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.integration.conftest import CI_BUILD
from tests.support import docker
from tests.support.git import git

WORKSPACE = Path(__file__).with_name("workspace") / "jax"
VERSION = "7.10.0a20251120"
PYTHON = "3.13"
DEVICE = {"_linalg.so", "_prng.so", "_solver.so", "xla_rocm_plugin.so"}
"""Libraries with device code."""
NAMED_BY_BAZEL = (
    ("protobuf", "3.19.6"),
    ("protobuf", "21.7"),
    ("zlib", "1.3.1.bcr.3"),
    ("buildozer", "7.1.2"),
    ("apple_support", "1.23.1"),
)
"""Modules that Bazel's own modules depend on, but that no build here uses."""
SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Place:
    """Inputs and folders of source builds.

    Attributes:
        rocm: a folder or a tarball.
        cache: name of the cache folder.
        settings: additional environment variables.
    """

    folder: Path
    engine: docker.Docker
    rocm: Path
    jax: Path
    cache: str = "cache"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of commands."""
        return {**self.engine.environment, **self.settings}

    def argv(
        self,
        out: Path,
        *more: str,
        jax: Path | None = None,
    ) -> list[str]:
        """Return a dist_wheels command with a stand-in for each input."""
        return [
            *CI_BUILD,
            "--compiler=clang",
            f"--python-versions={PYTHON}",
            f"--rocm-version={VERSION}",
            f"--therock-path={self.rocm}",
            "dist_wheels",
            f"--builder-image={self.engine.builder()}",
            f"--jax-source-dir={jax or self.jax}",
            f"--cache-dir={self.folder / self.cache}",
            f"--rocm-lock={out.with_suffix('.lock')}",
            f"--out={out}",
            *more,
        ]

    def run(
        self, out: Path, *more: str, jax: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command until it ends."""
        return subprocess.run(
            self.argv(out, *more, jax=jax),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    def run_on_terminal(self, out: Path, *more: str) -> tuple[int, str]:
        """Run the command on a terminal until it ends.

        Return its status and everything that it displayed.
        """
        ours, theirs = pty.openpty()
        env = {
            name: value
            for name, value in self.environment.items()
            if name not in ("CI", "GITHUB_ACTIONS")
        }
        # A wide terminal, so that no line is truncated.
        env |= {
            "TERM": "xterm",
            "COLUMNS": "400",
            "LINES": "50",
        }
        process = subprocess.Popen(
            self.argv(out, *more),
            env=env,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        shown = bytearray()
        # Reading fails once the other end is closed.
        with contextlib.suppress(OSError):
            while data := os.read(ours, 1 << 16):
                shown += data
        os.close(ours)
        return process.wait(timeout=SECONDS), shown.decode(errors="replace")

    def start(self, out: Path, *more: str) -> subprocess.Popen[str]:
        """Start the command in its own process group, so that tests can interrupt it."""
        return subprocess.Popen(
            ["env", "--default-signal=INT", *self.argv(out, *more)],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def containers(self) -> set[str]:
        """Return the containers of these tests; other tests may use the same daemon."""
        mine = f"--filter=volume={self.folder / self.cache / 'builds' / 'out'}"
        return set(self.engine.ask("ps", "--all", "--quiet", mine).split())


def pack_rocm(rocm: Path, tarball: Path) -> Path:
    """Write a .tar.zst with a ROCm."""
    plain = tarball.with_suffix("")
    subprocess.run(["tar", "-C", rocm, "-cf", plain, "."], check=True)
    with plain.open("rb") as data, tarball.open("wb") as file:
        zstandard.ZstdCompressor(level=1, threads=-1).copy_stream(data, file)
    plain.unlink()
    return tarball


def jax_in(folder: Path) -> Path:
    """Return a checkout of the small workspace, with a commit."""
    shutil.copytree(
        WORKSPACE, folder, ignore=shutil.ignore_patterns("bazel-*", ".jax_*")
    )
    commit_all(folder)
    return folder


def use_modules(jax: Path) -> None:
    """Make Bazel resolve repositories with modules instead of WORKSPACE, as at the head of jax."""
    bazelrc = jax / ".bazelrc"
    registry = jax / "third_party" / "registry"
    before = "--noenable_bzlmod --enable_workspace"
    after = "--enable_bzlmod --noenable_workspace"
    text = bazelrc.read_text()
    assert before in text
    bazelrc.write_text(
        text.replace(
            before, f"{after} --registry=file://%workspace%/third_party/registry"
        )
    )
    for name, version in NAMED_BY_BAZEL:
        module = registry / "modules" / name / version
        module.mkdir(parents=True)
        (module / "MODULE.bazel").write_text(
            f'module(name = "{name}", version = "{version}")\n'
        )
        (module / "source.json").write_text(
            '{"type": "local_path", "path": "/nowhere"}'
        )
    (registry / "bazel_registry.json").write_text("{}")


def send_compiler(jax: Path) -> None:
    """Make the libraries of the compiler inputs of actions, since executors have none."""
    rules = jax / "rocm" / "configure.bzl"
    text = rules.read_text()
    assert "_REMOTE = False" in text
    rules.write_text(text.replace("_REMOTE = False", "_REMOTE = True"))


def commit_all(folder: Path) -> str:
    """Turn a folder into a checkout; return its commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=All")
    return git(folder, "rev-parse", "HEAD")


def mark_xla(folder: Path, text: str) -> None:
    """Change a folder with XLA so that its compiled bytes are recognisable."""
    header = folder / "xla" / "pjrt_c_api.h"
    line = f'\n__attribute__((used, retain)) static const char kXla[] = "{text}";\n'
    header.write_text(
        (WORKSPACE / "third_party" / "xla" / "xla" / "pjrt_c_api.h").read_text() + line
    )


def wheels_json(dist: Path) -> dict[str, Any]:
    """Return the set's wheels.json."""
    found: dict[str, Any] = json.loads((dist / "wheels.json").read_text())
    return found


def processes_in(log: Path) -> str:
    """Return Bazel's report of executed actions."""
    done = re.search(r"INFO: \d+ process(?:es)?: .*", log.read_text())
    assert done is not None, log.read_text()
    return done[0]


def wait_for(true: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until a condition holds while a process runs."""
    for _ in range(SECONDS * 10):
        if true():
            return
        if process.poll() is not None:
            pytest.fail(f"it ended too early: {process.communicate()[1]}")
        time.sleep(0.1)
    pytest.fail("it did not come so far")
