"""Faults that the gate device reports, from the results of tests and the answers of machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from core.digests import sha256_of
from core.model import Finding
from core.process import HostRunner
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.device.device_run import _GateRun
from promotion.gates.device.expected_machine import ExpectedMachine
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import GIB, Allotment, GpuDevice, JaxPlatform
from promotion.gates.device.preflight import check_host, check_jax
from promotion.gates.device.results import Attempt, Ending, killed_workers
from promotion.gates.device.sessions import harness as harness_module
from promotion.gates.device.sessions.harness import Harness
from promotion.gates.device.sessions.passes import Pass, RunPlan, RunReport, Suite
from promotion.gates.device.suite import SuiteSource
from tests.support.device_results import checks_of, result
from tests.support.fake_devices import device_config, fake_devices
from tests.support.files import write_files
from tests.unit.gate_table.load import NO_DEVICE
from tests.unit.gate_table.model import Row, Scene
from tests.unit.promotion.test_device_suite import NO_GIT
from wheelkit.rocm_manifest import RocmLibrary

GATE = "device"
V = TestVerdict


# Verdicts of tests


@dataclass
class Results:
    """Results of tests; `killed` are tests that passed after their process was killed."""

    results: list[TestResult] = field(default_factory=lambda: [result("one", V.PASSED)])
    killed: bool = False


def _judge_results(results: Results, _: Path) -> Iterable[Finding]:
    for check in checks_of(tuple(results.results), exceptions=()):
        yield from check.findings
    ending = Ending.KILLED if results.killed else Ending.PASSED
    attempts = {
        item.id: [Attempt(id=item.id, ending=ending)] for item in results.results
    }
    yield from killed_workers(results.results, attempts)


def with_tests(
    verdict: TestVerdict, count: int = 1, cause: str = "E   no {}"
) -> Callable[[Results], object]:
    """Add tests with a verdict, each for a cause of its own if that has braces."""
    return lambda made: made.results.extend(
        result(f"t{n}", verdict, cause.format(n)) for n in range(count)
    )


RESULTS = Scene(lambda _: Results(), _judge_results)
_RESULT_ROWS = [
    Row(GATE, "test-failed", "one", RESULTS, with_tests(V.FAILED)),
    Row(
        GATE,
        "test-failed",
        "many of one cause",
        RESULTS,
        with_tests(V.FAILED, 9, "E   no"),
        "9 tests failed",
    ),
    Row(GATE, "test-crashed", "one", RESULTS, with_tests(V.CRASHED)),
    Row(GATE, "test-first-flake", "has no exception", RESULTS, with_tests(V.FLAKY)),
    Row(
        GATE,
        "test-flaky",
        "many of one cause",
        RESULTS,
        with_tests(V.FLAKY, 9, "E   no"),
        "9 tests flaky",
    ),
    Row(
        GATE,
        "worker-killed",
        "SIGKILL",
        RESULTS,
        lambda made: setattr(made, "killed", True),
    ),
]


# The run


@dataclass
class Ran:
    """A finished run on some devices, with remarks."""

    notes: tuple[str, ...] = ()
    devices: int = 2
    jax: str = "0.11.1"
    causes: int = 0
    lost: int = 0


def _report(ran: Ran, folder: Path) -> Iterable[Finding]:
    """Return the findings of the report, of the suite and of retries."""
    gate = _GateRun.__new__(_GateRun)
    made = SimpleNamespace(pins={}, jax_version=ran.jax)
    context = SimpleNamespace(work=folder, wheel_set=made)
    gate.context = cast("Any", context)
    gate.runner = NO_GIT
    files = {
        "jax/version.py": '_version = "0.11.1"\n',
        "tests/a_test.py": "",
    }
    source = SuiteSource(location=str(write_files(folder / "jax-src", files)))
    gate.config = device_config(count=ran.devices, source=source, suite="s")
    gate.devices = gate.config.machine.devices
    gate.target = "gfx942"
    gate.facts = {}
    gate.host = Allotment(cores=1, memory=GIB)
    site: Any = SimpleNamespace(version="3.12", folder=folder / "site")
    suite = replace(gate._suite(site), notes=())
    report = RunReport(
        results=(), collected=(), problems=(), notes=ran.notes, sessions=1
    )
    yield from gate._outcome(report, (), suite).warnings
    yield from _retry(ran.causes, ran.lost, folder)


def _retry(causes: int, lost: int, folder: Path) -> Iterable[Finding]:
    """Retry tests that failed for different causes; one retry is allowed.

    A device has lost memory.
    """
    single = Pass(name="all", marks="", leases=())
    suite = Suite(root=folder, files=(".",), env={})
    harness = Harness(
        HostRunner({}),
        RunPlan(
            python=(),
            suite=suite,
            env={},
            passes=(single,),
            retries=1,
            free_memory=lambda: {"0": 16 * GIB - lost},
        ),
        folder,
    )
    harness._idle = {"0": 16 * GIB}
    state = harness._states["all"]
    for number in range(causes):
        attempt = Attempt(
            id=f"a.py::t{number}",
            ending=Ending.FAILED,
            message=f"E   no {'x' * number}",
        )
        state.chosen = {**(state.chosen or {}), attempt.id: None}
        state.tests[attempt.id].append(attempt)
    harness._retry(single)
    with mock.patch.object(harness_module, "_GIVEN_BACK_SECONDS", 0.0):
        harness._check_devices([])
    return harness._report().warnings


RUN = Scene(lambda _: Ran(), _report)
_RUN_ROWS = [
    Row(
        GATE,
        "device-note",
        "remark",
        RUN,
        lambda made: setattr(made, "notes", ("a remark",)),
    ),
    Row(
        GATE,
        "multi-left-out",
        "one device",
        RUN,
        lambda made: setattr(made, "devices", 1),
    ),
    Row(
        GATE,
        "suite-release",
        "jax 0.11.2",
        RUN,
        lambda made: setattr(made, "jax", "0.11.2"),
    ),
    Row(
        GATE,
        "device-memory-taken",
        "two GiB",
        RUN,
        lambda made: setattr(made, "lost", 2 * GIB),
    ),
    Row(
        GATE, "not-retried", "two causes", RUN, lambda made: setattr(made, "causes", 2)
    ),
]


# The machine

PLUGIN = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
MODULE = "jax_rocm7_plugin/_linalg.so"
KERNEL = {
    "id": 0,
    "kind": "MI300X",
    "capability": "gfx942",
    "kernel": "",
}


@dataclass
class Machine:
    """A machine with two GPUs, and the answer of jax on it.

    Attributes:
        files: path -> content of files of the machine.
        loaded: libraries of jax's process, as paths of `files`.
        rocm: libraries of the set's ROCm; empty if the set has no manifest.
        fit: whether the devices work without jax.
    """

    devices: tuple[GpuDevice, ...] = field(default_factory=lambda: fake_devices(2))
    counts: tuple[int, ...] = ()
    targets: tuple[str, ...] = ("gfx942",)
    files: dict[str, str] = field(
        default_factory=lambda: {
            "dev/kfd": "",
            f"site/{PLUGIN}": "code",
            "rocm/lib/libamdhip64.so.7": "",
            "rocm/.info/version": "7.2.0\n",
        }
    )
    loaded: list[str] = field(
        default_factory=lambda: [f"site/{PLUGIN}", "rocm/lib/libamdhip64.so.7"]
    )
    answer: dict[str, Any] = field(
        default_factory=lambda: {
            "error": "",
            "platforms": ["gpu"],
            "default": "gpu",
            "client": "rocm 70200",
            "version": "0.10.2",
            "devices": [KERNEL, {**KERNEL, "id": 1}],
        }
    )
    rocm: dict[str, RocmLibrary] = field(default_factory=dict)
    fit: bool = True


def _preflight(machine: Machine, folder: Path) -> Iterable[Finding]:
    root = write_files(folder / "root", machine.files)
    expected = ExpectedMachine(
        platform=JaxPlatform.ROCM,
        targets=machine.targets,
        count=2,
        counts=machine.counts,
        libraries={PLUGIN: sha256_of(b"code"), MODULE: "0"},
        site=root / "site",
        rocm_version="7.2.0",
        rocm=machine.rocm,
    )
    info = MachineInfo(devices=machine.devices)
    checks = list(check_host(info, machine.devices, expected, root))
    answer = {
        **machine.answer,
        "libraries": [str(root / path) for path in machine.loaded],
    }
    control = "" if machine.fit else "hipGetDeviceCount returned 100"
    checks += check_jax(answer, expected, lambda: control)
    ignored = "only the release was compared"
    result = []
    for check in checks:
        for item in check.findings:
            if ignored not in item.message:
                result.append(item)
    return result


def machine(**changes: Any) -> Callable[[Machine], object]:
    """Change the machine."""
    return lambda made: replace(made, **changes)


def answer(**changes: Any) -> Callable[[Machine], object]:
    """Change the answer of jax."""
    return lambda made: made.answer.update(changes)


def file(path: str, text: str) -> Callable[[Machine], object]:
    """Change a file of the machine."""
    return lambda made: made.files.update({path: text})


def without(path: str) -> Callable[[Machine], object]:
    """Remove a file of the machine."""
    return lambda made: made.files.pop(path)


def kernels(first: str, second: str) -> Callable[[Machine], object]:
    """Change the errors of the kernels on both devices."""
    return answer(
        devices=[{**KERNEL, "kernel": first}, {**KERNEL, "id": 1, "kernel": second}]
    )


MIXED = (*fake_devices(1), *fake_devices(1, gfx="gfx950"))
POOR = (GpuDevice(index=0, gfx="gfx942", memory=16 * GIB, free=GIB), fake_devices(2)[1])
UNDEFINED = (
    "ImportError: /site/jax_rocm7_plugin/_linalg.so: undefined symbol: hipsolverOld"
)
NO_BACKEND = "RuntimeError: Unable to initialize backend 'rocm'"
NO_FILE = "cannot open shared object file: No such file"
BAD_KERNEL = "XlaRuntimeError: INTERNAL: bad code object"
BAD_MEMORY = "XlaRuntimeError: hipErrorECCNotCorrectable"
BLAS = "librocblas.so.5"


def no_start(
    error: str, stage: str = "devices", *, fit: bool = True, rocm: str = "7.2.0"
) -> Callable[[Machine], object]:
    """Let jax fail at a stage, above a version of ROCm."""

    def edit(made: Machine) -> None:
        made.fit = fit
        made.files["rocm/.info/version"] = f"{rocm}-1\n"
        made.rocm = {BLAS: RocmLibrary(soname=BLAS, path=f"lib/{BLAS}", symbols={})}
        made.answer.update(error=error, stage=stage)

    return edit


def bad_kernels_of_broken_machine(made: Machine) -> None:
    kernels(BAD_KERNEL, BAD_KERNEL)(made)
    made.fit = False


MACHINE = Scene(lambda _: Machine(), _preflight)
_MACHINE_EDITS: list[tuple[str, str, str, Callable[[Machine], object]]] = [
    ("environment", "no device", "no rocm device", machine(devices=())),
    (
        "environment",
        "other devices",
        "the devices are gfx950",
        machine(devices=fake_devices(2, gfx="gfx950")),
    ),
    (
        "environment",
        "two kinds of devices",
        "several kinds: gfx942, gfx950",
        machine(devices=MIXED, targets=("gfx942", "gfx950")),
    ),
    ("environment", "number of devices", "devices are available", machine(counts=(8,))),
    ("environment", "no /dev/kfd", "/dev/kfd cannot be opened", without("dev/kfd")),
    ("environment", "memory of a device", "Device memory", machine(devices=POOR)),
    ("environment", "CPU", "jax runs on cpu", answer(platforms=["cpu"], default="cpu")),
    ("environment", "CUDA", "belong to", answer(client="cuda 13000")),
    (
        "environment",
        "one device in jax",
        "jax sees 1 devices",
        answer(devices=[KERNEL]),
    ),
    (
        "environment",
        "other name",
        "reports the devices as gfx90a",
        answer(devices=[KERNEL, {**KERNEL, "capability": "gfx90a"}]),
    ),
    (
        "environment",
        "other code of the plugin",
        "has sha256",
        file(f"site/{PLUGIN}", "other code"),
    ),
    (
        "environment",
        "plugin not loaded",
        "was loaded",
        machine(loaded=["rocm/lib/libamdhip64.so.7"]),
    ),
    (
        "environment",
        "plugin of another site",
        "was loaded instead",
        machine(loaded=[f"other/{PLUGIN}"]),
    ),
    (
        "environment",
        "plugin of nobody",
        "was loaded instead",
        machine(loaded=["lib/xla_rocm_plugin.so"]),
    ),
    ("environment", "no HIP", "no libamdhip64.so", machine(loaded=[f"site/{PLUGIN}"])),
    (
        "environment",
        "ROCm 7.1",
        "ROCm 7.1.0 was loaded",
        file("rocm/.info/version", "7.1.0\n"),
    ),
    (
        "environment",
        "kernel on one device",
        "a kernel on device 1",
        kernels("", BAD_KERNEL),
    ),
    (
        "environment",
        "kernels on a broken machine",
        "a kernel on device",
        bad_kernels_of_broken_machine,
    ),
    (
        "environment",
        "memory with errors",
        "a kernel on device",
        kernels(BAD_MEMORY, BAD_MEMORY),
    ),
    (
        "environment",
        "devices without jax",
        "has no platform",
        no_start(NO_BACKEND, fit=False),
    ),
    ("environment", "no visible device", "has no platform", no_start(NO_DEVICE)),
    (
        "environment",
        "memory of the host",
        "has no platform",
        no_start("Cannot allocate memory", "import"),
    ),
    (
        "environment",
        "missing library of ROCm",
        "has no platform",
        no_start(f"ImportError: {BLAS}: {NO_FILE}", "import"),
    ),
    (
        "environment",
        "start with another ROCm",
        "ROCm 7.0.2 was loaded",
        no_start(UNDEFINED, rocm="7.0.2"),
    ),
    (
        "set-unusable",
        "no backend",
        "has no platform",
        no_start(NO_BACKEND, rocm="7.2.1"),
    ),
    (
        "set-unusable",
        "jax refused",
        "has no platform",
        no_start("RuntimeError: jaxlib is newer", "import", fit=False),
    ),
    (
        "set-unusable",
        "foreign library",
        "has no platform",
        no_start(f"ImportError: libx.so.1: {NO_FILE}", "import"),
    ),
    (
        "set-unusable",
        "own library",
        "has no platform",
        no_start(f"ImportError: {PLUGIN}: {NO_FILE}", fit=False),
    ),
    (
        "set-unusable",
        "kernels on all devices",
        "a kernel on device",
        kernels(BAD_KERNEL, BAD_KERNEL),
    ),
    (
        "preflight-note",
        "unknown ROCm",
        "nor the ROCm a version",
        without("rocm/.info/version"),
    ),
]

ROWS = [
    *_RESULT_ROWS,
    *_RUN_ROWS,
    *(
        Row(
            GATE,
            code,
            fault,
            MACHINE,
            edit,
            says,
        )
        for code, fault, says, edit in _MACHINE_EDITS
    ),
]
