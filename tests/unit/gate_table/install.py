"""Faults that the gate install reports, from the output of installers."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from core.errors import ProcessError
from core.model import Finding, WheelSet
from core.process import ProcessResult
from promotion.gates.common.gate_context import error
from promotion.gates.common.installers import Command
from promotion.gates.install.install_gate import _StagedIndex
from promotion.gates.install.installation import (
    InstallationError,
    InstallationSource,
    InstallationTest,
)
from promotion.gates.install.pair import _pair_findings
from promotion.storage.object_keys import StagedSet
from tests.support.wheel_sets import make_set, make_wheels
from tests.unit.gate_table.model import Row, Scene, folder_of

GATE = "install"
SENTENCE = "jax-rocm7-pjrt 0.10.2+rocm7.2.0 cannot use ROCm: no AMD GPU was found. Load the driver."
WARNING = f"{SENTENCE} JAX goes on without it; JAX_PLATFORMS=cpu silences this message."
INDEX = "http://127.0.0.1:1/simple/"


@functools.cache
def _wheel_set() -> WheelSet:
    with tempfile.TemporaryDirectory() as folder:
        wheels = make_wheels(Path(folder), pythons=("3.12",), extras="7.14.0")
        return make_set(wheels, rocm_version="7.14.0")


def _answer(**changes: Any) -> dict[str, Any]:
    """Return the answer of `probe.py` for a good installation on a machine without a GPU."""
    return {
        "problems": [],
        "platforms": ["cpu"],
        "refusal": "",
        "gpu": False,
        "installed": {},
        "reasons": [],
        **changes,
    }


ROCM = dict.fromkeys(
    ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx942"), "7.14.0"
)


def _with_rocm(**changes: Any) -> dict[str, Any]:
    """Return the answer of `probe.py` after the installation of ROCm."""
    return {**_answer(installed=ROCM), **changes}


@dataclass
class Installer:
    """An installer whose commands are the names of its steps, and the machine that runs them.

    Attributes:
        answer, warning: answer of `probe.py` and the warnings that it prints.
        rocm: answer of `probe.py` after the installation of ROCm.
        refusal: error of jax with JAX_PLATFORMS=rocm.
        chosen_files: project -> digests of the files that the resolver chose.
        fails: steps that fail.
        slow: whether the probe fails after its time.
        elsewhere: whether the index did not serve the wheels.
    """

    answer: dict[str, Any] = field(default_factory=_answer)
    rocm: dict[str, Any] = field(default_factory=_with_rocm)
    warning: str = WARNING
    refusal: str = SENTENCE
    chosen_files: dict[str, frozenset[str]] = field(
        default_factory=lambda: {
            wheel.name: frozenset({wheel.sha256}) for wheel in _wheel_set().wheels
        }
    )
    fails: tuple[str, ...] = ()
    slow: bool = False
    name: str = "pip"
    version: str = "1"
    pythons: tuple[str, ...] | None = None
    caches: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def chosen(self, _: str) -> Mapping[str, frozenset[str]]:
        """See `Installer`."""
        if "chosen" in self.fails:
            raise ValueError("The output has an unknown format")
        return self.chosen_files

    def __getattr__(self, step: str) -> Callable[..., Command]:
        if step.startswith("_"):
            raise AttributeError(step)

        def command(*_: object, **options: bool) -> Command:
            rocm = (step, options) == ("install_staged", {"locked": False})
            return Command(argv=("install_rocm" if rocm else step,), env={})

        return command

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], **_: object
    ) -> ProcessResult:
        """Run a step or `probe.py`."""
        probe = "-I" in argv
        if (argv[0] in self.fails) or (probe and "probe" in self.fails):
            raise ProcessError("`pip` failed with exit code 1.")
        if not probe:
            return ProcessResult(returncode=0)
        answer = self.answer
        if env["JAX_PLATFORMS"] == "rocm":
            answer = {**self.answer, "refusal": self.refusal}
        elif json.loads(argv[-1])["loader"]:
            answer = self.rocm
        return ProcessResult(
            returncode=0, stdout=json.dumps(answer), stderr=self.warning
        )


def _install(installer: Installer, folder: Path) -> Iterable[Finding]:
    wheel_set = _wheel_set()
    source = InstallationSource(
        index=INDEX, wheel_set=wheel_set, lock=None, extra="device-gfx942"
    )
    double: Any = installer
    test = InstallationTest(
        source, double, double, "3.12", folder_of(folder, "install")
    )
    seconds = -1.0 if installer.slow else 120.0
    with mock.patch("promotion.gates.install.installation._PROBE_SECONDS", seconds):
        return list(
            chain.from_iterable(
                check.findings for check in test.checks(Path("python3.12"))
            )
        )


def fails(*steps: str, **changes: Any) -> Callable[[Installer], object]:
    """Let steps fail."""
    return lambda _: Installer(fails=steps, **changes)


def answers(**changes: Any) -> Callable[[Installer], object]:
    """Change the answer of `probe.py`."""
    return lambda installer: installer.answer.update(changes)


def says(**changes: Any) -> Callable[[Installer], object]:
    """Change the warning or the error of the loader."""
    return lambda _: Installer(**changes)


def from_another_index(installer: Installer) -> None:
    installer.chosen_files["jaxlib"] = frozenset({"0" * 64})


INSTALLATION = Scene(lambda _: Installer(), _install)
_EDITS: list[tuple[str, str, str, Callable[[Installer], object]]] = [
    ("environment-failed", "no environment", "", fails("create")),
    ("install-failed", "wrong hash", "", fails("install_staged")),
    ("dependencies-failed", "no jax", "", fails("install_rest")),
    ("install-inconsistent", "pip check", "", fails("check")),
    ("probe-failed", "crash of an import", "", fails("probe")),
    ("import-hangs", "time limit", "", fails("probe", slow=True)),
    (
        "install-untrue",
        "other file",
        "",
        answers(problems=["jaxlib: a.so has sha256 0"]),
    ),
    ("resolution-failed", "no solution", "", fails("resolve")),
    ("resolution-failed", "unknown output", "", fails("chosen")),
    ("resolution-elsewhere", "other index", "", from_another_index),
    ("resolution-failed", "no such ROCm", "ROCm by pip", fails("install_rocm")),
    (
        "install-untrue",
        "other ROCm",
        "installs others",
        says(rocm=_with_rocm(installed={**ROCM, "rocm-sdk-core": "7.13.0"})),
    ),
    (
        "install-untrue",
        "more than ROCm",
        "others than",
        says(rocm=_with_rocm(installed={**ROCM, "rocm": "7.14.0"})),
    ),
    (
        "loader-misses-rocm",
        "ROCm not found",
        "librccl is missing",
        says(rocm=_with_rocm(reasons=["librccl is missing"])),
    ),
    ("loader-breaks-jax", "jax.devices", "", answers(refusal="RuntimeError: no")),
    ("loader-silent", "no warning", "", says(warning="")),
    (
        "loader-form",
        "warning twice",
        "one warning",
        says(warning=f"{WARNING}\n{WARNING}"),
    ),
    (
        "loader-form",
        "other beginning",
        "does not begin with",
        says(warning=WARNING.replace("0.10.2", "0.10.1")),
    ),
    (
        "loader-form",
        "other error",
        "differs from the warning",
        says(refusal="RuntimeError: no"),
    ),
]


# The index


@dataclass
class Downloads:
    """Share of a wheel that clients downloaded from the staged index."""

    share: float = 1.0


def _require(downloads: Downloads, _: Path) -> Iterable[Finding]:
    wheel_set = _wheel_set()
    staged = StagedSet(index="multi-arch", digest="a" * 64)
    wheel = wheel_set.wheels[0]
    index = _StagedIndex.__new__(_StagedIndex)  # without its server
    index._context = cast("Any", SimpleNamespace(wheel_set=wheel_set, staged=staged))
    sent = int(wheel.size * downloads.share)
    index._served = [
        cast("Any", SimpleNamespace(path=staged.file(wheel.filename), sent=sent))
    ]
    try:
        index.require([wheel.filename])
    except InstallationError as problem:
        return [error(problem.code, problem.message, "Read the output.")]
    return []


DOWNLOADS = Scene(lambda _: Downloads(), _require)


# Wrong pairs


@dataclass
class Pair:
    """The answer of an installer to a wheel of the set with a jaxlib that does not fit."""

    returncode: int = 1
    text: str = "ERROR: ResolutionImpossible: for help visit"


def _resolve_pair(pair: Pair, _: Path) -> Iterable[Finding]:
    wheel = next(
        wheel for wheel in _wheel_set().wheels if wheel.name == "jax-rocm7-plugin"
    )
    return _pair_findings(
        wheel, "0.11.0", ProcessResult(returncode=pair.returncode, stderr=pair.text)
    )


PAIR = Scene(lambda _: Pair(), _resolve_pair)

ROWS = [
    *(
        Row(
            GATE,
            code,
            fault,
            INSTALLATION,
            edit,
            phrase,
        )
        for code, fault, phrase, edit in _EDITS
    ),
    Row(
        GATE,
        "install-elsewhere",
        "half of a wheel",
        DOWNLOADS,
        lambda _: Downloads(share=0.5),
    ),
    Row(GATE, "pair-accepted", "installed", PAIR, lambda _: Pair(returncode=0)),
    Row(
        GATE,
        "pair-untried",
        "other error",
        PAIR,
        lambda _: Pair(text="error: no such file"),
    ),
]
