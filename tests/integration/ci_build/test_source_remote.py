"""Wheels from source with real remote executors and a remote cache, and with failing ones.

The service requires a client certificate and a token, so every build here also tests
the options with their files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.integration.conftest import ci_build
from tests.support import docker, rbe
from tests.support.made_packages import make_wheel
from tests.support.source_place import (
    DEVICE,
    PYTHON,
    SECONDS,
    VERSION,
    WORKSPACE,
    Place,
    commit_all,
    contents,
    jax_in,
    mark_xla,
    pack_rocm,
    processes_in,
    send_compiler,
    use_modules,
    wait_for,
    wheels_json,
)
from wheelkit.archive.wheel_archive import WheelArchive

pytestmark = pytest.mark.network

NIGHTLY = "0.10.3.dev20251120"
"""The jax that is built.

Nobody has released it, and an index has the jax and jaxlib of that night.
"""
OLDER = "this XLA is an older one"
LATER = "this XLA is a later one"
_PLATFORM = "@local_config_rocm//rocm:linux_x64"
EXECUTORS = (
    f"--host_platform={_PLATFORM}",
    f"--extra_execution_platforms={_PLATFORM}",
    f"--platforms={_PLATFORM}",
    "--jobs=200",
)
SMALL = ("--targets", "gfx942", "--one-target", f"--jax-version={NIGHTLY}")


@dataclass(frozen=True, kw_only=True)
class Xla:
    """A server's repository of XLA.

    Attributes:
        mirror: folder that stands in for the server.
        older, head: two of its commits.
    """

    mirror: Path
    older: str
    head: str


@pytest.fixture(scope="module")
def place(engine: docker.Docker, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("source-remote")
    jax = jax_in(folder / "jax")
    index = folder / "index"
    use_modules(jax)
    send_compiler(jax)
    (jax / "jax" / "version.py").write_text(
        f'_version = "{NIGHTLY.partition(".dev")[0]}"\n'
    )
    commit_all(jax)
    index.mkdir()
    for name in ("jax", "jaxlib"):
        file, data = make_wheel(name, NIGHTLY, {f"{name}/__init__.py": (b"", 0o644)})
        (index / file).write_bytes(data)
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    # The seed's layout: the executors get the device libraries through the link that
    # the unpacked tree has.
    tarball = pack_rocm(
        docker.rocm(VERSION, "llvm-only"),
        folder / f"therock-dist-linux-multiarch-{VERSION}.tar.zst",
    )
    return Place(folder=folder, engine=engine, rocm=tarball, jax=jax, settings=settings)


@pytest.fixture(scope="module")
def xla(tmp_path_factory: pytest.TempPathFactory) -> Xla:
    mirror = tmp_path_factory.mktemp("git")
    folder = mirror / "openxla" / "xla"
    shutil.copytree(WORKSPACE / "third_party" / "xla", folder)
    commits = []
    for mark in (OLDER, LATER):
        mark_xla(folder, mark)
        commits.append(commit_all(folder))
    return Xla(mirror=mirror, older=commits[0], head=commits[1])


@pytest.fixture(scope="module")
def service(
    engine: docker.Docker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[rbe.Service]:
    with rbe.running(engine, tmp_path_factory.mktemp("rbe")) as started:
        yield started


def command_lines() -> str:
    """Return the command lines of all processes of this machine, including those in containers."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_text(errors="replace"))
    return "\n".join(lines)


def test_remote_build_survives_killed_executor(
    place: Place, service: rbe.Service
) -> None:
    out = place.folder / "remote"
    keys = service.keys
    header = [f'--remote_header="authorization=Bearer {keys.token}"']
    options = [
        *SMALL,
        "--rbe",
        f"--rbe-endpoint={service.endpoint}",
        f"--rbe-bazelrc={keys.bazelrc(*header, *EXECUTORS)}",
    ]
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(service.worker(name)) for name in ("first", "second")
        )
        process = place.start(out, *options)
        log = place.folder / "remote.logs" / f"jax-rocm-plugin-{PYTHON}.log"
        # Actions of the second build are running, so those of the first worker must run
        # again.
        wait_for(lambda: log.exists() and service.ran(first) > 0, process)
        running = command_lines()
        os.kill(first.pid, signal.SIGKILL)
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, said
        assert service.ran(second) > 10
    for path in (log, log.with_name("jax-rocm-pjrt.log")):
        done = processes_in(path)
        assert "sandbox" not in done
        assert int(re.findall(r"(\d+) remote\b(?! cache)", done)[0]) >= 4
    assert "actions ran on this machine" not in said
    members = []
    for wheel in wheels_json(out)["wheels"]:
        members.extend(wheel["members"])
    assert {
        Path(member["path"]).name
        for member in members
        if member["targets"] == ["gfx942"]
    } == DEVICE
    # The token is in one file only, although the stand-in's bazelrc makes Bazel print
    # all options.
    assert "bazel" in running
    assert keys.token not in running + said
    kept = [
        *out.rglob("*"),
        *log.parent.iterdir(),
        place.jax / ".jax_configure.bazelrc",
    ]
    texts = {path: path.read_bytes() for path in kept if path.is_file()}
    assert log in texts
    assert [path for path, data in texts.items() if keys.token.encode() in data] == []


def test_reproduce_runs_every_remote_action_again(
    place: Place, service: rbe.Service
) -> None:
    """The executors' cache of the earlier build is removed; `remote` is the set of that build."""
    with service.worker("again") as worker:
        words = [
            f"--cache-dir={place.folder / place.cache}",
            f"--rocm-lock={place.folder / 'remote.lock'}",
        ]
        done = ci_build(
            "set",
            "reproduce",
            str(place.folder / "remote"),
            *words,
            env=place.environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert service.ran(worker) > 20
    # Two built wheels, and the jaxlib of that night.
    assert done.stdout.count("same  ") == 3
    assert "actions ran on this machine" not in done.stderr


def test_other_xla_reuses_remote_cache(
    place: Place, service: rbe.Service, xla: Xla
) -> None:
    keys = service.keys
    made = {}
    for name, commit, more in (
        ("head", "head", []),
        ("taken", xla.older, ["--remote_upload_local_results=false"]),
    ):
        before = contents(service.stored)
        out = place.folder / name
        # Another output tree, where nothing has been built yet.
        clean = replace(place, cache=f"cache-{name}", rocm=docker.rocm(VERSION, "link"))
        done = clean.run(
            out,
            *SMALL,
            f"--xla={commit}",
            f"--source-mirror={xla.mirror}",
            f"--action-cache={service.endpoint}",
            f"--rbe-bazelrc={keys.bazelrc(*more)}",
        )
        assert done.returncode == 0, done.stderr
        made[name] = wheels_json(out)
        after = contents(service.stored)
        told = processes_in(place.folder / f"{name}.logs" / "jax-rocm-pjrt.log")
        assert "sandbox" in told, "its XLA was compiled"
        if more:
            # Compiled wheels are removed.
            assert "remote cache hit" in told
            assert "remote cache hit" in done.stderr
            assert after == before
        else:
            assert before.items() < after.items()
        assert not any(keys.token in text for text in (done.stderr, told))
    commits = {name: made[name]["request"]["source"]["xla_commit"] for name in made}
    assert commits == {"head": xla.head, "taken": xla.older}
    for name, mark, other in (("head", LATER, OLDER), ("taken", OLDER, LATER)):
        (pjrt,) = (place.folder / name).glob("jax_rocm7_pjrt-*.whl")
        with WheelArchive(pjrt) as archive:
            code = archive.read("jax_plugins/xla_rocm7/xla_rocm_plugin.so")
        assert (mark.encode() in code, other.encode() in code) == (True, False)
