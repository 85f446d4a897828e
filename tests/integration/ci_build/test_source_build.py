"""Wheels from source in a container, with a real Bazel and a real HIP compiler.

The image and the sources are small stand-ins (tests/support/docker/builder.sh, tests/support/workspace/jax), which go
through the same steps as the real ones.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from core.digests import file_sha256
from core.errors import OtherRocmError
from tests.integration.conftest import ci_build
from tests.support import docker
from tests.support.source_place import (
    DEVICE,
    PYTHON,
    SECONDS,
    VERSION,
    WORKSPACE,
    Place,
    commit_all,
    commit_of,
    contents,
    jax_in,
    mark_xla,
    pack_rocm,
    processes_in,
    wait_for,
    wheels_json,
)
from wheelkit.archive.reader import WheelArchive

pytestmark = [pytest.mark.heavy, pytest.mark.network]

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
    return (*TARGETS, f"--disk-cache={place.folder / 'actions'}")


@pytest.fixture(scope="module")
def terminal(place: Place, words: tuple[str, ...]) -> str:
    """Build the set, and return everything that a terminal displayed."""
    status, shown = place.run_on_terminal(place.folder / "dist", *words)
    assert status == 0, shown
    return shown


@pytest.fixture(scope="module")
def dist(place: Place, terminal: str) -> Path:
    return place.folder / "dist"


@pytest.fixture(scope="module")
def later(place: Place, dist: Path) -> Path:
    """Build another commit, with a folder in which clang does not find the device libraries.

    The wheels of that commit have another platform tag, and both tags fit the request.
    """
    jax = jax_in(place.folder / "jax-later")
    rules = jax / "rocm" / "defs.bzl"
    rules.write_text(rules.read_text().replace("manylinux_2_27_x86_64", "manylinux_2_28_x86_64"))
    commit_all(jax)
    out = place.folder / "later"
    done = replace(place, rocm=docker.rocm(VERSION, "llvm-only")).run(out, *TARGETS, jax=jax)
    assert done.returncode == 0, done.stderr
    return out


def test_terminal_shows_progress_without_output_of_bazel(terminal: str) -> None:
    assert re.search(r"build jax-rocm7-pjrt, log in .*?[1-9]\d* of \d+ actions", terminal, re.DOTALL)
    assert "INFO: " not in terminal


def test_wheels_have_code_for_requested_targets(place: Place, dist: Path) -> None:
    version = f"0.10.2+rocm{VERSION}.gfx942.gfx1151"
    assert {path.name for path in dist.glob("*.whl")} == {
        f"jax_rocm7_pjrt-{version}-py3-none-manylinux_2_28_x86_64.whl",
        f"jax_rocm7_plugin-{version}-cp313-cp313-manylinux_2_28_x86_64.whl",
        f"jaxlib-0.10.2+rocm{VERSION}-cp313-cp313-manylinux_2_28_x86_64.whl",
    }
    done = ci_build("inspect", str(dist), "--targets=gfx942,gfx1151", f"--rocm-version={VERSION}", "--json")
    assert done.returncode == 0, done.stderr
    members = [member for wheel in wheels_json(dist)["wheels"] for member in wheel["members"]]
    found = {Path(member["path"]).name: sorted(member["targets"]) for member in members}
    assert {name for name, targets in found.items() if targets} == DEVICE
    assert all(found[name] == ["gfx1151", "gfx942"] for name in DEVICE)
    # The wheels do not have other targets, so they are not reused for them.
    assert ci_build("inspect", str(dist), "--targets=gfx942,gfx1100").returncode != 0


def test_set_records_all_inputs(place: Place, dist: Path) -> None:
    source = wheels_json(dist)["request"]["source"]
    assert source["builder"] == place.engine.ask("image", "inspect", "--format={{.Id}}", place.engine.builder())
    assert source["jax_commit"] == commit_of(place.jax)
    assert source["xla_commit"] in (place.jax / "third_party" / "xla" / "revision.bzl").read_text()
    assert re.match(r"[0-9a-f]{40}|tree-", source["own_commit"])
    assert source["rocm"] == file_sha256(dist / "rocm.lock") == wheels_json(dist)["files"]["rocm.lock"]
    assert str(place.folder) not in (dist / "rocm.lock").read_text()
    assert source["compiler"] == "clang"
    # The wheels record the same facts.
    stamps = {"jax": "jax_commit", "xla": "xla_commit", "jax-rocm-release": "own_commit", "rocm": "rocm"}
    for wheel in (*dist.glob("jax_rocm7_pjrt-*.whl"), *dist.glob("jax_rocm7_plugin-*.whl")):
        with WheelArchive(wheel) as archive:
            (info,) = (item.name for item in archive.members if item.name.endswith("/build_info.json"))
            told = json.loads(archive.read(info))["sources"]
        assert told == {"builder": source["builder"], **{name: source[field] for name, field in stamps.items()}}
        assert all(told.values())
    # The commit reached the build itself.
    (jaxlib,) = dist.glob("jaxlib-*.whl")
    with WheelArchive(jaxlib) as archive:
        assert source["jax_commit"].encode() in archive.read("jaxlib/version.py")


def test_outputs_belong_to_caller_and_containers_are_removed(place: Place, dist: Path) -> None:
    made = [*dist.rglob("*"), *dist.parent.glob("dist.logs/*")]
    assert len(made) > 10
    assert {path.lstat().st_uid for path in made} == {os.getuid()}
    assert not (place.folder / "cache" / "rocm" / "parts").exists()
    assert place.containers() == set()
    # The ROCm is unchanged.
    verified = ci_build("rocm", "verify", str(dist.with_suffix(".lock")), f"--cache-dir={place.folder / 'cache'}")
    assert verified.returncode == 0, verified.stderr


def test_second_run_reuses_everything(place: Place, dist: Path, words: tuple[str, ...]) -> None:
    before = {path: path.stat().st_mtime_ns for path in [*dist.rglob("*"), *dist.parent.glob("dist.logs/*")]}
    done = place.run(dist, *words)
    assert done.returncode == 0, done.stderr
    assert "is up to date; nothing to do" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # Compiled wheels are reused although the set was deleted.
    moved = place.run(place.folder / "elsewhere", *words)
    assert moved.returncode == 0, moved.stderr
    assert not list(place.folder.glob("elsewhere.logs/*.log"))
    assert wheels_json(place.folder / "elsewhere")["digest"] == wheels_json(dist)["digest"]


def empty_library(path: Path) -> None:
    """Write a library whose soname is its file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-x", "c", "/dev/null", "-o", str(path)]
    subprocess.run(["gcc", *words], check=True)


def test_wheel_linked_with_another_rocm_is_refused(place: Place) -> None:
    # As in rocm-jax#441: the rules link with a downloaded ROCm that has librocsolver.so.1.
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
    done = replace(place, rocm=rocm).run(out, "--targets=gfx942", "--one-target", jax=jax)
    assert done.returncode == OtherRocmError.exit_code, done.stderr
    needs = f"xla_rocm_plugin.so needs librocsolver.so.1, and ROCm {VERSION} has librocsolver.so.0"
    assert needs in done.stderr
    assert not out.exists()
    (kept,) = (place.folder / "other-rocm.logs" / "refused").iterdir()
    assert str(kept) in done.stderr
    assert kept.name.startswith("jax_rocm7_pjrt-")


def test_other_xla_is_compiled_with_disk_cache(place: Place, dist: Path, words: tuple[str, ...]) -> None:
    filled = contents(place.folder / "actions")
    assert len(filled) > 10
    xla, out = place.folder / "another xla", place.folder / "read-only"
    shutil.copytree(WORKSPACE / "third_party" / "xla", xla)
    mark_xla(xla, "this is another one")
    head = commit_all(xla)
    # Another output tree, where nothing has been built yet.
    clean = replace(place, cache="cache-xla", rocm=docker.rocm(VERSION, "link"))
    done = clean.run(out, *words, f"--xla-source-dir={xla}", "--cache-read-only")
    assert done.returncode == 0, done.stderr
    assert wheels_json(out)["request"]["source"]["xla_commit"] == head
    # Bazel compiles that folder instead of jax's pinned XLA.
    (pjrt,) = out.glob("jax_rocm7_pjrt-*.whl")
    with WheelArchive(pjrt) as archive:
        assert b"this is another one" in archive.read("jax_plugins/xla_rocm7/xla_rocm_plugin.so")
    told = processes_in(place.folder / "read-only.logs" / "jax-rocm-pjrt.log")
    assert "sandbox" in told
    assert "disk cache hit" in told
    assert "disk cache hit" in done.stderr
    assert contents(place.folder / "actions") == filled


def test_pythons_share_one_cache(place: Place, dist: Path, words: tuple[str, ...]) -> None:
    """build.py copies the wheels of other Pythons too; only those that Bazel built are used."""
    both, again = place.folder / "both", place.folder / "again"
    pythons = f"--python-versions={PYTHON},3.14"
    done = place.run(both, *words, pythons)
    assert done.returncode == 0, done.stderr
    before = {path.name: path.read_bytes() for path in both.glob("*.whl")}
    assert len(before) == 5
    # The other wheels are those of the first set.
    logs = both.with_name("both.logs")
    assert {path.name for path in logs.glob("*.log")} == {"jax-rocm-plugin-3.14.log", "jaxlib-3.14.log"}
    log = (logs / "jaxlib-3.14.log").read_text()
    assert log.count("Distribution path: ") == 2
    assert "Output wheel: bazel-out/" in log
    # Everything is built already, but jaxlib is not recorded: Bazel runs and has nothing to do.
    records = {path: path.read_text() for path in (place.folder / "cache" / "builds").glob("*.json")}
    (record,) = (path for path, text in records.items() if '"jaxlib"' in text and "-cp314-" in text)
    record.unlink()
    done = place.run(again, *words, pythons)
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in again.glob("*.whl")} == before
    log = (again.with_name("again.logs") / "jaxlib-3.14.log").read_text()
    assert (log.count("Distribution path: "), "Output wheel: " in log) == (2, False)


def test_wheel_is_of_requested_commit(place: Place, later: Path) -> None:
    """build.py copies the wheels of earlier commits too."""
    assert "manylinux_2_27" in (later.with_name("later.logs") / f"jaxlib-{PYTHON}.log").read_text()
    (jaxlib,) = later.glob("jaxlib-*.whl")
    with WheelArchive(jaxlib) as archive:
        assert commit_of(place.folder / "jax-later").encode() in archive.read("jaxlib/version.py")


def test_folder_with_hidden_device_libraries(later: Path) -> None:
    """A folder is used in place, without the link that unpacked tarballs get."""
    for name in ("jax-rocm-pjrt", f"jax-rocm-plugin-{PYTHON}"):
        log = (later.with_name("later.logs") / f"{name}.log").read_text()
        assert "--action_env=HIP_DEVICE_LIB_PATH=/opt/rocm/lib/llvm/amdgcn/bitcode" in log


def test_failed_build_is_summarised_and_keeps_set(place: Place, dist: Path) -> None:
    jax = jax_in(place.folder / "broken")
    kernels = jax / "jaxlib" / "rocm" / "pjrt.hip"
    kernels.write_text(kernels.read_text().replace("= __ocml_fma_f32(", "= no_such_function("))
    before = wheels_json(dist)
    done = place.run(dist, "--targets", "gfx942", jax=jax)
    assert done.returncode not in (0, 1), done.stderr
    said = " ".join(done.stderr.split())
    assert "use of undeclared identifier 'no_such_function'" in said
    assert "//jaxlib/rocm" in said
    log = re.search(r"Read (\S+\.log)\.", said)
    assert log is not None
    assert "no_such_function" in Path(log[1]).read_text()
    assert wheels_json(dist) == before
    assert place.containers() == set()


def test_dry_run_shows_containers_of_real_run(place: Place) -> None:
    jax = jax_in(place.folder / "no-build")
    (jax / "build" / "build.py").write_text("raise SystemExit(3)\n")
    here, out = replace(place, rocm=docker.rocm(VERSION)), place.folder / "planned"
    words = ["--targets=gfx942", "--container-memory=8g", f"--disk-cache={place.folder / 'planned-actions'}"]
    planned = here.dry_run(out, *words, jax=jax)
    assert planned.returncode == 0, planned.stderr
    done = here.run(out, *words, "--verbose", jax=jax)
    assert (done.returncode, "exit code 3" in done.stderr) == (12, True), done.stderr
    shown = [container_of(line, place) for line in re.sub(r" \\\n\s+", " ", planned.stdout).splitlines()]
    ran = [container_of(line, place) for line in done.stderr.splitlines()]
    tools, clang, first, *_ = filter(None, shown)
    assert [*filter(None, ran)] == [tools, clang, first]
    assert ("/check-tools.sh" in tools, clang[-1], "build/build.py" in first) == (True, "--version", True)


def container_of(line: str, place: Place) -> list[str]:
    """Return the words of a `docker run` without parts that differ between runs; empty for other lines."""
    match = re.fullmatch(r"\s*(?:\$ )?\S*docker (run .*)", line)
    words = shlex.split(match[1]) if match else []
    for option in ("--cidfile", "--label", "--label"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    name = place.engine.builder()
    identity = place.engine.ask("image", "inspect", "--format={{.Id}}", name)
    return [re.sub(r"/llvm-\d+/", "/llvm/", name if word == identity else word) for word in words]


def test_interrupt_leaves_nothing(place: Place) -> None:
    out = place.folder / "interrupted"
    process = place.start(out, "--targets", "gfx1100", "--one-target")
    log = place.folder / "interrupted.logs" / "jax-rocm-pjrt.log"
    wait_for(lambda: log.exists() and "Starting local Bazel server" in log.read_text(), process)
    assert place.containers()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, said
    assert place.containers() == set()
    assert not out.exists()
    assert not list((place.folder / "cache").rglob("*.new"))


def test_reproduce_gives_same_wheels(place: Place, dist: Path) -> None:
    words = [f"--rocm-lock={dist.with_suffix('.lock')}", f"--cache-dir={place.folder / 'cache'}"]
    done = ci_build("reproduce", str(dist), *words, env=place.engine.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same  ") == 3
    assert not list((place.folder / "cache").glob("reproduce-*"))
