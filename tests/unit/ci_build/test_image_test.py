"""Commands, devices and groups of `images test`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_build.cli.commands.image_test import SELFTEST, commands, container_spec
from ci_build.containers.container import container_argv
from ci_build.containers.engine import Engine
from ci_build.containers.gpus import find_gpus
from core.errors import MachineError, RequestError

LABELS = {
    "jax-rocm-release.set": "1" * 64,
    "com.amdgpu.python_versions": "3.11,3.12",
}
ENGINE = Engine(program="docker")


def test_commands_run_selftest_per_python_or_given_command() -> None:
    own = commands(LABELS, "", gpu=True)
    assert own == tuple(
        (f"/opt/python/{python}/bin/python3", SELFTEST) for python in ("3.11", "3.12")
    )
    assert [argv[2:] for argv in commands(LABELS, "", gpu=False)] == [("--no-gpu",)] * 2
    assert commands({}, "a && b", gpu=True) == (("bash", "-c", "a && b"),)
    with pytest.raises(RequestError, match="--test-cmd"):
        commands({}, "", gpu=True)


def test_find_gpus_returns_devices_and_group_ids(tmp_path: Path) -> None:
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
    groups = (str(os.getgid()),) if os.getgid() else ()
    assert gpus == (("/dev/kfd", "/dev/dri"), groups)
    argv = container_argv(container_spec(ENGINE, "image", gpus), ["true"])
    assert argv.count("--device") == 2
    assert "JAX_PLATFORMS=cpu" not in argv


def test_container_without_gpus_runs_jax_on_cpu() -> None:
    args = ("--env-file=env",)
    argv = container_argv(container_spec(ENGINE, "image", ((), ()), args), ["true"])
    assert {"JAX_PLATFORMS=cpu", *args} <= set(argv)
