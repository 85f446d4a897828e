"""The doctor on simulated machines: each problem is named with its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build.doctor import doctor_screen as screen
from ci_build.doctor.diagnosis import Problem
from core.model import Severity
from promotion.evidence.evidence import record
from promotion.policy.promotion_policy import load_policy
from promotion.promote import promote
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.fake_machine import (
    HIP,
    MI200,
    MI300,
    PYTHON,
    RX5700,
    FakeMachine,
    write_index,
)
from tests.support.sets import wheel_set
from tests.support.wheel_sets import (
    VERSION,
    make_set,
    make_wheels,
    passing_evidence,
    write_set,
)

PIP = f"{PYTHON} -m pip"
INSTALL = (
    f"{PIP} install jax==0.10.2 jaxlib==0.10.2 'jax-rocm7-pjrt==0.10.2.*'"
    " 'jax-rocm7-plugin==0.10.2.*'"
)
OWN = (
    "jax==0.10.2 'jaxlib>=0.10.2,<0.10.3' jax-rocm7-pjrt==0.10.2"
    " jax-rocm7-plugin==0.10.2"
)
"""Everything that fits the installed wheels of this project."""
ROCM_WHEELS = (
    f"{PIP} install --index-url https://repo.amd.com/rocm/whl-multi-arch/"
    " 'rocm[libraries,device-gfx942]==7.*'"
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = FakeMachine(tmp_path, monkeypatch)
    (tmp_path / "root/dev/shm").mkdir(parents=True)
    return made


def test_doctor_finds_no_problem_on_good_machine(machine: FakeMachine) -> None:
    assert machine.problems() == ()
    lines = screen.show(machine.facts(), ()).splitlines()
    assert (
        "GPU       2 x gfx942 (Instinct MI300A, MI300X, MI325X; 192 GiB each)" in lines
    )
    assert (
        "Fits      jax 0.10.2 with jax-rocm7-pjrt 0.10.2, which is installed" in lines
    )


def _no_cards(m: FakeMachine) -> FakeMachine:
    return m.remove("sys/module", "sys/class/kfd", "dev/kfd", "sys/bus").card(
        1, "0x10de"
    )


def _old_packages(m: FakeMachine) -> FakeMachine:
    return _no_native(m).native("pjrt", 60).native("plugin", 60)


def _no_native(m: FakeMachine) -> FakeMachine:
    return m.uninstall("jax-rocm7-pjrt", "jax-rocm7-plugin")


def _rocm_before(m: FakeMachine) -> None:
    m.rocm("opt/old", "7.0.1").environ["LD_LIBRARY_PATH"] = str(m.root / "opt/old/lib")


LOCAL = "0.10.2+rocm7.2.0.gfx942"
REINSTALL = f"{PIP} install --force-reinstall --no-deps jax-rocm7-plugin==0.10.2"
Row = tuple[str, Callable[[FakeMachine], object], str, tuple[str, ...]]
"""Code of a problem, its cause, a part of the message, and the commands that fix it."""
ERRORS: list[Row] = [
    (
        "platform",
        lambda m: setattr(m, "kernel", ("Linux", "aarch64", "6.8")),
        "supports only Linux on x86_64",
        (),
    ),
    (
        "glibc",
        lambda m: setattr(m, "libc", "glibc 2.27"),
        "this system has glibc 2.27",
        (),
    ),
    (
        "driver-missing",
        lambda m: m.remove("sys/module", "sys/class/kfd", "dev/kfd"),
        "2 AMD GPUs are on the PCI bus",
        ("sudo modprobe amdgpu",),
    ),
    (
        "gpu-not-in-kfd",
        lambda m: m.remove("sys/class/kfd"),
        "amdgpu provides no compute device",
        (),
    ),
    ("gpu-missing", _no_cards, "This machine has no AMD GPU.", ()),
    (
        "device-missing",
        lambda m: m.remove("dev/kfd"),
        "there is no /dev/kfd; load",
        ("sudo modprobe amdgpu",),
    ),
    (
        "gpu-hidden",
        lambda m: m.environ.update(HIP_VISIBLE_DEVICES="-1"),
        "HIP_VISIBLE_DEVICES=-1 hides it",
        ("unset HIP_VISIBLE_DEVICES",),
    ),
    (
        "platforms",
        lambda m: m.environ.update(JAX_PLATFORMS="cpu"),
        "JAX_PLATFORMS=cpu",
        ("unset JAX_PLATFORMS",),
    ),
    (
        "rocm-elsewhere",
        lambda m: (
            m.remove("opt/rocm")
            .rocm("opt/rocm-7.1.0", "7.1.0")
            .rocm("opt/rocm-7.2.0", "7.2.0")
        ),
        "opt/rocm-7.2.0, which is not",
        ("export ROCM_PATH=@/opt/rocm-7.2.0",),
    ),
    (
        "rocm-path",
        lambda m: m.environ.update(ROCM_PATH="/nowhere"),
        "ROCM_PATH=/nowhere has no",
        ("unset ROCM_PATH",),
    ),
    (
        "rocm-major",
        lambda m: m.remove("opt/rocm").rocm("opt/rocm", "10.1.0"),
        "need ROCm 7, but the machine has ROCm 10.1.0 in",
        (ROCM_WHEELS,),
    ),
    (
        "rocm-major",
        _old_packages,
        "need ROCm 6, but the machine has ROCm 7.2.0 in",
        (f"{PIP} uninstall -y jax-rocm60-pjrt jax-rocm60-plugin", INSTALL),
    ),
    (
        "library-missing",
        lambda m: m.remove("opt/rocm/lib/libMIOpen.so.1"),
        "Libraries needed by _linalg.so are missing: libMIOpen.so.1.",
        (ROCM_WHEELS,),
    ),
    (
        "python",
        lambda m: m.python.update(version="3.10.13"),
        "CPython 3.11 to 3.14, but this is CPython 3.10.13",
        (
            "uv venv --seed --python 3.12 ~/jax-rocm",
            f"~/jax-rocm/bin/python -m pip install {OWN}",
        ),
    ),
    (
        "not-installed",
        lambda m: _no_native(m).uninstall("jax", "jaxlib"),
        "jax, jaxlib, jax-rocm7-pjrt and jax-rocm7-plugin are not installed",
        (INSTALL,),
    ),
    (
        "not-installed",
        lambda m: _no_native(m).native("pjrt", version=LOCAL),
        (
            "jax-rocm7-plugin is not installed. INDEX is the index that the wheels came"
            " from."
        ),
        (f"{PIP} install --extra-index-url INDEX jax-rocm7-plugin=={LOCAL}",),
    ),
    (
        "several-majors",
        lambda m: m.native("pjrt", 8).native("plugin", 8),
        "for ROCm 7 and 8 are installed; a process can use only one ROCm",
        (f"{PIP} uninstall -y jax-rocm8-pjrt jax-rocm8-plugin", f"{PIP} install {OWN}"),
    ),
    (
        "leftovers",
        lambda m: m.native("plugin", 6).remove("jax_rocm6_plugin-0.10.2.dist-info"),
        "jax_rocm6_plugin: not owned by an installed package",
        ("rm -r @site/jax_rocm6_plugin",),
    ),
    (
        "misfit",
        lambda m: m.uninstall("jax-rocm7-pjrt").native("pjrt", version="0.9.1"),
        "jax-rocm7-plugin 0.10.2 needs jax-rocm7-pjrt==0.10.2, but 0.9.1 is installed",
        (f"{PIP} install jax-rocm7-plugin==0.9.1",),
    ),
    (
        "damaged",
        lambda m: (m.site / "jax_rocm7_plugin/_linalg.so").write_bytes(b"\x7fELF"),
        "_linalg.so: missing or of another size",
        (REINSTALL,),
    ),
    (
        "gpu-unsupported",
        lambda m: m.gpus(RX5700),
        "XLA does not accept gfx1010; it accepts gfx908",
        (),
    ),
    (
        "gpu-not-in-wheel",
        lambda m: m.gpus(MI200),
        "jax-rocm7-pjrt 0.10.2 has no code for gfx90a, only for gfx942, gfx950.",
        ("python3 build/ci_build release --local --targets=gfx90a",),
    ),
]
WARNINGS: list[Row] = [
    (
        "gfx-override",
        lambda m: m.environ.update(HSA_OVERRIDE_GFX_VERSION="9.4.2"),
        "see another GPU target",
        ("unset HSA_OVERRIDE_GFX_VERSION",),
    ),
    (
        "rocm-mixed",
        _rocm_before,
        "ROCm 7.0.1 before ROCm 7.2.0",
        ("unset LD_LIBRARY_PATH",),
    ),
    (
        "cuda-beside",
        lambda m: m.distribution("jax-cuda12-plugin", "0.10.2"),
        "jax also loads jax-cuda12-plugin",
        (f"{PIP} uninstall -y jax-cuda12-plugin",),
    ),
    (
        "gpu-unsupported",
        lambda m: m.gpus(RX5700, MI300),
        "XLA does not accept gfx1010.",
        ("export HIP_VISIBLE_DEVICES=1",),
    ),
]


@pytest.mark.parametrize(
    ("severity", "row"),
    [
        *((Severity.ERROR, row) for row in ERRORS),
        *((Severity.WARNING, row) for row in WARNINGS),
    ],
    ids=[row[2] for row in (*ERRORS, *WARNINGS)],
)
def test_doctor_names_each_problem_with_its_remedy(
    severity: Severity, row: Row, machine: FakeMachine
) -> None:
    code, harm, says, commands = row
    harm(machine)
    found = {problem.code: problem for problem in machine.problems()}
    assert code in found
    problem = found[code]
    assert says in problem.message
    places = {"@site": str(machine.site), "@": str(machine.root)}
    wanted = [
        re.sub("@site|@", lambda m: places[m[0]], command) for command in commands
    ]
    assert list(problem.commands) == wanted
    assert problem.severity == severity
    text = screen.show(machine.facts(), machine.problems())
    for command in wanted:
        assert f"     {command}" in text.splitlines(), "a command is a line of its own"


def only(problems: tuple[Problem, ...]) -> Problem:
    (problem,) = problems
    return problem


def test_doctor_reports_each_cause_once(machine: FakeMachine) -> None:
    machine.uninstall("jax-rocm7-plugin")
    assert only(machine.problems()).code == "not-installed"
    machine.native("plugin").remove("opt/rocm")
    assert only(machine.problems()).code == "rocm-missing", (
        "that libraries are missing goes without saying"
    )
    machine.rocm("opt/rocm", "7.2.0")
    _old_packages(machine)
    assert only(machine.problems()).code == "rocm-major"


def test_rocm_as_wheels_is_found_and_has_its_version(machine: FakeMachine) -> None:
    machine.remove("opt/rocm")
    machine.distribution("rocm-sdk-core", "7.14.0")
    for package, name in (
        ("_rocm_sdk_core", HIP),
        ("_rocm_sdk_libraries_gfx94X_dcgpu", "libMIOpen.so.1"),
    ):
        file = machine.site / package / "lib" / name
        file.parent.mkdir(parents=True)
        file.touch()
    facts = machine.facts()
    assert [(rocm.layout, rocm.version) for rocm in facts.trees.found] == [
        ("rocm-sdk wheels", "7.14.0")
    ]
    assert "libMIOpen.so.1" not in str(facts.packages.lacking), (
        "the family's own package counts"
    )
    assert "libhipblas.so.3" in str(facts.packages.lacking)


def test_doctor_finds_library_beside_its_user(machine: FakeMachine) -> None:
    machine.remove("opt/rocm/lib/libMIOpen.so.1")
    (machine.site / "jax_rocm7_plugin/libMIOpen.so.1").touch()
    assert machine.problems() == ()


def test_doctor_proposes_venv_for_system_python(machine: FakeMachine) -> None:
    machine.python.update(virtual=False, managed=True)
    machine.uninstall("jax-rocm7-plugin")
    (command,) = only(machine.problems()).commands
    made = f"{PYTHON} -m venv ~/jax-rocm && ~/jax-rocm/bin/python -m pip install"
    assert command == f"{made} {OWN}"


def test_without_pip_uv_installs(machine: FakeMachine) -> None:
    machine.python.update(pip=False, executable="/opt/my python/bin/python3")
    machine.uninstall("jax-rocm7-plugin")
    (command,) = only(machine.problems()).commands
    assert (
        command == "uv pip install --python '/opt/my python/bin/python3'"
        " jax-rocm7-plugin==0.10.2"
    )


def test_a_generic_target_serves_its_processors(machine: FakeMachine) -> None:
    machine.uninstall("jax-rocm7-pjrt").native("pjrt", targets=("gfx11-generic",)).gpus(
        {"gfx_target_version": 110003}
    )
    assert machine.problems() == ()


# Sets of an index


@pytest.fixture
def index(tmp_path: Path) -> str:
    new = wheel_set(
        rocm_version="7.14.0",
        jax_version="0.12.0",
        pins={"jax": "0.12.0"},
        python_versions=("3.12",),
    )
    old = wheel_set()
    both = {"gfx942": "compiled", "gfx950": "structure"}
    write_index(
        tmp_path / "bucket/v2/multi-arch", (new, {"gfx1100": "compiled"}), (old, both)
    )
    return str(tmp_path / "bucket")


def test_doctor_proposes_fitting_set_of_index(machine: FakeMachine, index: str) -> None:
    machine.uninstall("jax-rocm7-plugin", "jax-rocm7-pjrt")
    problem = only(machine.problems(index))
    simple = (Path(index).resolve() / "v2/multi-arch/simple").as_uri() + "/"
    version = "0.10.2+rocm7.2.0.gfx942"
    wanted = (
        f"jax-rocm7-pjrt=={version} jax-rocm7-plugin=={version} jaxlib==0.10.2"
        " jax==0.10.2"
    )
    assert problem.commands == (f"{PIP} install --extra-index-url {simple} {wanted}",)


def test_a_bucket_with_really_promoted_sets_is_read(
    machine: FakeMachine, tmp_path: Path
) -> None:
    wheels = make_wheels(tmp_path / "wheels")
    made = make_set(wheels)
    bucket = DirBucket(tmp_path / "bucket")
    staged = stage(bucket, write_set(tmp_path / "set", wheels, made))
    for evidence in passing_evidence(made):
        record(bucket, staged, evidence)
    promote(bucket, staged, load_policy("multi-arch"))
    (offer,) = machine.facts(str(tmp_path / "bucket")).fitting
    assert (offer.digest, offer.jax, offer.rocm) == (made.digest, "0.10.2", "7.2.0")
    assert offer.tiers.keys() == {"gfx942", "gfx950"}
    assert offer.packages == {
        "jax": "0.10.2",
        "jaxlib": "0.10.2",
        "jax-rocm7-pjrt": VERSION,
        "jax-rocm7-plugin": VERSION,
    }


def test_doctor_reports_index_without_fitting_set(
    machine: FakeMachine, index: str
) -> None:
    machine.gpus(MI200)
    problem = next(
        problem for problem in machine.problems(index) if problem.code == "no-set-fits"
    )
    assert "Targets of its sets: gfx1100, gfx942, gfx950;" in problem.message
    assert problem.commands == (
        (
            "python3 build/ci_build release --local --targets=gfx90a"
            " --python-versions=3.12"
        ),
    )


def test_invalid_index_url_is_reported(machine: FakeMachine) -> None:
    for where in ("http://[localhost", "http://localhost:port/v2/multi-arch"):
        assert where in only(machine.problems(where)).message


@pytest.mark.parametrize("text", [None, "no JSON", '{"sets": [{}]}'])
def test_unreadable_index_is_reported(
    machine: FakeMachine, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    problem = only(machine.problems(str(tmp_path)))
    assert (problem.code, problem.severity) == ("index", Severity.WARNING)
    assert str(tmp_path) in problem.message


def test_damaged_machine_is_reported(machine: FakeMachine) -> None:
    (machine.site / "jax-0.10.2.dist-info/METADATA").write_bytes(b"\xff\xfe\x00")
    (machine.site / "jax_plugins/xla_rocm7/build_info.json").write_text("[")
    (machine.site / "jax_rocm7_plugin/_linalg.so").write_bytes(b"\x7fELF" + bytes(90))
    machine.write("opt/rocm/.info/version", "\0\0")
    machine.write("etc/os-release", "PRETTY_NAME")
    codes = {problem.code for problem in machine.problems()}
    assert {"damaged", "not-installed"} <= codes
