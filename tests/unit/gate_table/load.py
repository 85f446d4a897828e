"""Faults that the gate load reports, from the answers of its child processes."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

from core.errors import GateError, ProcessError
from core.model import Finding, to_json
from core.process import ProcessResult
from promotion.gates.common.gate_context import GateContext
from promotion.gates.common.gate_site import TREE, RocmLibraries, Site
from promotion.gates.load import golden
from promotion.gates.load.child_probe import ProbeResult
from promotion.gates.load.load_gate import make_gate
from promotion.gates.load.machines import _LOCATIONS, Machine, check_machines
from promotion.gates.load.python_packages import check_package
from promotion.gates.load.registered import kernels_digest, registration_findings
from tests.support.gating import gate_context, stage_wheels
from tests.support.host_code import HostCode, kernel_bundle
from tests.support.sets import wheel_set
from tests.support.wheel_sets import PJRT_LIBRARY, SetWheel, make_wheels
from tests.unit.gate_table.model import Row, Scene, folder_of
from wheelkit.gpu.bundle_reader import find_bundles

GATE = "load"
NO_DEVICE = "FAILED_PRECONDITION: No visible GPU devices."


# The whole gate, with the answers of its child processes


@dataclass(frozen=True)
class Reply:
    """The end of a child process."""

    values: Mapping[str, Any] = field(default_factory=dict)
    stderr: str = ""
    returncode: int = 0
    hangs: bool = False


def _replies() -> dict[str, Reply]:
    """Return probe function -> reply for good wheels."""
    versions = (
        "PJRT plugin has PJRT API version 0.90. The framework PJRT API version is 0.90"
    )
    metadata = {"version": "0.10.2+rocm7.2.0", "requires": []}
    package = {
        "entry_points": ["x"],
        "version": metadata["version"],
        "info": {},
        "metadata": metadata,
        "modules": {},
    }
    return {
        "dlopen": Reply(),
        "module": Reply({"tables": {"registrations": {"handler": "execute"}}}),
        "api": Reply({"version": [0, 90], "functions": 100, "extensions": [[1, 8]]}),
        "initialize": Reply({"error": NO_DEVICE}, stderr=versions),
        "handlers": Reply({"handlers": {"handler": 1}}),
        "package": Reply(package),
        "modules": Reply({"modules": {}}),
    }


@dataclass
class Children:
    """The replies of child processes, and what the gate finds on the machine."""

    replies: dict[str, Reply] = field(default_factory=_replies)
    wheels: Sequence[SetWheel] = ()
    golden: bool = True
    no_site: bool = False

    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        """Answer as the child process of a probe."""
        function = next(word for word in argv if word in self.replies)
        reply = self.replies[function]
        if reply.hangs:
            raise ProcessError("it ran longer than 180 s.")
        return ProcessResult(
            returncode=reply.returncode,
            stdout=f"\n{json.dumps(reply.values)}\n",
            stderr=reply.stderr,
        )

    def change(self, function: str, **changes: Any) -> None:
        """Change the reply of a probe function."""
        self.replies[function] = replace(self.replies[function], **changes)


def _children(folder: Path) -> Children:
    return Children(wheels=make_wheels(folder_of(folder, "w"), pythons=("3.12",)))


_REGISTERED: dict[str, golden.Lists] = {
    "plugin": {
        f"{module}.registrations": {"handler": "execute"}
        for module in ("_linalg", "_prng", "_solver")
    },
    "pjrt": {
        "api": {"functions": 100, "version": "0.90"},
        "extensions": {"01": 8},
        "handlers.ROCM": {"handler": 1},
    },
}


def _run_gate(children: Children, folder: Path) -> Iterable[Finding]:
    root = folder_of(folder, "golden")
    for part, lists in _REGISTERED.items() if children.golden else ():
        path = golden.golden_file(root, part, "0.10.2")
        path.parent.mkdir(parents=True)
        path.write_text(golden.dump(lists, part=part, jax_version="0.10.2"))
    packages = folder_of(folder, "site")
    for made in children.wheels:
        zipfile.ZipFile(io.BytesIO(made.data)).extractall(packages)
    request = {"payload": "source"}
    bucket, staged = stage_wheels(folder, children.wheels, request=request)
    context = gate_context(folder, bucket, staged, children)

    def make_site(*_: object) -> Site:
        if children.no_site:
            raise GateError("The environment cannot be made.")
        env = {"PYTHONPYCACHEPREFIX": str(folder)}
        return Site(python=Path("python3.12"), version="3.12", folder=packages, env=env)

    env = {"ROCM_PATH": "/rocm"}
    libraries = RocmLibraries(weak=False, kind=TREE, env=env)
    with (
        mock.patch("promotion.gates.load.load_gate.make_site", make_site),
        mock.patch(
            "promotion.gates.load.load_gate.rocm_libraries", return_value=libraries
        ),
        mock.patch.object(
            GateContext, "pythons", return_value={"3.12": Path("python3.12")}
        ),
    ):
        checks = list(make_gate(root=root).run(context))
    return chain.from_iterable(check.findings for check in checks)


def child(function: str, **changes: Any) -> Callable[[Children], object]:
    """Change the reply of a probe function."""
    return lambda children: children.change(function, **changes)


def other_handler(children: Children) -> None:
    tables = {"tables": {"registrations": {"other": "execute"}}}
    children.change("module", values=tables)


SKEW = "PJRT plugin has PJRT API version 0.91. The framework PJRT API version is 0.90"
CHILDREN = Scene(_children, _run_gate)
_CHILD_EDITS: list[tuple[str, str, Callable[[Children], object]]] = [
    (
        "load-failed",
        "undefined symbol",
        child("dlopen", values={"error": f"{PJRT_LIBRARY}: undefined symbol: x"}),
    ),
    (
        "load-flags-wrong",
        "denormals",
        child("dlopen", values={"flushes": f"/site/{PJRT_LIBRARY}"}),
    ),
    (
        "import-failed",
        "wrong Python",
        child("module", values={"error": "dynamic module does not define x"}),
    ),
    ("pjrt-api-unknown", "no log message", child("initialize", stderr="")),
    ("pjrt-api-skew", "0.91", child("initialize", stderr=SKEW)),
    (
        "start-failed",
        "other error",
        child("initialize", values={"error": "INTERNAL: no"}),
    ),
    ("start-failed", "devices", child("initialize", values={"devices": 8})),
    (
        "jax-failed",
        "import",
        child("handlers", values={"error": "cannot import name x"}),
    ),
    ("look-died", "signal", child("module", returncode=-11)),
    ("look-died", "no answer", child("module", values=[])),
    ("look-hangs", "time limit", child("module", hangs=True)),
    ("golden-differs", "other handler", other_handler),
    (
        "golden-differs",
        "handlers of jax",
        child("handlers", values={"handlers": {"other": 1}}),
    ),
    ("golden-missing", "no lists", lambda children: setattr(children, "golden", False)),
    (
        "site-failed",
        "no environment",
        lambda children: setattr(children, "no_site", True),
    ),
]


# Packages

PACKAGE = "jax_plugins.xla_rocm7"
WHEEL = next(wheel for wheel in wheel_set().wheels if wheel.name == "jax-rocm7-pjrt")


def _package(_: Path) -> dict[str, Any]:
    """Return the answer of the probe `package` for a good pjrt wheel."""
    return {
        "entry_points": ["xla_rocm7"],
        "version": WHEEL.version,
        "info": {
            "version": WHEEL.version,
            "requires_jaxlib": ">=0.10.2,<0.10.3",
            "jax_version": "0.10.2",
            "rocm_version": "7.2.0",
            "members": [to_json(member) for member in WHEEL.members],
        },
        "metadata": {"version": WHEEL.version, "requires": ["jaxlib<0.10.3, >=0.10.2"]},
        "modules": {PACKAGE: ""},
    }


def _check_package(values: dict[str, Any], _: Path) -> Iterable[Finding]:
    made = wheel_set(wheels=(WHEEL,), rocm_version="7.2.0")
    return check_package(WHEEL, PACKAGE, made, ProbeResult(values=values))


def told(**values: Any) -> Callable[[dict[str, Any]], object]:
    """Change the answer."""
    return lambda answer: answer.update(values)


def info(**values: Any) -> Callable[[dict[str, Any]], object]:
    """Change values of build_info.json."""
    return lambda answer: answer["info"].update(values)


MEMBER = to_json(WHEEL.members[0])
_PACKAGE = Scene(_package, _check_package)
_PACKAGE_EDITS: list[tuple[str, str, str, Callable[[dict[str, Any]], object]]] = [
    (
        "package-broken",
        "missing module",
        "is missing",
        told(error=f"No module named '{PACKAGE}.version'"),
    ),
    (
        "package-broken",
        "error of the package",
        "cannot be imported",
        told(error="NameError: x"),
    ),
    (
        "package-broken",
        "error of a module",
        "cannot be imported",
        told(modules={PACKAGE: "NameError: x"}),
    ),
    ("entry-point-missing", "none", "", told(entry_points=[])),
    ("value-untrue", "version.py", "__version__", told(version="0.10.1")),
    ("value-untrue", "version", "build_info.json version", info(version="0.10.1")),
    (
        "value-untrue",
        "requires_jaxlib",
        "requires_jaxlib",
        info(requires_jaxlib=">=0.12"),
    ),
    ("value-untrue", "jax_version", "jax_version", info(jax_version="0.12.0")),
    ("value-untrue", "rocm_version", "rocm_version", info(rocm_version="7.14.0")),
    (
        "value-untrue",
        "targets of a library",
        "targets of",
        info(members=[{**MEMBER, "targets": ["gfx950"]}]),
    ),
    ("value-untrue", "unlisted library", "sha256 of", info(members=[])),
    (
        "value-untrue",
        "additional library",
        "member of",
        info(members=[MEMBER, {**MEMBER, "path": "x.so"}]),
    ),
]


# The loader on simulated machines


@dataclass
class Started:
    """A simulated machine, and the answer of jax on it."""

    machine: Machine
    answer: dict[str, Any]


def _machine(**changes: Any) -> Machine:
    return Machine(
        **{"about": "a machine", "gpus": ("gfx942",), "rocm": Path("/rocm"), **changes}
    )


def _check_machine(started: Started, _: Path) -> Iterable[Finding]:
    row = started.machine
    return check_machines(
        f"pjrt.whl: {PJRT_LIBRARY}", [row], {row.about: started.answer}
    )


SENTENCE = (
    "jax-rocm7-pjrt 0.10.2 cannot use ROCm: no AMD GPU was found (looked at /dev/kfd)."
    " Load the driver."
)
POOR = "GPU gfx1100 cannot run this wheel; hide such GPUs with HIP_VISIBLE_DEVICES."
_STARTS = {"error": NO_DEVICE, "preferred": "rocm"}
_SEVERAL = _machine(gpus=("gfx942", "gfx1100"), unusable=("gfx1100",))

WITH_GPU = Scene(lambda _: Started(_machine(), dict(_STARTS)), _check_machine)
WITHOUT_GPU = Scene(
    lambda _: Started(_machine(refusal=("/dev/kfd",)), {"error": SENTENCE}),
    _check_machine,
)
SEVERAL = Scene(
    lambda _: Started(_SEVERAL, {**_STARTS, "warnings": [POOR]}), _check_machine
)
ON_CPU = Scene(
    lambda _: Started(_machine(platforms="cpu"), {"devices": 1}), _check_machine
)


def _with_bitcode(folder: Path) -> Started:
    """Return a machine whose ROCm has bitcode and a linker."""
    rocm = folder / "rocm"
    variables = {}
    for name, file in _LOCATIONS.items():
        (rocm / file).parent.mkdir(parents=True, exist_ok=True)
        (rocm / file).touch()
        variables[name] = str((rocm / file).parent)
    return Started(_machine(rocm=rocm), {**_STARTS, "variables": variables})


WITH_BITCODE = Scene(_with_bitcode, _check_machine)


def answered(**values: Any) -> Callable[[Started], object]:
    """Change the answer of jax."""
    return lambda started: started.answer.update(values)


_MACHINE_EDITS: list[tuple[str, str, Scene, Callable[[Started], object]]] = [
    (
        "refuses a usable GPU",
        "should start ROCm",
        WITH_GPU,
        answered(error=f"RuntimeError: {SENTENCE}"),
    ),
    (
        "fails",
        "should start ROCm",
        WITH_GPU,
        answered(error="Unknown backend rocm", log=["failed (NameError: x)"]),
    ),
    ("ROCm below the CPU", "should prefer ROCm", WITH_GPU, answered(preferred="cpu")),
    (
        "no folder of bitcode",
        "should set JAX_ROCM_PLUGIN_INTERNAL_",
        WITH_BITCODE,
        answered(variables={}),
    ),
    ("warns", "should not warn", WITH_GPU, answered(warnings=["parts will not work"])),
    ("dies", "signal SIGSEGV", WITH_GPU, answered(died=-11)),
    ("accepts every jaxlib", "should refuse jaxlib", WITHOUT_GPU, answered(skew="")),
    ("no reason", "should name the reason", WITHOUT_GPU, answered(error=NO_DEVICE)),
    (
        "other reason",
        "the reason should name",
        WITHOUT_GPU,
        answered(error=SENTENCE.replace("/dev/kfd", "it")),
    ),
    (
        "no warning of a foreign GPU",
        "should warn of gfx1100 only",
        SEVERAL,
        answered(warnings=[]),
    ),
    (
        "warning of a usable GPU",
        "should warn of gfx1100 only",
        SEVERAL,
        answered(warnings=[POOR, "GPU gfx942"]),
    ),
    (
        "warns with JAX_PLATFORMS=cpu",
        "should not warn",
        ON_CPU,
        answered(warnings=["no GPU"]),
    ),
    ("no CPU", "should have devices", ON_CPU, answered(devices=0)),
]


# Device code that libraries register

NAMES = (("_Z3addv", "_Z3mulv"), ("_Z3divv",))
MAGIC = 0x48495046


@dataclass
class Registered:
    """Magic, version and kernels of each bundle that the constructors of a library registered.

    Form of its code.
    """

    bundles: list[tuple[int, int, Sequence[str]]] = field(
        default_factory=lambda: [(MAGIC, 1, names) for names in NAMES]
    )
    form: dict[str, Any] = field(default_factory=dict)


def check_registered(registered: Registered, folder: Path) -> Iterable[Finding]:
    """Compare the registered bundles with those of the library."""
    path = folder / "lib.so"
    held = [kernel_bundle({"gfx942": names}) for names in NAMES]
    path.write_bytes(
        HostCode([list(names) for names in NAMES], **registered.form).library(
            folder, held
        )
    )
    seen = {}
    for found, (magic, version, names) in zip(
        find_bundles(path), registered.bundles, strict=False
    ):
        seen[hex(found.address)] = [
            magic,
            version,
            len(names),
            kernels_digest(frozenset(names)),
        ]
    return registration_findings("x.whl: lib.so", "lib.so", path, seen)


def bundle(
    magic: int = MAGIC, names: Sequence[str] = NAMES[1]
) -> Callable[[Registered], object]:
    """Change the registration of the second bundle."""

    def edit(registered: Registered) -> None:
        registered.bundles[1] = (magic, 1, names)

    return edit


_REGISTERED_SCENE = Scene(lambda _: Registered(), check_registered)
_REGISTERED_EDITS: list[tuple[str, str, Callable[[Registered], object]]] = [
    (
        "registration-missing",
        "second bundle",
        lambda registered: registered.bundles.pop(),
    ),
    ("registration-missing", "magic of the wrapper", bundle(magic=MAGIC + 1)),
    ("registration-differs", "other kernels", bundle(names=["_Z3subv"])),
    (
        "registration-differs",
        "constructor that cannot be read",
        lambda _: Registered(form={"silent": [1]}),
    ),
]

ROWS = [
    *(Row(GATE, code, fault, CHILDREN, edit) for code, fault, edit in _CHILD_EDITS),
    *(
        Row(
            GATE,
            code,
            fault,
            _PACKAGE,
            edit,
            says,
        )
        for code, fault, says, edit in _PACKAGE_EDITS
    ),
    *(
        Row(
            GATE,
            "loader-wrong",
            fault,
            scene,
            edit,
            says,
        )
        for fault, says, scene, edit in _MACHINE_EDITS
    ),
    *(
        Row(GATE, code, fault, _REGISTERED_SCENE, edit)
        for code, fault, edit in _REGISTERED_EDITS
    ),
]
