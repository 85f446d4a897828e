"""The diagnosis of the loader on simulated machines: each problem has its remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_build import doctor
from core.rocm_releases import load_releases
from tests.support.fake_machine import (
    HIP,
    MI200,
    MI300,
    PYTHON,
    RX5700,
    FakeMachine,
    payload,
)
from wheelkit.elf.writer import shared_library

ROOT = Path(__file__).parents[3]
PIP = f"{PYTHON} -m pip install"
PUBLISHED = (
    "jax==0.10.2 jaxlib==0.10.2 'jax-rocm7-pjrt==0.10.2.*' 'jax-rocm7-plugin==0.10.2.*'"
)
"""The published wheels, for a machine without wheels."""
FITTING = "jax==0.10.2 jaxlib==0.10.2 jax-rocm7-pjrt==0.10.2 jax-rocm7-plugin==0.10.2"
"""All packages that fit the installed wheels of this project."""
ROCM = (
    f"{PIP} --index-url https://repo.amd.com/rocm/whl-multi-arch/"
    " 'rocm[libraries,device-gfx942]==7.*'"
)
DOCKER = (
    'docker run --device=/dev/kfd --device=/dev/dri --group-add "$(stat -c %g'
    ' /dev/kfd)" --shm-size=64g IMAGE'
)
SRUN = "srun --gpus=1 --pty bash"
WHEELS = ("jax-rocm7-pjrt", "jax-rocm7-plugin")
LOCAL = "0.10.2+rocm7.2.0.gfx942"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(tmp_path, monkeypatch)


def found(machine: FakeMachine) -> dict[str, str]:
    """Return code -> remedy of all problems."""
    return {problem.code: problem.remedy for problem in machine.problems()}


def setting(**variables: str) -> Callable[[FakeMachine], object]:
    """Set environment variables."""
    return lambda m: m.environ.update(variables)


def removing(*paths: str) -> Callable[[FakeMachine], object]:
    """Remove files."""
    return lambda m: m.remove(*paths)


def _no_cards(m: FakeMachine) -> None:
    m.remove("sys/class/kfd", "sys/bus").card(1, "0x10de")


def _rocm_elsewhere(m: FakeMachine) -> None:
    m.remove("opt/rocm").rocm("opt/rocm-7.1.0", "7.1.0").rocm("opt/rocm-7.2.0", "7.2.0")


def _rocm_6(m: FakeMachine) -> None:
    m.remove("opt/rocm").rocm("opt/rocm", "6.4.0", "libamdhip64.so.6")


def _other(part: str) -> Callable[[FakeMachine], object]:
    info: dict[str, Any] = {"version": "0.9.1", "jax_version": "0.9.1"}
    return lambda m: m.uninstall(f"jax-rocm7-{part}").native(part, **info)


def _rocm_of_wheels(m: FakeMachine) -> None:
    """Remove ROCm, and give the wheels extras, as sets have whose ROCm is in wheels."""
    m.remove("opt/rocm").native("plugin", version=LOCAL, extras=("device-gfx942",))
    m.uninstall("jax-rocm7-pjrt").native("pjrt", version=LOCAL)


def _no_device_wheel(m: FakeMachine) -> None:
    m.distribution("rocm-sdk-core", "7.14.0")
    m.distribution("rocm-sdk-libraries", "7.14.0")
    m.distribution("rocm-sdk-device-gfx1100", "7.14.0")


def _wheels_of_others(m: FakeMachine) -> None:
    m.distribution("jax-rocm10-pjrt", "0.11.2").distribution(
        "jax-rocm10-plugin", "0.11.2"
    )


def _in_docker(*paths: str) -> Callable[[FakeMachine], object]:
    return lambda m: m.write(".dockerenv", "").remove(*paths)


def _wsl(m: FakeMachine) -> None:
    m.remove("dev/kfd", "dev/dri", "sys/class/kfd", "sys/module/amdgpu", "sys/bus/pci")
    m.write("dev/dxg", "")


Row = tuple[str, Callable[[FakeMachine], object], str, str]
"""Code of a problem, its cause, a part of the sentence, and the remedy."""
ROWS: list[Row] = [
    ("platform", lambda m: setattr(m, "system", "Linux aarch64"), "aarch64", ""),
    ("glibc", lambda m: setattr(m, "libc", "glibc 2.27"), "has glibc 2.27", ""),
    (
        "driver-missing",
        removing("sys/module", "sys/class/kfd", "dev/kfd"),
        "no AMD GPU was found: 2 on the PCI bus",
        "sudo modprobe amdgpu",
    ),
    (
        "gpu-not-in-kfd",
        removing("sys/class/kfd"),
        "no compute device",
        "sudo dmesg | grep amdgpu",
    ),
    ("gpu-missing", _no_cards, "no AMD GPU was found in this machine", ""),
    ("gpu-missing", _in_docker("sys/class/kfd"), "in this container", DOCKER),
    (
        "device-missing",
        removing("dev/kfd"),
        "/dev/kfd does not exist",
        "sudo modprobe amdgpu",
    ),
    ("device-missing", _in_docker("dev/dri"), "/dev/dri/renderD*", DOCKER),
    (
        "gpu-hidden",
        setting(HIP_VISIBLE_DEVICES="-1"),
        "hidden by HIP_VISIBLE_DEVICES=-1",
        "unset HIP_VISIBLE_DEVICES",
    ),
    # Without the variable, the job would use GPUs of others.
    (
        "gpu-hidden",
        setting(SLURM_JOB_ID="7", ROCR_VISIBLE_DEVICES=""),
        "ROCR_VISIBLE_DEVICES",
        SRUN,
    ),
    (
        "platforms",
        setting(JAX_PLATFORMS="cpu"),
        "JAX_PLATFORMS=cpu",
        "unset JAX_PLATFORMS",
    ),
    (
        "rocm-missing",
        removing("opt/rocm"),
        f"{HIP} is missing; searched: rocm-sdk wheels (not there)",
        ROCM,
    ),
    (
        "rocm-missing",
        _rocm_elsewhere,
        "ROCm was not found",
        "export ROCM_PATH=@/opt/rocm-7.2.0",
    ),
    (
        "rocm-missing",
        _rocm_of_wheels,
        "ROCm was not found",
        (
            f"{PIP} --index-url https://repo.amd.com/rocm/whl-multi-arch/"
            f" 'jax-rocm7-plugin[device-gfx942]=={LOCAL}'"
        ),
    ),
    (
        "rocm-device-missing",
        _no_device_wheel,
        "no code for GPU gfx942: rocm-sdk-device-gfx942 is not installed",
        (
            f"{PIP} --index-url https://repo.amd.com/rocm/whl-multi-arch/"
            " rocm-sdk-device-gfx942==7.14.0"
        ),
    ),
    (
        "other-major",
        _wheels_of_others,
        "jax-rocm10-pjrt, jax-rocm10-plugin are installed too",
        f"{PYTHON} -m pip uninstall jax-rocm10-pjrt jax-rocm10-plugin",
    ),
    (
        "rocm-unfit",
        _rocm_6,
        "another release has @/opt/rocm/lib/libamdhip64.so.6",
        ROCM,
    ),
    ("plugin-broken", removing("opt/rocm/lib/libMIOpen.so.1"), "libMIOpen.so.1", ROCM),
    (
        "python",
        lambda m: m.python.update(version="3.10.13"),
        "CPython 3.11 to 3.14, but this is CPython 3.10.13",
        (
            "uv venv --seed --python 3.12 ~/jax-rocm && ~/jax-rocm/bin/python -m pip"
            f" install {FITTING}"
        ),
    ),
    (
        "not-installed",
        lambda m: m.uninstall(*WHEELS, "jax", "jaxlib"),
        "jax, jaxlib, jax-rocm7-pjrt, jax-rocm7-plugin",
        f"{PIP} {PUBLISHED}",
    ),
    (
        "not-installed",
        lambda m: m.uninstall(*WHEELS).native("pjrt", version=LOCAL),
        "jax-rocm7-plugin. INDEX is the index that the wheels came from.",
        f"{PIP} --extra-index-url INDEX jax-rocm7-plugin=={LOCAL}",
    ),
    (
        "misfit",
        lambda m: m.distribution("jax", "0.11.0", "jaxlib>=0.11"),
        "jax 0.11.0 needs jaxlib>=0.11, but jaxlib 0.10.2 is installed.",
        f"{PIP} jax==0.10.2",
    ),
    (
        "misfit",
        lambda m: m.distribution("jaxlib", "0.11.0"),
        "jax-rocm7-pjrt 0.10.2 needs jaxlib>=0.10.2,<0.10.3, but jaxlib 0.11.0 is",
        f"{PIP} jaxlib==0.10.2",
    ),
    (
        "misfit",
        lambda m: m.distribution("jaxlib", "0.10.2.1"),
        "jax 0.10.2 needs jaxlib<=0.10.2,>=0.10.1, but jaxlib 0.10.2.1 is installed.",
        f"{PIP} jaxlib==0.10.2",
    ),
    (
        "misfit",
        _other("pjrt"),
        "jax-rocm7-plugin 0.10.2 needs jax-rocm7-pjrt==0.10.2, but jax-rocm7-pjrt 0.9.1",
        f"{PIP} jax-rocm7-pjrt==0.10.2",
    ),
    (
        "misfit",
        _other("plugin"),
        "jax-rocm7-plugin 0.9.1 needs jax-rocm7-pjrt==0.9.1, but jax-rocm7-pjrt 0.10.2",
        f"{PIP} jax-rocm7-plugin==0.10.2",
    ),
    (
        "damaged",
        removing("jax_rocm7_plugin/native.so"),
        "native.so is missing",
        f"{PIP} --force-reinstall --no-deps jax-rocm7-plugin==0.10.2",
    ),
    ("gpu-unsupported", lambda m: m.gpus(RX5700), "does not accept GPU gfx1010", ""),
    (
        "gpu-not-in-wheel",
        lambda m: m.gpus(MI200),
        "jax-rocm7-pjrt 0.10.2 has no code for GPU gfx90a, only for gfx942, gfx950.",
        (
            f"{PIP} --force-reinstall --no-deps jax-rocm7-pjrt===0.10.2"
            " jax-rocm7-plugin===0.10.2"
        ),
    ),
    (
        "gpu-unusable",
        lambda m: m.gpus(MI200, MI300),
        "GPU gfx90a cannot run",
        "export HIP_VISIBLE_DEVICES=1",
    ),
    (
        "gfx-override",
        setting(HSA_OVERRIDE_GFX_VERSION="9.4.2"),
        "another GPU target",
        "unset HSA_OVERRIDE_GFX_VERSION",
    ),
    ("wsl", _wsl, "librocdxg.so", "export HSA_ENABLE_DXG_DETECTION=1"),
]


@pytest.mark.parametrize("row", ROWS, ids=[row[2] for row in ROWS])
def test_each_problem_is_found_alone_with_its_remedy(
    row: Row, machine: FakeMachine
) -> None:
    code, harm, says, remedy = row
    harm(machine)
    (problem,) = machine.problems()
    assert problem.code == code
    assert says.replace("@", str(machine.root)) in problem.sentence
    assert problem.remedy == remedy.replace("@", str(machine.root))
    assert problem.severity == payload("_problems").KINDS[code][0]
    if remedy:
        assert f"     {problem.remedy}" in machine.screen().splitlines()


TESTED_ALONE = {"device-denied", "major-blocked", "small-shm", "rocm-not-loadable"}


def test_every_kind_of_problem_has_a_test() -> None:
    assert {row[0] for row in ROWS} | TESTED_ALONE == {*payload("_problems").KINDS}


def test_good_machine_has_no_problem(machine: FakeMachine) -> None:
    assert machine.problems() == []
    lines = machine.screen().splitlines()
    assert "GPU       2 x gfx942" in lines
    assert "Nothing wrong." in lines


def test_errors_come_before_warnings_in_order_of_repair(machine: FakeMachine) -> None:
    machine.remove("dev/kfd").uninstall("jax-rocm7-plugin").gpus(MI200, MI300)
    machine.remove("opt/rocm").environ["HSA_OVERRIDE_GFX_VERSION"] = ""
    codes = [problem.code for problem in machine.problems()]
    assert codes == ["device-missing", "not-installed", "rocm-missing", "gpu-unusable"]


def test_system_python_gets_a_virtual_environment(machine: FakeMachine) -> None:
    machine.python.update(virtual=False, managed=True)
    machine.uninstall("jax-rocm7-plugin")
    venv = f"{PYTHON} -m venv ~/jax-rocm && ~/jax-rocm/bin/python -m pip install"
    assert found(machine) == {"not-installed": f"{venv} {FITTING}"}


def test_system_python_with_wheels_gets_rocm(machine: FakeMachine) -> None:
    machine.python.update(virtual=False, managed=True)
    machine.remove("opt/rocm")
    option = "--break-system-packages"
    command = ROCM.replace("install", f"install {option}", 1)
    assert found(machine) == {"rocm-missing": command}
    _wheels_of_others(machine)
    assert found(machine)["other-major"].startswith(
        f"{PYTHON} -m pip uninstall {option} "
    )


def test_python_without_pip_gets_commands_of_uv(machine: FakeMachine) -> None:
    machine.python.update(pip=False, executable="/opt/my python/bin/python3")
    machine.uninstall("jax-rocm7-plugin")
    uv = "uv pip install --python '/opt/my python/bin/python3'"
    assert found(machine) == {"not-installed": f"{uv} jax-rocm7-plugin==0.10.2"}


def test_index_is_named_in_commands(machine: FakeMachine) -> None:
    machine.uninstall(*WHEELS)
    (problem,) = machine.problems("https://index.example/simple/")
    assert "install --extra-index-url https://index.example/simple/" in problem.remedy


def test_published_wheels_need_jaxlib_of_their_series(machine: FakeMachine) -> None:
    machine.uninstall(*WHEELS, "jaxlib").distribution("jaxlib", "0.11.0")
    for name in WHEELS:
        machine.distribution(name, "0.10.2")
    assert found(machine)["misfit"] == f"{PIP} jaxlib==0.10.2"


def test_frozen_program_without_metadata_is_not_incomplete(
    machine: FakeMachine,
) -> None:
    for info in machine.site.glob("*.dist-info"):
        machine.remove(info.name)
    for name in ("jax", "jaxlib"):
        (machine.site / name).mkdir()
    assert found(machine) == {}


def test_damaged_files_are_reported(machine: FakeMachine) -> None:
    (machine.site / "jax-0.10.2.dist-info/METADATA").write_bytes(b"\xff\xfe\x00")
    (machine.site / "jax_plugins/xla_rocm7/build_info.json").write_text("[")
    machine.write("opt/rocm/.info/version", "\0\0").write("etc/os-release", "NAME")
    assert "unknown version" in machine.screen()


DOCUMENTED: dict[str, Any] = {
    "version": "0.12.0+rocm7.14.0.gfx942",
    "jax_version": "0.12.0",
    "requires_jaxlib": ">=0.12.0,<0.12.1",
    "rocm_version": "7.14.0",
    "targets": ("gfx942",),
}


def test_documentation_shows_what_the_doctor_prints(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload("_machine"), "_group", lambda _: "render")
    machine.gpus(MI300).remove("opt/rocm", "dev/dri/renderD129").uninstall(*WHEELS)
    machine.native("pjrt", **DOCUMENTED)
    machine.native("plugin", **DOCUMENTED, extras=("device-gfx942",))
    machine.distribution("jax", "0.12.0", "jaxlib<=0.12.0,>=0.11.2")
    machine.distribution("jaxlib", "0.12.0.1")
    screen = machine.screen().replace(str(machine.root), "")
    screen = screen.replace(PYTHON, "demo/bin/python")
    # Lines break elsewhere if the folder of the test has a longer name.
    page = (ROOT / "docs/install.md").read_text()
    assert " ".join(screen.split()) in " ".join(page.split())


# Containers and jobs


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        (["run/.containerenv", "var/run/secrets/kubernetes.io/x"], {}, "kubernetes"),
        ([], {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "kubernetes"),
        ([".dockerenv"], {"SINGULARITY_CONTAINER": "/images/jax.sif"}, "apptainer"),
        (["run/.containerenv"], {}, "podman"),
        ([], {"container": "lxc"}, "lxc"),
    ],
)
def test_kind_of_container(
    machine: FakeMachine, files: list[str], environ: dict[str, str], kind: str
) -> None:
    for file in files:
        machine.write(file, "")
    machine.environ.update(environ)
    assert machine.facts().machine.container == kind


POD = "var/run/secrets/kubernetes.io/x"


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("run/.containerenv", "podman run --device=/dev/kfd --device=/dev/dri"),
        (POD, "securityContext: {supplementalGroups: [GID of render]}"),
        ("etc/hostname", 'sudo usermod -aG render "$USER"  # and log in again'),
    ],
)
def test_user_without_group_of_devices(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, file: str, command: str
) -> None:
    machine.write(file, "")
    module = payload("_machine")
    monkeypatch.setattr(module, "_usable", lambda _: False)
    monkeypatch.setattr(module, "_group", lambda _: "render")
    monkeypatch.setattr(module, "own_groups", lambda: {"users"})
    assert found(machine)["device-denied"].startswith(command)
    monkeypatch.setattr(module, "own_groups", lambda: {"render"})
    assert found(machine)["device-denied"].startswith("sudo chmod 0660")


def test_user_does_not_join_group_root(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = payload("_machine")
    monkeypatch.setattr(module, "_usable", lambda _: False)
    monkeypatch.setattr(module, "_group", lambda _: "root")
    monkeypatch.setattr(module, "own_groups", lambda: {"users"})
    assert found(machine)["device-denied"].startswith("sudo chmod 0666")


@pytest.mark.parametrize(
    ("file", "command"),
    [
        (".dockerenv", DOCKER),
        (
            POD,
            "volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]",
        ),
        ("etc/hostname", "sudo mount -o remount,size=64g /dev/shm"),
    ],
)
def test_small_shm(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, file: str, command: str
) -> None:
    machine.write(file, "")
    monkeypatch.setattr(payload("_machine"), "shm_mib", lambda: 64.0)
    assert found(machine) == {"small-shm": command}
    machine.gpus(MI300)
    assert found(machine) == {}


def test_slurm_job_needs_only_the_render_node_of_its_gpu(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ConstrainDevices, KFD shows the job's GPU alone, others' nodes are closed."""
    machine.environ.update(SLURM_JOB_ID="7", ROCR_VISIBLE_DEVICES="0")
    machine.gpus({**MI300, "drm_render_minor": 129})
    denied = {"renderD128"}
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path.name not in denied and access(path, mode)
    )
    assert machine.problems() == []
    denied.add("renderD129")
    assert {*found(machine)} == {"device-denied"}


def test_slurm_job_without_gpu_requests_one(machine: FakeMachine) -> None:
    """The device cgroup of a job hides GPUs from KFD, not from the PCI bus."""
    machine.environ["SLURM_JOB_ID"] = "7"
    machine.remove("sys/class/kfd")
    assert found(machine) == {"gpu-missing": SRUN}


# ROCm


def test_rocm_without_gpu_needs_no_device_wheel(machine: FakeMachine) -> None:
    _rocm_of_wheels(machine)
    facts = machine.gpus().facts()
    wheels = "rocm-sdk-core==7.2.0 rocm-sdk-libraries==7.2.0"
    assert facts.install_rocm().endswith(f"whl-multi-arch/ {wheels}")


def test_rocm_wheels_of_the_gpu_family_are_found(machine: FakeMachine) -> None:
    for path in (
        "_rocm_sdk_core/lib/libamdhip64.so.7",
        "_rocm_sdk_libraries_gfx94X_dcgpu/lib/libMIOpen.so.1",
    ):
        (machine.site / path).parent.mkdir(parents=True)
        (machine.site / path).touch()
    machine.remove("opt/rocm").distribution("rocm-sdk-core", "7.14.0")
    (rocm,) = machine.facts().rocms
    assert (rocm.layout, rocm.version) == ("rocm-sdk wheels", "7.14.0")
    (problem,) = machine.problems()
    assert "libhipblas.so.3" in problem.sentence
    assert "libMIOpen.so.1" not in problem.sentence


def test_system_packages_of_rocm_10_fit(machine: FakeMachine) -> None:
    machine.uninstall(*WHEELS).native("pjrt", 10).native("plugin", 10)
    machine.remove("opt/rocm").rocm("opt/rocm/core-10.0", "10.0.0")
    (machine.root / "opt/rocm/lib").symlink_to("core-10.0/lib")
    assert found(machine) == {}
    (rocm,) = machine.facts().rocms
    assert (rocm.version, rocm.major) == ("10.0.0", 10)


def test_usable_major_is_diagnosed(machine: FakeMachine) -> None:
    machine.native("pjrt", 10).native("plugin", 10)
    assert machine.facts().major == 10
    assert "Targets   gfx942, gfx950 in jax-rocm10-pjrt 0.10.2" in machine.screen()
    machine.uninstall("jax-rocm10-plugin")
    assert machine.facts().major == 7


def test_generic_target_serves_its_processors(machine: FakeMachine) -> None:
    machine.native("pjrt", targets=("gfx11-generic",))
    machine.gpus({"gfx_target_version": 110003})
    assert found(machine) == {}


def test_plugin_that_cannot_be_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = payload("_diagnosis").load
    machine = FakeMachine(tmp_path, monkeypatch)
    monkeypatch.setattr(payload("_diagnosis"), "load", load)
    monkeypatch.setattr(payload("_rocm"), "preload", lambda *_: None)
    (problem,) = machine.problems()
    assert problem.code == "rocm-not-loadable"
    assert "file too short" in problem.sentence
    library = machine.site / "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
    library.write_bytes(shared_library("xla_rocm_plugin.so", []))
    assert machine.problems() == []


# The command


def test_defaults_name_the_published_wheels() -> None:
    defaults = doctor.defaults()
    assert defaults["rocm_major"] == load_releases().published_major
    assert "gfx942" in defaults["xla_targets"]


def test_json_has_facts_and_problems(machine: FakeMachine) -> None:
    body: dict[str, Any] = payload("_doctor").as_json(
        machine.facts(), machine.problems()
    )
    assert body["packages"]["jax"] == "0.10.2"
    assert body["targets"] == ["gfx942", "gfx950"]
    assert body["problems"] == []
