"""Nights of the newest commits of JAX and XLA, in a mirror of Git repositories."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ci_build import cli
from ci_build.build.source.pins import releases
from tests.integration.ci_build.test_nightly import CONTINUOUS
from tests.support.fake_therock import names_of, page_of
from tests.support.fake_therock import nightly as nightly_version
from tests.support.file_server import Behaviour, serving
from tests.support.machine import need
from tests.support.nights import JAX, Nights
from tests.support.nights import nights as nights
from tests.support.nights import small_release as small_release
from tests.support.wheel_sets import plain


def commit_of(mirror: Path, name: str, files: dict[str, str]) -> str:
    """Commit files to a repository of a mirror, and return the commit."""
    folder = mirror / name
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "change"], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_continuous_nights_find_newest_rocm_and_commits(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    need("git")
    mirror = nights.folder / "mirror"
    pin = f'XLA_COMMIT = "{"d" * 40}"\n'
    jax = commit_of(
        mirror, "jax-ml/jax", {"jax/version.py": f'_version = "{JAX}"\n', "third_party/xla/revision.bzl": pin}
    )
    xla = commit_of(mirror, "openxla/xla", {"README": "1"})
    files: dict[str, bytes] = {"/new/": page_of(names_of(nightly_version(2))).encode()}
    with serving(Behaviour(files=files)) as server:
        words = (f"--therock-listing={server.url}/new/", f"--source-mirror={mirror}", "--host")
        # The release of the third night needs its jax and jaxlib; the heads are at the version of the other wheels.
        newest = releases()[-1]
        nights.wheels = Path(shutil.copytree(nights.wheels, nights.folder / "wheels"))
        for name, tag in (("jax", "py3-none-any"), ("jaxlib", "cp312-cp312-manylinux_2_28_x86_64")):
            plain(name, newest, tag=tag).write(nights.wheels)
        more = (f"--table={CONTINUOUS}", f"--find-links={nights.wheels}", f"--cache-dir={nights.cache}")
        last = ("--index=gfx94X-dcgpu", f"--bucket={nights.bucket}", "--python-versions=3.12", "--dry-run")

        def found() -> dict[str, str]:
            """Return the line about the inputs of each night, except for its state."""
            assert cli.run(["nightly", *words, *more, *last]) == 0, capsys.readouterr().err
            lines = capsys.readouterr().out.splitlines()
            starts = [number for number, line in enumerate(lines) if line.startswith("night ")]
            return {lines[at].split()[1].rstrip(":"): lines[at + 1] for at in starts}

        first = found()
        assert {name: line.partition(", lock ")[0] for name, line in first.items()} == {
            "jax-head-xla-pin": f"jax {JAX}, ROCm {nightly_version(2)}",
            "jax-head-xla-head": f"jax {JAX}, ROCm {nightly_version(2)}",
            "jax-release-xla-head": f"jax {newest}, ROCm {nightly_version(2)}",
        }
        assert found() == first
        # A new commit of XLA changes the nights with its head, a new commit of jax those with its head.
        assert commit_of(mirror, "openxla/xla", {"README": "2"}) != xla
        second = found()
        assert second["jax-head-xla-pin"] == first["jax-head-xla-pin"]
        assert second["jax-head-xla-head"] != first["jax-head-xla-head"]
        assert second["jax-release-xla-head"] != first["jax-release-xla-head"]
        assert commit_of(mirror, "jax-ml/jax", {"README": "2"}) != jax
        third = found()
        assert {name for name in third if third[name] == second[name]} == {"jax-release-xla-head"}
        files["/new/"] = page_of(names_of(nightly_version(1))).encode()
        fourth = found()
        assert all(f"ROCm {nightly_version(1)}" in line for line in fourth.values())
