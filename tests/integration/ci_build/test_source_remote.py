"""Wheels from source with real remote executors and a remote cache, and with failing ones.

The service requires a client certificate and a token, so every build here also tests
the options with their files.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docker, rbe
from tests.support.made_packages import make_wheel
from tests.support.source_place import (
    DEVICE,
    PYTHON,
    SECONDS,
    VERSION,
    Place,
    commit_all,
    jax_in,
    pack_rocm,
    processes_in,
    send_compiler,
    use_modules,
    wait_for,
    wheels_json,
)

pytestmark = pytest.mark.network

NIGHTLY = "0.10.3.dev20251120"
"""The jax that is built.

Nobody has released it, and an index has the jax and jaxlib of that night.
"""
_PLATFORM = "@local_config_rocm//rocm:linux_x64"
EXECUTORS = (
    f"--host_platform={_PLATFORM}",
    f"--extra_execution_platforms={_PLATFORM}",
    f"--platforms={_PLATFORM}",
    "--jobs=200",
)
SMALL = ("--targets", "gfx942", "--one-target", f"--jax-version={NIGHTLY}")


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
