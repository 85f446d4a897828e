"""Commands, devices and groups of `images run` and `images test`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_build.cli.commands.image_run import SELFTEST, checked_spec, commands
from ci_build.cli.options.settings import Settings
from ci_build.containers.container import container_argv
from ci_build.containers.engine import Engine
from ci_build.containers.gpus import find_gpus
from ci_build.images import runtime
from core.errors import InputError, MachineError, RequestError

LABELS = {
    "jax-rocm-release.set": "1" * 64,
    "com.amdgpu.python_versions": "3.11,3.12",
    "com.amdgpu.jax_commit": "abc",
}
ENGINE = Engine(program="docker")


def argv_of(**values: object) -> tuple[str, ...]:
    """Return the command that runs `true` with these options."""
    settings = Settings({}, {}, {}, tables=("images_run", "build"))
    return container_argv(checked_spec(settings, values)(ENGINE, "image"), ["true"])


def test_commands_run_selftest_per_python_or_given_command() -> None:
    own = commands(LABELS, "", gpu=True)
    assert own == tuple(
        (f"/opt/python/{python}/bin/python3", SELFTEST) for python in ("3.11", "3.12")
    )
    assert [argv[2:] for argv in commands(LABELS, "", gpu=False)] == [("--no-gpu",)] * 2
    assert commands({}, "a && b", gpu=True) == (("bash", "-c", "a && b"),)
    with pytest.raises(RequestError, match="--test-cmd"):
        commands({}, "", gpu=True)


def test_find_gpus_returns_devices_and_group_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MachineError, match="no /dev/kfd"):
        find_gpus(tmp_path)
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name, mode in {
        "kfd": 0o660,
        "dri/renderD128": 0o660,
        "dri/renderD129": 0o666,
        "dri/card0": 0o660,
    }.items():
        path = tmp_path / "dev" / name
        path.touch()
        path.chmod(mode)
    gpus = find_gpus(tmp_path)
    assert gpus == (
        ("/dev/kfd", "/dev/dri"),
        (str(os.getgid()),) if os.getgid() else (),
    )
    monkeypatch.setattr("ci_build.cli.commands.image_run.find_gpus", lambda: gpus)
    argv = argv_of(debugger=False, env_file=None, no_gpu=False)
    assert "SYS_PTRACE" not in argv
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--device"] == [
        "/dev/kfd",
        "/dev/dri",
    ]
    assert "JAX_PLATFORMS=cpu" not in argv
    env = tmp_path / "env"
    with pytest.raises(InputError, match="env does not exist"):
        argv_of(debugger=True, env_file=env, no_gpu=True)
    env.touch()
    more = argv_of(debugger=True, env_file=env, no_gpu=True)
    assert {"SYS_PTRACE", "seccomp=unconfined", "JAX_PLATFORMS=cpu", str(env)} <= set(
        more
    )


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("7.2.0", "rocm720"),
        ("7.10.0.dev0+ABC.1", "rocm7100dev0.abc.1"),
    ],
)
def test_rocm_tag_has_no_plus(version: str, name: str) -> None:
    assert runtime.rocm_tag(version) == name
