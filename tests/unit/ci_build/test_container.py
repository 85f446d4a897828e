"""Argument lists and ownership of containers, and engine properties, without an engine."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.containers import container, engine
from ci_build.containers.container import (
    ContainerSpec,
    Mount,
    container_argv,
    make_spec,
    mount_option,
)
from ci_build.containers.engine import Engine, find_engine, read_info
from core.errors import NoContainerEngineError, RequestError
from core.process import HostRunner, ProcessResult
from core.store import lock_file

SPEC = ContainerSpec(
    engine="/usr/bin/docker",
    image="base@sha256:" + "1" * 64,
    mounts=(
        Mount(Path("/src/rocm"), "/opt/rocm"),
        Mount(Path("/src/out"), "/out", writable=True),
    ),
    env={
        "HOME": "/tmp/home",
        "GONE": "x",
        "EMPTY": "",
    },
    network="none",
    user="12:34",
    shm_size="1g",
)


def values(argv: tuple[str, ...], option: str) -> list[str]:
    """Return the values of an option."""
    return [after for word, after in itertools.pairwise(argv) if word == option]


def test_container_argv_has_least_privilege_and_argv_list() -> None:
    argv = container_argv(
        SPEC,
        ["sh", "-c", "a b; c"],
        {"GONE": "", "MORE": "$x y"},
        name="n",
    )
    assert argv[:5] == ("/usr/bin/docker", "run", "--rm", "--init", "--read-only")
    assert argv[-3:] == (SPEC.image, "-c", "a b; c")
    assert values(argv, "--entrypoint") == ["sh"]
    assert values(argv, "--pull") == ["never"]
    assert values(argv, "--name") == ["n"]
    assert values(argv, "--cap-drop") == ["ALL"]
    assert "no-new-privileges" in values(argv, "--security-opt")
    assert values(argv, "--pids-limit") == ["32768"]
    options = "rw,exec,nosuid,nodev,mode=1777"
    assert values(argv, "--tmpfs") == [
        f"{path}:{options}" for path in ("/tmp", "/tmp/home", "/var/tmp")
    ]
    assert "--privileged" not in argv
    assert values(argv, "--user") == ["12:34"]
    assert values(argv, "--network") == ["none"]
    assert values(argv, "--shm-size") == ["1g"]
    assert values(argv, "--env") == ["HOME=/tmp/home", "MORE=$x y"]
    assert values(argv, "--mount") == [
        "type=bind,source=/src/rocm,target=/opt/rocm,readonly",
        "type=bind,source=/src/out,target=/out",
    ]
    assert values(argv, "--workdir") == ["/"]
    assert values(container_argv(SPEC, ["true"], cwd="/xla"), "--workdir") == ["/xla"]


def test_container_args_override_network_and_shm_size() -> None:
    args = ("--network=host", "--shm-size=2g", "--memory=8g")
    argv = container_argv(replace(SPEC, args=args), ["true"])
    assert argv[-4:] == (*args, SPEC.image)
    assert not {"--network", "--shm-size"} & {*argv}


@pytest.mark.parametrize("writable", [True, False])
def test_mount_option_keeps_any_path(*, writable: bool) -> None:
    source = target = 'a, "b"=c'
    option = mount_option(Mount(Path("/" + source), "/" + target, writable))
    (row,) = csv.reader([option])
    expected = ["type=bind", f"source={Path('/' + source)}", f"target=/{target}"]
    assert row == [*expected, *([] if writable else ["readonly"])]


@pytest.mark.parametrize(
    "mount",
    [
        Mount(Path("a"), "/b"),
        Mount(Path("/a"), "b"),
        Mount(Path("/a\nb"), "/b"),
        Mount(Path("/a"), "/b\0"),
    ],
)
def test_mount_option_refuses_invalid_paths(mount: Mount) -> None:
    with pytest.raises(RequestError, match="Cannot mount"):
        container_argv(replace(SPEC, mounts=(mount,)), ["true"])


@pytest.mark.parametrize(
    ("facts", "expected", "user", "userns"),
    [
        (
            {
                "ServerVersion": "28.1",
                "SecurityOptions": ["name=rootless", "name=selinux"],
            },
            Engine(program="x", version="28.1", rootless=True, selinux=True),
            "0:0",
            "",
        ),
        (
            {
                "host": {"security": {"rootless": True, "selinuxEnabled": False}},
                "version": {"Version": "5.2"},
            },
            Engine(program="x", podman=True, version="5.2", rootless=True),
            "7:8",
            "keep-id",
        ),
        (
            {"ServerErrors": ["no"]},
            Engine(program="x"),
            "7:8",
            "",
        ),
    ],
)
def test_read_info_detects_engines(
    facts: dict[str, object], expected: Engine, user: str, userns: str
) -> None:
    found = read_info("x", facts)
    assert found == expected
    assert found.user(7, 8) == user
    assert found.userns == userns


def test_engine_user_keeps_ownership_of_caller() -> None:
    podman = make_spec(
        Engine(program="podman", podman=True, rootless=True, selinux=True), "image"
    )
    assert podman.userns == "keep-id"
    assert values(container_argv(podman, ["true"]), "--userns") == ["keep-id"]
    assert "label=disable" in values(container_argv(podman, ["true"]), "--security-opt")
    docker = make_spec(Engine(program="docker", rootless=True), "image")
    assert values(container_argv(docker, ["true"]), "--user") == ["0:0"]
    assert {"HOME=/tmp/home", "USER=builder"} <= set(
        values(container_argv(docker, ["true"]), "--env")
    )


@pytest.mark.parametrize(
    "stderr", ["", "Error: No such container: x", "daemon is gone"]
)
def test_remove_orphans_skips_live_runs_and_keeps_failures(
    stderr: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(container, "_locks", lambda: tmp_path)
    host = HostRunner({})
    removed = list[str]()

    def run(argv: Sequence[str], **_: object) -> ProcessResult:
        removed.append(argv[-1])
        return ProcessResult(returncode=int(bool(stderr)), stderr=stderr)

    monkeypatch.setattr(host, "run", run)
    orphan = tmp_path / "ci_build-docker-1"
    alive = tmp_path / "ci_build-docker-2"
    foreign = tmp_path / "ci_build-podman-3"
    for path in (orphan, alive, foreign):
        path.touch()
    with lock_file(alive):
        names = list(container.remove_orphans("/usr/bin/docker", host))
    gone = stderr != "daemon is gone"
    assert names == ([orphan.name] if gone else [])
    assert removed == [orphan.name]
    assert orphan.exists() is not gone
    assert foreign.exists()


def test_find_engine_names_reason_of_each_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = HostRunner({})
    answers = {"docker": '{"ServerErrors": ["its socket is absent"]}', "lxc": "no\n"}
    monkeypatch.setattr(engine, "which", lambda name: name if name in answers else None)
    monkeypatch.setattr(
        host,
        "run",
        lambda argv, **_: ProcessResult(returncode=1, stdout=answers[argv[0]]),
    )
    with pytest.raises(NoContainerEngineError) as caught:
        find_engine(None, host)
    assert "docker: its socket is absent; podman: not found" in str(caught.value)
    with pytest.raises(NoContainerEngineError, match="lxc: no"):
        find_engine("lxc", host)
