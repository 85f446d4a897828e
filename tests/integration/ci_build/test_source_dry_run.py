"""Dry run of a build from source.

Every command is shown as it would run, and nothing is changed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.wheelset.source.build_py import IN_CONTAINER, build_commands
from ci_build.wheelset.source.pins import pins_for
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
    done = ci_build(
        *SEED,
        "dist_wheels",
        "--dry-run",
        *more,
        cwd=folder,
        env=env,
    )
    assert list(folder.iterdir()) == [], "a dry run touches nothing"
    return done


def shown(text: str) -> list[list[str]]:
    """Return the argument lists of build.py in containers."""
    argvs = [shlex.split(line) for line in commands(text) if " build/build.py " in line]
    found = []
    for argv in argvs:
        at = argv.index("--entrypoint")
        found.append([argv[at + 1], *argv[at + 3 :]])
    return found


def commands(text: str) -> list[str]:
    """Return the commands of a dry run in order, each on one line."""
    lines = map(str.strip, re.sub(r" \\\n\s+", " ", text).splitlines())
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


# The release of the seed's table, and the one that is planned without --jax-version.
@pytest.mark.parametrize(
    ("release", "options"), [("0.8.0", ("--jax-version=0.8.0",)), ("0.10.2", ())]
)
def test_dry_run_shows_commands_of_plan(
    tmp_path: Path, release: str, options: tuple[str, ...]
) -> None:
    done = dry_run(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    asked = request(release)
    # The default target is the family in the tarball's name.
    asked = replace(
        asked, python_versions=("3.12",), targets=(GfxTarget.parse("gfx942"),)
    )
    commands = build_commands(asked, inputs(release), set_version(asked), IN_CONTAINER)
    wanted = [list(command.argv) for command in commands]
    assert shown(done.stdout) == wanted
    pinned = pins_for(release)
    assert pinned is not None
    builder = f"rocm-jax at {pinned.rocm_jax}" if pinned.rocm_jax else ""
    assert f"fetch {builder or f'jax at {pinned.jax}'}" in done.stdout
    if not options:
        assert done.stderr.startswith(f"jax {release}: ")
        assert "--jax-version selects another, from 0.8.0 on" in done.stderr


def test_dry_run_shows_look_up_of_head(tmp_path: Path) -> None:
    ran = [
        command
        for command in commands(dry_run(tmp_path, "--xla=head").stdout)
        if "openxla/xla" in command
    ]
    assert ["ls-remote" in command for command in ran] == [True, False]
    assert ran[0].endswith(" ls-remote https://github.com/openxla/xla HEAD")


def test_dry_run_of_release_alone_installs_it_with_dnf(tmp_path: Path) -> None:
    done = ci_build("dist_wheels", "--rocm-version=7.2.0", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ran = commands(done.stdout)
    _, rocm = (command for command in ran if command.startswith("docker build "))
    assert "--build-arg REPOSITORY=https://repo.radeon.com/rocm/rhel8/7.2/main " in rocm
    (built,) = re.findall(r"--tag (jax-manylinux_2_28-rocm:[0-9a-f]{16}) ", rocm)
    lists, copies, *others = (
        command for command in ran if command.startswith("docker run ")
    )
    assert "rocm-packages.txt" in lists
    assert "tar --create --file=/out/rocm.tar" in copies
    assert all(f" {built} " in command for command in (lists, copies, *others))
