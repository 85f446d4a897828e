"""The doctor on recorded kinds of machines.

WSL, containers, jobs of Slurm, mixed GPUs, several ROCms, closed devices.

Each machine has the files, variables and groups that its documentation describes (see
ci_build/doctor/containers.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build.doctor import examined
from core.model import Severity
from tests.support.fake_machine import HIP, MI200, MI300, PYTHON, FakeMachine

DOCKER = (
    'docker run --device=/dev/kfd --device=/dev/dri --group-add "$(stat -c %g'
    ' /dev/kfd)" --shm-size=64g IMAGE'
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(tmp_path, monkeypatch)


def told(machine: FakeMachine) -> dict[str, tuple[str, ...]]:
    """Return code -> commands of all problems."""
    return {problem.code: problem.commands for problem in machine.problems()}


# WSL


@pytest.fixture
def wsl(machine: FakeMachine) -> FakeMachine:
    """Return a WSL2 with Ubuntu, ROCm 7.2 and librocdxg: no amdgpu, no KFD, no PCI bus."""
    machine.kernel = ("Linux", "x86_64", "6.6.87.2-microsoft-standard-WSL2")
    machine.remove(
        "dev/kfd", "dev/dri", "sys/class/kfd", "sys/module/amdgpu", "sys/bus/pci"
    ).write("dev/dxg", "")
    machine.write("usr/lib/wsl/lib/libdxcore.so", "").write(
        "opt/rocm/lib/librocdxg.so", ""
    )
    machine.environ["HSA_ENABLE_DXG_DETECTION"] = "1"
    return machine


def test_wsl_with_librocdxg_is_only_untested(wsl: FakeMachine) -> None:
    (problem,) = wsl.problems()
    assert (problem.code, problem.severity) == ("wsl-untested", Severity.WARNING)


@pytest.mark.parametrize(
    ("harm", "code", "says", "command"),
    [
        (
            lambda m: m.environ.pop("HSA_ENABLE_DXG_DETECTION"),
            "wsl-detection",
            "only if HSA_ENABLE_DXG_DETECTION is 1",
            "export HSA_ENABLE_DXG_DETECTION=1",
        ),
        (
            lambda m: m.remove("opt/rocm/lib/librocdxg.so"),
            "wsl-library",
            "github.com/ROCm/librocdxg",
            "",
        ),
        (
            lambda m: m.remove("opt/rocm").rocm("opt/rocm", "7.0.2"),
            "wsl-rocm",
            "ROCm 7.0.2 does not support WSL, which needs ROCm 7.1 or newer",
            "",
        ),
        (
            lambda m: m.remove("usr/lib/wsl"),
            "wsl-dxcore",
            "libdxcore.so, is missing",
            "wsl.exe --update",
        ),
    ],
)
def test_wsl_names_missing_part(
    wsl: FakeMachine,
    harm: Callable[[FakeMachine], object],
    code: str,
    says: str,
    command: str,
) -> None:
    harm(wsl)
    problem, _ = wsl.problems()
    assert (problem.code, problem.severity, problem.commands) == (
        code,
        Severity.ERROR,
        (command,) if command else (),
    )
    assert says in problem.message


# Containers

CONTAINERS: dict[str, Callable[[FakeMachine], object]] = {
    "docker": lambda m: m.write(".dockerenv", ""),
    "podman": lambda m: m.write("run/.containerenv", ""),
    "apptainer": lambda m: m.write(".singularity.d/Singularity", ""),
    "kubernetes": lambda m: m.write(
        "var/run/secrets/kubernetes.io/serviceaccount/namespace", "default"
    ),
}


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        (
            ["run/.containerenv", "var/run/secrets/kubernetes.io/x"],
            {},
            "kubernetes",
        ),  # CRI-O
        (
            ["etc/hostname"],
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
            "kubernetes",
        ),  # containerd
        (
            [".dockerenv"],
            {"SINGULARITY_CONTAINER": "/images/jax.sif"},
            "apptainer",
        ),  # made of an exported container
        (["etc/hostname"], {"container": "lxc"}, "lxc"),
    ],
)
def test_kind_of_container(
    machine: FakeMachine, files: list[str], environ: dict[str, str], kind: str
) -> None:
    for file in files:
        machine.write(file, "")
    machine.environ.update(environ)
    assert machine.facts().machine.container == kind


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("docker", DOCKER),
        ("kubernetes", "resources: {limits: {amd.com/gpu: 1}}"),
    ],
)
def test_container_without_devices_names_its_own_command(
    machine: FakeMachine, kind: str, command: str
) -> None:
    CONTAINERS[kind](machine)
    machine.remove("dev/kfd", "dev/dri")
    assert told(machine) == {"device-missing": (command,)}
    machine.remove("sys/class/kfd")
    assert told(machine) == {"gpu-missing": (command,)}


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("podman", "podman run --group-add keep-groups IMAGE"),
        ("kubernetes", "securityContext: {supplementalGroups: [GID of render]}"),
        ("", 'sudo usermod -aG render "$USER"'),
    ],
)
def test_user_without_group_render(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    if kind:
        CONTAINERS[kind](machine)
    monkeypatch.setattr("ci_build.doctor.machine.os.access", lambda path, mode: False)
    monkeypatch.setattr(
        "ci_build.doctor.machine._group",
        lambda number: "render" if number == os.getgid() else "users",
    )
    monkeypatch.setattr("ci_build.doctor.machine.os.getgroups", list)
    assert told(machine) == {"device-denied": (command,)}


def test_closed_devices_of_a_group_of_the_user_are_opened(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_build.doctor.machine.os.access", lambda path, mode: False)
    monkeypatch.setattr("ci_build.doctor.machine._group", lambda number: "render")
    monkeypatch.setattr("ci_build.doctor.machine.os.getgroups", lambda: [os.getgid()])
    (command,) = told(machine)["device-denied"]
    assert command.startswith("sudo chmod 0660")


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("podman", "podman run --shm-size=64g IMAGE"),
        ("apptainer", "sudo mount -o remount,size=64g /dev/shm"),
    ],
)
def test_small_shm_of_container(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    CONTAINERS[kind](machine)
    monkeypatch.setattr(examined.gpus, "shm_mib", lambda: 64.0)
    assert told(machine) == {"small-shm": (command,)}
    machine.gpus(MI300)
    assert told(machine) == {}


# Slurm

SRUN = "srun --gpus=1 --pty bash"


def test_slurm_job_needs_only_the_render_node_of_its_gpu(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ConstrainDevices, KFD shows the job's GPU alone, others' nodes are closed."""
    machine.environ.update(SLURM_JOB_ID="7", ROCR_VISIBLE_DEVICES="0")
    machine.gpus({**MI300, "drm_render_minor": 129})
    denied = {"renderD128"}
    monkeypatch.setattr(
        "ci_build.doctor.machine.os.access", lambda path, mode: path.name not in denied
    )
    assert machine.problems() == ()
    assert [device.path for device in machine.facts().machine.render] == [
        "/dev/dri/renderD129"
    ]
    denied.add("renderD129")
    monkeypatch.setattr(
        "ci_build.doctor.machine._group",
        lambda number: "render" if number == os.getgid() else "users",
    )
    monkeypatch.setattr("ci_build.doctor.machine.os.getgroups", list)
    assert told(machine) == {"device-denied": ('sudo usermod -aG render "$USER"',)}


def test_slurm_job_without_gpu_requests_one(machine: FakeMachine) -> None:
    """The device cgroup of a job hides GPUs from KFD, not the driver or the PCI bus."""
    machine.environ["SLURM_JOB_ID"] = "7"
    machine.remove("sys/class/kfd")
    assert told(machine) == {"gpu-missing": (SRUN,)}


def test_slurm_job_keeps_mask_that_hides_gpus(machine: FakeMachine) -> None:
    machine.environ.update(SLURM_JOB_ID="7", ROCR_VISIBLE_DEVICES="")
    assert told(machine) == {"gpu-hidden": (SRUN,)}


# Mixed GPUs


def test_mixed_gpus_hide_those_that_cannot_run_the_wheel(machine: FakeMachine) -> None:
    machine.gpus(MI200, MI300)
    (problem,) = machine.problems()
    assert (problem.code, problem.severity) == ("gpu-not-in-wheel", Severity.WARNING)
    assert problem.commands == ("export HIP_VISIBLE_DEVICES=1",)


# Several ROCms


def test_wheels_of_rocm_before_rocm_path_are_reported(machine: FakeMachine) -> None:
    machine.distribution("rocm-sdk-core", "7.14.0")
    for name in (HIP, "libhipblas.so.3"):
        file = machine.site / "_rocm_sdk_core/lib" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    machine.environ["ROCM_PATH"] = str(machine.root / "opt/rocm")
    (problem,) = machine.problems()
    assert problem.message.startswith(
        "The ROCm 7.14.0 of installed wheels is used, not ROCm 7.2.0 in "
    )
    assert problem.commands == (f"{PYTHON} -m pip uninstall -y rocm-sdk-core",)


@pytest.fixture
def rocm_10(machine: FakeMachine) -> FakeMachine:
    """Return a machine with packages for ROCm 10 and TheRock's system packages."""
    machine.uninstall("jax-rocm7-pjrt", "jax-rocm7-plugin").native("pjrt", 10).native(
        "plugin", 10
    )
    machine.remove("opt/rocm").rocm("opt/rocm/core-10.0", "10.0.0")
    (machine.root / "opt/rocm/lib").symlink_to("core-10.0/lib")
    return machine


def test_system_packages_of_rocm_10_fit(rocm_10: FakeMachine) -> None:
    assert told(rocm_10) == {}
    (rocm,) = rocm_10.facts().trees.found
    assert (rocm.version, rocm.majors) == ("10.0.0", (10,))
