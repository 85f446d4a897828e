"""Every command that the page of an index shows, executed with a served index."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from ci_build.wheelset import set_build
from ci_build.wheelset.execute import BuildResult
from core.defaults import defaults
from core.digests import sha256_of
from core.model import RocmPackage
from promotion.index.serve import IndexServer
from promotion.promote import install_line
from promotion.storage.directory_bucket import DirBucket
from tests.integration.conftest import ci_build
from tests.support import bare
from tests.support.docker import Docker
from tests.support.machine import user_environment
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.sets import rocm_packages
from tests.support.web_pages import commands
from tests.support.wheel_sets import (
    lock_text,
    make_wheels,
    ordinary_index,
    plain,
    write_index,
)

OWN = "{}.{}".format(*sys.version_info[:2])
UBUNTU, DEBIAN = "3.12", "3.11"
"""Pythons of AMD's image and of the image that stands in for it."""
OLDEST, *_, NEWEST = defaults()["pythons"]["supported"]
LATER = "0.11.0"
"""A version of every package on the ordinary index, later than those of the sets."""
VERSIONS = {"gfx942": "0.10.2+rocm7.3.0", "gfx950": "0.10.2+rocm7.2.0"}
"""GPU -> version of its newest set."""
ROCM = "7.14.0"
"""ROCm of the set for gfx942, which its extras install."""
WHEELS_OF_ROCM = {one.project: ROCM for one in rocm_packages(ROCM)}
INSTALLS = ("pip", "uv", "pip, hash-locked")
CHECK = "Check your machine"
UNREACHABLE = {"PIP_INDEX_URL": "http://127.0.0.2:1/simple/", "PIP_RETRIES": "0"}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A published index, and a user with an ordinary package index.

    Attributes:
        page: GPU -> name -> command; the bundle has no GPU.
        printed: place of a line that pip and uv execute -> the line for the set of gfx950.
    """

    bucket: DirBucket
    ordinary: str
    page: Mapping[str, Mapping[str, str]]
    printed: Mapping[str, str]

    def run(
        self, command: str, folder: Path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a shell.

        Pip installs into the folder `site`, and uv into the environment `.venv`.
        """
        programs = f"{Path(sys.executable).parent}:{Path(find_uv_bin()).parent}:{os.environ['PATH']}"
        env = {
            **user_environment(),
            "PATH": programs,
            "PIP_INDEX_URL": self.ordinary,
            "UV_DEFAULT_INDEX": self.ordinary,
            "PIP_NO_COMPILE": "1",
            "PIP_NO_CACHE_DIR": "1",
            "UV_NO_CACHE": "1",
            "VIRTUAL_ENV": str(folder / ".venv"),
            "PIP_TARGET": str(folder / "site"),
            **variables,
        }
        return subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Publish a set for two GPUs and several Pythons, and a newer one for one GPU."""
    folder = tmp_path_factory.mktemp("site")
    bucket = DirBucket(folder / "bucket")
    ordinary = ordinary_index(folder / "ordinary" / "wheels")
    several = {OWN, UBUNTU, DEBIAN, OLDEST, NEWEST}
    (folder / "amd").mkdir()
    lock = lock_text(ordinary)
    for project in ("jax", "jaxlib", "jax-rocm7-pjrt", "jax-rocm7-plugin"):
        plain(project, LATER).write(ordinary)
    write_index(folder / "ordinary")
    with (
        IndexServer(bucket.root) as server,
        IndexServer(folder / "ordinary") as other,
        IndexServer(folder / "amd") as amd,
    ):
        wheels = make_wheels(
            folder / "gfx950",
            version=VERSIONS["gfx950"],
            pythons=sorted(several, key=lambda text: int(text[2:])),
        )
        targets = ("gfx942", "gfx950")
        older = go(
            bucket, staged_in(bucket, folder, wheels, lock=lock, targets=targets)
        )
        built = BuildResult(wheel_set=older.wheel_set, folder=folder / "gfx950")
        wheels = make_wheels(
            folder / "gfx942", version=VERSIONS["gfx942"], pythons=(OWN,), extras=ROCM
        )
        changes: dict[str, Any] = {
            "targets": ("gfx942",),
            "rocm_version": ROCM,
            "rocm_packages": fake_rocm(folder / "amd", amd.url),
        }
        go(bucket, staged_in(bucket, folder, wheels, lock=lock, **changes))
        url = f"{server.url}{RELEASED.root}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read()
        of_page = commands(page, url)
        yield Site(
            bucket=bucket,
            ordinary=f"{other.url}simple/",
            page=of_page,
            printed={
                "locked": of_page["gfx950"]["pip, hash-locked"],
                "dist_wheels": set_build.install_line(built),
                "release": install_line(older.wheel_set, f"{server.url}{older.simple}"),
            },
        )


def fake_rocm(folder: Path, url: str) -> tuple[RocmPackage, ...]:
    """Write the wheels of a ROCm to the folder of a server."""
    packages = []
    of_950 = rocm_packages(ROCM, gpu="gfx950", server=url)[2:]
    for one in (*rocm_packages(ROCM, server=url), *of_950):
        device = one.project.startswith("rocm-sdk-device-")
        needs = [f"rocm-sdk-libraries=={ROCM}"] if device else []
        made = plain(one.project, ROCM, tag="py3-none-linux_x86_64", requires=needs)
        path = made.write(folder)
        packages.append(replace(one, sha256=sha256_of(path), size=path.stat().st_size))
    return tuple(packages)


def installed(folder: Path) -> dict[str, str]:
    """Return project -> version of the distributions in a folder."""
    found = (
        path.name.removesuffix(".dist-info").split("-")
        for path in folder.rglob("*.dist-info")
    )
    return {name.replace("_", "-"): version for name, version in found}


def test_every_command_of_the_page_has_a_test(site: Site) -> None:
    tested = {*INSTALLS, CHECK, "Offline: download", "Offline: install"}
    docker = {"gfx950", *(["gfx942"] if OWN == UBUNTU else [])}
    assert {gpu: {*names} for gpu, names in site.page.items()} == {
        **{gpu: tested | ({"Docker"} if gpu in docker else set()) for gpu in VERSIONS},
        "": {"Bundle"},
    }


@pytest.mark.parametrize("name", INSTALLS)
def test_command_installs_set_with_its_rocm(
    site: Site, tmp_path: Path, name: str
) -> None:
    command = site.page["gfx942"][name]
    assert shlex.split(command)[0] == ("uv" if name == "uv" else "pip")
    if name == "uv":
        subprocess.run(
            [find_uv_bin(), "venv", "--python", sys.executable, tmp_path / ".venv"],
            check=True,
        )
    done = site.run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    found = installed(tmp_path)
    assert found["jax-rocm7-plugin"] == found["jax-rocm7-pjrt"] == VERSIONS["gfx942"]
    assert (found["jax"], found["jaxlib"], found["small-dependency"]) == (
        "0.10.2",
        "0.10.2",
        "1.0",
    )
    # The made wheels have no diagnosis, only its package.
    package = site.page["gfx942"][CHECK].removeprefix("python -m ").replace(".", "/")
    assert [*tmp_path.rglob(f"{package}/__init__.py")]
    rocm = {name: of for name, of in found.items() if name.startswith("rocm-sdk-")}
    assert rocm == WHEELS_OF_ROCM


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("where", ["page", "locked", "dist_wheels", "release"])
def test_printed_line_installs_the_tested_wheels_on_each_python(
    site: Site, tmp_path: Path, where: str, installer: str, python: str
) -> None:
    line = site.printed.get(where) or site.page["gfx950"][installer]
    if installer == "uv":
        line = f"uv {line.removeprefix('uv ')}"
        line += f" --python={sys.executable} --python-version={python} --target=site"
    other = {"PIP_PYTHON_VERSION": python, "PIP_ONLY_BINARY": ":all:"}
    done = site.run(line, tmp_path, **other)
    assert done.returncode == 0, done.stderr
    found = installed(tmp_path)
    assert LATER not in found.values()
    assert found["jax-rocm7-plugin"] == found["jax-rocm7-pjrt"] == VERSIONS["gfx950"]
    tag = f"cp{python.replace('.', '')}"
    for project in ("jax_rocm7_plugin", "jaxlib"):
        (wheel,) = tmp_path.glob(f"site/{project}-*.dist-info/WHEEL")
        assert f"Tag: {tag}-{tag}-manylinux" in wheel.read_text()


def test_offline_commands_install_without_network(site: Site, tmp_path: Path) -> None:
    page = site.page["gfx942"]
    done = site.run(page["Offline: download"], tmp_path)
    assert done.returncode == 0, done.stderr
    done = site.run(page["Offline: install"], tmp_path, **UNREACHABLE)
    assert done.returncode == 0, done.stderr
    found = installed(tmp_path)
    assert found["jax-rocm7-plugin"] == VERSIONS["gfx942"]
    assert found.items() >= WHEELS_OF_ROCM.items()


def test_bundle_command_writes_an_archive_that_installs(
    site: Site, tmp_path: Path
) -> None:
    program, *words = shlex.split(site.page[""]["Bundle"])
    assert program == "ci_build"
    env = {
        "CI_BUILD_BUCKET": str(site.bucket.root),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": site.ordinary,
    }
    done = ci_build(*words, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (readme,) = tmp_path.glob("*/README.txt")
    line = re.search(
        r"^    (python.* -m pip install .+)$", readme.read_text(), re.MULTILINE
    )
    assert line is not None
    assert f"ROCm {ROCM} is not in this folder" in readme.read_text()
    shutil.copytree(readme.parent, tmp_path, dirs_exist_ok=True)
    done = site.run(line[1], tmp_path, **UNREACHABLE)
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path / "site")["jax-rocm7-plugin"] == VERSIONS["gfx942"]


@pytest.mark.network
def test_docker_command_installs_in_a_container(site: Site, engine: Docker) -> None:
    """A Debian with Python stands in for AMD's image; tests have neither GPUs nor a terminal."""
    program, subcommand, *words = shlex.split(site.page["gfx950"]["Docker"])
    assert (program, subcommand) == ("docker", "run")
    (name,) = (word for word in words if word.startswith("docker.io/rocm/"))
    for absent in ("-it", "--device=/dev/kfd", "--device=/dev/dri"):
        words.remove(absent)
    engine.run("tag", bare.image(engine, "bookworm"), name)
    try:
        done = engine.run(
            "run", "--network=host", f"--env=PIP_INDEX_URL={site.ordinary}", *words
        )
    finally:
        engine.run("rmi", "--no-prune", name)
    assert "platform='cpu'" in done.stdout.splitlines()[-1]
    assert f"jax-rocm7-plugin-{VERSIONS['gfx950']}" in done.stdout
    assert "cannot use ROCm: no AMD GPU was found" in done.stderr
