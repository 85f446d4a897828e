"""Wheels from source in a container, with a real Bazel and a real HIP compiler.

The image and the sources are small stand-ins (tests/support/docker/builder.sh,
tests/support/workspace/jax), which go through the same steps as the real ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from core.digests import sha256_of
from core.errors import OtherRocmError
from tests.integration.conftest import ci_build
from tests.support import docker
from tests.support.git import git
from tests.support.source_place import (
    DEVICE,
    VERSION,
    Place,
    commit_all,
    jax_in,
    pack_rocm,
    wheels_json,
)
from wheelkit.archive.wheel_archive import WheelArchive

pytestmark = pytest.mark.network

TARGETS = ("--targets", "gfx942,gfx1151")
TARBALL = f"therock-dist-linux-multiarch-{VERSION}.tar.zst"


@pytest.fixture(scope="module")
def place(engine: docker.Docker, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("source-build")
    # The seed's layout, in which clang does not find the device libraries.
    rocm = docker.rocm(VERSION, "llvm-only")
    assert not (rocm / "amdgcn").exists()
    tarball = pack_rocm(rocm, folder / TARBALL)
    return Place(folder=folder, engine=engine, rocm=tarball, jax=jax_in(folder / "jax"))


@pytest.fixture(scope="module")
def words(place: Place) -> tuple[str, ...]:
    """Return the options of the set that most tests use."""
    return (*TARGETS, f"--action-cache={place.folder / 'actions'}")


@pytest.fixture(scope="module")
def terminal(place: Place, words: tuple[str, ...]) -> str:
    """Build the set, and return everything that a terminal displayed."""
    status, shown = place.run_on_terminal(place.folder / "dist", *words)
    assert status == 0, shown
    return shown


@pytest.fixture(scope="module")
def dist(place: Place, terminal: str) -> Path:
    return place.folder / "dist"


def test_terminal_shows_progress_without_output_of_bazel(terminal: str) -> None:
    assert re.search(
        r"build jax-rocm7-pjrt, log in .*?[1-9]\d* of \d+ actions", terminal, re.DOTALL
    )
    assert "INFO: " not in terminal


def test_wheels_have_code_for_requested_targets(place: Place, dist: Path) -> None:
    version = f"0.10.2+rocm{VERSION}.gfx942.gfx1151"
    assert {path.name for path in dist.glob("*.whl")} == {
        f"jax_rocm7_pjrt-{version}-py3-none-manylinux_2_28_x86_64.whl",
        f"jax_rocm7_plugin-{version}-cp313-cp313-manylinux_2_28_x86_64.whl",
        f"jaxlib-0.10.2+rocm{VERSION}-cp313-cp313-manylinux_2_28_x86_64.whl",
    }
    done = ci_build(
        "inspect",
        str(dist),
        "--targets=gfx942,gfx1151",
        f"--rocm-version={VERSION}",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    members = []
    for wheel in wheels_json(dist)["wheels"]:
        members.extend(wheel["members"])
    found = {Path(member["path"]).name: sorted(member["targets"]) for member in members}
    assert {name for name, targets in found.items() if targets} == DEVICE
    assert all(found[name] == ["gfx1151", "gfx942"] for name in DEVICE)
    # The wheels do not have other targets, so they are not reused for them.
    assert ci_build("inspect", str(dist), "--targets=gfx942,gfx1100").returncode != 0


def test_set_records_all_inputs(place: Place, dist: Path) -> None:
    source = wheels_json(dist)["request"]["source"]
    assert source["builder"] == place.engine.ask(
        "image", "inspect", "--format={{.Id}}", place.engine.builder()
    )
    assert source["jax_commit"] == git(place.jax, "rev-parse", "HEAD")
    assert (
        source["xla_commit"]
        in (place.jax / "third_party" / "xla" / "revision.bzl").read_text()
    )
    assert re.match(r"[0-9a-f]{40}|tree-", source["own_commit"])
    assert (
        source["rocm"]
        == sha256_of(dist / "rocm.lock")
        == wheels_json(dist)["files"]["rocm.lock"]
    )
    assert str(place.folder) not in (dist / "rocm.lock").read_text()
    assert source["compiler"] == "clang"
    # The wheels record the same facts.
    stamps = {
        "jax": "jax_commit",
        "xla": "xla_commit",
        "jax-rocm-release": "own_commit",
        "rocm": "rocm",
    }
    for wheel in (
        *dist.glob("jax_rocm7_pjrt-*.whl"),
        *dist.glob("jax_rocm7_plugin-*.whl"),
    ):
        with WheelArchive(wheel) as archive:
            (info,) = (
                item.name
                for item in archive.members
                if item.name.endswith("/build_info.json")
            )
            told = json.loads(archive.read(info))["sources"]
        assert told == {
            "builder": source["builder"],
            **{name: source[field] for name, field in stamps.items()},
        }
        assert all(told.values())
    # The commit reached the build itself.
    (jaxlib,) = dist.glob("jaxlib-*.whl")
    with WheelArchive(jaxlib) as archive:
        assert source["jax_commit"].encode() in archive.read("jaxlib/version.py")


def test_outputs_belong_to_caller_and_containers_are_removed(
    place: Place, dist: Path
) -> None:
    made = [*dist.rglob("*"), *dist.parent.glob("dist.logs/*")]
    assert len(made) > 10
    assert {path.lstat().st_uid for path in made} == {os.getuid()}
    assert not (place.folder / "cache" / "rocm" / "parts").exists()
    assert place.containers() == set()
    # The ROCm is unchanged.
    verified = ci_build(
        "rocm",
        "--verify",
        str(dist.with_suffix(".lock")),
        f"--cache-dir={place.folder / 'cache'}",
    )
    assert verified.returncode == 0, verified.stderr


def test_second_run_reuses_everything(
    place: Place, dist: Path, words: tuple[str, ...]
) -> None:
    before = {
        path: path.stat().st_mtime_ns
        for path in [*dist.rglob("*"), *dist.parent.glob("dist.logs/*")]
    }
    done = place.run(dist, *words)
    assert done.returncode == 0, done.stderr
    assert "is up to date; nothing to do" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # Compiled wheels are reused although the set was deleted.
    moved = place.run(place.folder / "elsewhere", *words)
    assert moved.returncode == 0, moved.stderr
    assert not list(place.folder.glob("elsewhere.logs/*.log"))
    assert (
        wheels_json(place.folder / "elsewhere")["digest"] == wheels_json(dist)["digest"]
    )


def empty_library(path: Path) -> None:
    """Write a library whose soname is its file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [
        "-shared",
        "-nostdlib",
        f"-Wl,-soname,{path.name}",
        "-x",
        "c",
        "/dev/null",
        "-o",
        str(path),
    ]
    subprocess.run(["gcc", *words], check=True)


def test_wheel_linked_with_another_rocm_is_refused(place: Place) -> None:
    # As in rocm-jax#441: the rules link with a downloaded ROCm that has
    # librocsolver.so.1.
    rocm = place.folder / "rocm-0"
    shutil.copytree(docker.rocm(VERSION), rocm, copy_function=os.link, symlinks=True)
    empty_library(rocm / "lib" / "librocsolver.so.0")
    jax = jax_in(place.folder / "jax-other-rocm")
    empty_library(jax / "downloaded" / "librocsolver.so.1")
    rules = jax / "rocm" / "defs.bzl"
    before = '(["-lamdhip64"] if links_hip else [])'
    assert before in rules.read_text()
    linked = '["-Wl,--no-as-needed", "/jax/downloaded/librocsolver.so.1"]'
    rules.write_text(rules.read_text().replace(before, f"{before} + {linked}"))
    commit_all(jax)
    out = place.folder / "other-rocm"
    done = replace(place, rocm=rocm).run(
        out, "--targets=gfx942", "--one-target", jax=jax
    )
    assert done.returncode == OtherRocmError.exit_code, done.stderr
    needs = f"xla_rocm_plugin.so needs librocsolver.so.1, and ROCm {VERSION} has librocsolver.so.0"
    assert needs in done.stderr
    assert not out.exists()
    (kept,) = (place.folder / "other-rocm.logs" / "refused").iterdir()
    assert str(kept) in done.stderr
    assert kept.name.startswith("jax_rocm7_pjrt-")
