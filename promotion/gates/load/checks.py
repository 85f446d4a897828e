"""Checks of the load gate for one Python: probes of each library, and the findings from their answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from core.model import Finding, Wheel
from promotion.gates.common.gate import Check, GateContext, error
from promotion.gates.common.requirements import wheels_for
from promotion.gates.common.site import LOADER_SENTENCE, NO_DEVICE, RocmLibraries, Site
from promotion.gates.load import golden
from promotion.gates.load.child_probe import Probe, run_probe
from wheelkit.archive.reader import WheelArchive

PLUGIN = re.compile(r"(jax_rocm\d+_plugin)/(\w+)(?:\.[\w-]+)*\.so")
PJRT = re.compile(r"jax_plugins/(xla_rocm\d+)/(xla_rocm_plugin)\.so")
"""Paths of extension modules, and of XLA's plugin: package, module."""

_API = re.compile(r"PJRT plugin has PJRT API version (\d+\.\d+)\. The framework PJRT API version is (\d+\.\d+)")
"""Log message of jaxlib after it loaded a plugin."""
_PLATFORM = "ROCM"
_GOLDEN_PARTS = {"module": "plugin", "api": "pjrt", "handlers": "pjrt"}
"""Probe function -> part whose golden list contains the answer."""
_MOST_PROCESSES = 4
_ADD_FILE = "Build the wheel with this file, which its recipe lists."
_FIX_IMPORT = "Read the error of Python and fix the file, or the version of jaxlib that the set pins."
_WITH_ROCM = "Build the wheel with the ROCm that it will run with, or add the manifest of that ROCm to the set."
_WITH_NEEDS = "Compare its needs with ROCm's libraries; `ci_build inspect` shows both."

Answer = Mapping[str, Any]
AnswerCheck = Callable[[Answer, str], Iterable[Finding]]
"""Yields findings from a probe's answer and standard error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelLibrary:
    """One ELF file of a wheel.

    Attributes:
        path: path inside the wheel and below site-packages.
    """

    wheel: Wheel
    path: str

    def __str__(self) -> str:
        return f"{self.wheel.filename}: {self.path}"


class LoadChecks:
    """Probes of a set in one Python with one ROCm.

    Attributes:
        registered: part -> registered names, in the form of its golden list.
        unseen: parts with a probe that failed.
    """

    def __init__(self, context: GateContext, site: Site, libraries: RocmLibraries) -> None:
        self.context, self.site, self.rocm = context, site, libraries
        # GPUs are hidden, since the checks expect the errors of a machine without one.
        self.env = {**site.env, **libraries.env, "HIP_VISIBLE_DEVICES": "-1"}
        self.libraries = tuple(_libraries(context, site.version))
        self.registered: dict[str, dict[str, dict[str, str | int]]] = {part: {} for part in golden.PARTS}
        self.unseen: set[str] = set()

    def run(self) -> Iterator[Check]:
        """Run the probes and yield all checks except the comparison with the golden lists."""
        yield Check(name=f"Python {self.site.version}: wheels", findings=tuple(self._missing_wheels()))
        probes = list(self._probes())
        with ThreadPoolExecutor(min(_MOST_PROCESSES, os.cpu_count() or 1)) as pool:
            answers = list(pool.map(lambda item: run_probe(self.context.runner, self.site, self.env, item[0]), probes))
        for (probe, check_answer), answer in zip(probes, answers, strict=True):
            if probe.function in _GOLDEN_PARTS and (answer.findings or "error" in answer.values):
                self.unseen.add(_GOLDEN_PARTS[probe.function])
            findings = answer.findings or tuple(check_answer(answer.values, answer.stderr))
            name = f"Python {self.site.version}: {probe.name}"
            yield Check(name=name, findings=findings, details={"peak_kib": answer.values.get("peak_kib", 0)})

    def _missing_wheels(self) -> Iterator[Finding]:
        for what, pattern in (("XLA's plugin (xla_rocm_plugin.so)", PJRT), ("extension modules", PLUGIN)):
            if not any(pattern.fullmatch(library.path) for library in self.libraries):
                names = ", ".join(wheel.filename for wheel in wheels_for(self.context.wheel_set, self.site.version))
                text = f"No wheel for Python {self.site.version} has {what}; the wheels for it are {names or 'none'}."
                yield error("wheel-missing", text, "Check the tags of the wheels and build the missing one.")

    def _probes(self) -> Iterator[tuple[Probe, AnswerCheck]]:
        """Yield the probes, each with the function that checks its answer."""
        yield from self._load_probes()
        extensions = [(library, found) for library in self.libraries if (found := PLUGIN.fullmatch(library.path))]
        for library, found in extensions:
            yield (
                _library_probe("module", f"{found[1]}.{found[2]}", "import", library),
                self._check_imported(library, found[2]),
            )
        for package in dict.fromkeys(found[1] for _, found in extensions):
            yield (
                Probe(function="package", arguments=(package,), name=f"import {package}"),
                self._check_package(package),
            )
        for library in self.libraries:
            if found := PJRT.fullmatch(library.path):
                yield from self._plugin_probes(library, f"jax_plugins.{found[1]}")
        yield (
            Probe(function="handlers", arguments=(_PLATFORM,), name="handlers that jax registers"),
            self._check_handlers,
        )

    def _load_probes(self) -> Iterator[tuple[Probe, AnswerCheck]]:
        """Load each library in its own process; those of wheels without ROCm, such as jaxlib, share one."""
        for wheel, libraries in groupby(self.libraries, key=lambda library: library.wheel):
            group = list(libraries)
            if any(PLUGIN.fullmatch(library.path) or PJRT.fullmatch(library.path) for library in group):
                for library in group:
                    yield (
                        _library_probe("dlopen", self._path(library), "dlopen", library),
                        self._check_loaded([library]),
                    )
            else:
                arguments = tuple(map(self._path, group))
                name = f"dlopen {wheel.filename}: {len(group)} libraries"
                yield Probe(function="dlopen", arguments=arguments, name=name), self._check_loaded(group)

    def _plugin_probes(self, library: WheelLibrary, package: str) -> Iterator[tuple[Probe, AnswerCheck]]:
        path = self._path(library)
        ours = Path(path).with_name("build_info.json").exists()
        yield (
            Probe(function="package", arguments=(package,), name=f"import {package}"),
            self._check_package(package, library),
        )
        yield _library_probe("api", path, "C API of", library), self._check_api
        yield _library_probe("initialize", path, "jax starts", library), self._check_started(library)
        yield (
            Probe(function="loader", arguments=("rocm",), name=f"loader of {package}"),
            _check_loader(library, ours=ours),
        )

    def _path(self, library: WheelLibrary) -> str:
        return str(self.site.folder / library.path)

    def _check_loaded(self, libraries: Sequence[WheelLibrary]) -> AnswerCheck:
        def check_answer(values: Answer, _stderr: str) -> Iterator[Finding]:
            if "error" in values:
                library = next((lib for lib in libraries if lib.path in values["error"]), libraries[0])
                text = f"{library} cannot be loaded with {self.rocm.kind}: {_error_text(values, self.site)}."
                yield error("load-failed", text, _WITH_NEEDS if self.rocm.weak else _WITH_ROCM, member=library.path)

        return check_answer

    def _check_imported(self, library: WheelLibrary, module: str) -> AnswerCheck:
        def check_answer(values: Answer, _stderr: str) -> Iterator[Finding]:
            if "error" in values:
                text = f"{library} cannot be imported by Python {self.site.version}: {_error_text(values, self.site)}."
                yield error("import-failed", text, "Build the module for this Python and ROCm.", member=library.path)
                return
            for table, rows in values["tables"].items():
                self.registered["plugin"][f"{module}.{table}"] = {
                    name: " ".join(stages) for name, stages in rows.items()
                }

        return check_answer

    def _check_package(self, package: str, plugin: WheelLibrary | None = None) -> AnswerCheck:
        path = package.replace(".", "/")

        def check_answer(values: Answer, _stderr: str) -> Iterator[Finding]:
            wheel = plugin or next(lib for lib in self.libraries if lib.path.startswith(f"{path}/"))
            if "error" in values:
                missing = re.search(r"No module named '([\w.]+)'", values["error"])
                member = f"{missing[1].replace('.', '/')}.py" if missing else f"{path}/__init__.py"
                what, remedy = ("is missing", _ADD_FILE) if missing else ("cannot be imported", _FIX_IMPORT)
                text = f"{wheel.wheel.filename}: {member} {what}: {_error_text(values, self.site)}."
                yield error("package-broken", text, remedy, member=member)
            elif plugin is not None and not values["entry_points"]:
                project, version, *_ = plugin.wheel.filename.split("-")
                member = f"{project}-{version}.dist-info/entry_points.txt"
                text = f"{wheel.wheel.filename}: {member} does not name {package}, so jax cannot find it."
                yield error("entry-point-missing", text, "Add it to the group jax_plugins.", member=member)

        return check_answer

    def _check_api(self, values: Answer, _stderr: str) -> Iterator[Finding]:
        if "error" in values:
            return  # reported by the check that loads the library
        version = ".".join(map(str, values["version"]))
        self.registered["pjrt"]["api"] = {"functions": values["functions"], "version": version}
        self.registered["pjrt"]["extensions"] = {f"{kind:02}": size for kind, size in values["extensions"]}
        yield from ()

    def _check_started(self, library: WheelLibrary) -> AnswerCheck:
        def check_answer(values: Answer, stderr: str) -> Iterator[Finding]:
            if versions := _API.search(stderr):
                if versions[1] != versions[2]:
                    jaxlib = _jaxlib(self.context, self.site)
                    text = f"{library} has PJRT API {versions[1]}, but {jaxlib} has {versions[2]}."
                    remedy = "Add the jaxlib that the plugin was built with to the set, and pin it in Requires-Dist."
                    yield error("pjrt-api-skew", text, remedy, member=library.path)
            else:
                text = f"The PJRT API versions of {library} and jaxlib are unknown, since jaxlib did not load it."
                yield error(
                    "pjrt-api-unknown", text, "Fix the findings of the other checks first.", member=library.path
                )
            message = values.get("error", f"it found {values.get('devices')} devices")
            if not NO_DEVICE.fullmatch(message):
                problem = _error_text(values, self.site)
                text = f"{library} should end in 'No visible GPU devices' without a GPU, but: {problem}."
                remedy = "Read the error of XLA; it must start with this ROCm."
                yield error("start-failed", text, remedy, member=library.path)

        return check_answer

    def _check_handlers(self, values: Answer, _stderr: str) -> Iterator[Finding]:
        if "error" in values:
            text = (
                f"jax cannot be imported with this set by Python {self.site.version}: {_error_text(values, self.site)}."
            )
            yield error("jax-failed", text, "Check the versions of jax and jaxlib that the set pins.")
            return
        self.registered["pjrt"][f"handlers.{_PLATFORM}"] = values["handlers"]


def _package_probe(package: str) -> Probe:
    return Probe(function="package", arguments=(package,), name=f"import {package}")


def _library_probe(question: str, about: str, verb: str, library: WheelLibrary) -> Probe:
    return Probe(function=question, arguments=(about,), name=f"{verb} {library}", member=library.path)


def _libraries(context: GateContext, version: str) -> Iterator[WheelLibrary]:
    """Yield every shared library in the wheels for one Python."""
    for wheel in wheels_for(context.wheel_set, version):
        with WheelArchive(context.wheel(wheel)) as archive:
            names = [member.name for member in archive.members]
        for name in names:
            if re.search(r"\.so(?:\.\d+)*$", name):
                yield WheelLibrary(wheel=wheel, path=name)


def _check_loader(library: WheelLibrary, *, ours: bool) -> AnswerCheck:
    """Check that our loader gives the reason for missing GPUs; loaders of others may print anything."""

    def check_answer(values: Answer, _stderr: str) -> Iterator[Finding]:
        message = values.get("error", "")
        if ours and not values.get("devices") and not (LOADER_SENTENCE.search(message) or NO_DEVICE.search(message)):
            text = f"The loader beside {library} gives no reason why it cannot use ROCm, but: {message or 'nothing'}."
            yield error("loader-silent", text, "Build the wheel with the loader in pjrt/payload.", member=library.path)

    return check_answer


def _jaxlib(context: GateContext, site: Site) -> str:
    found = [wheel.filename for wheel in wheels_for(context.wheel_set, site.version) if wheel.name == "jaxlib"]
    return found[0] if found else "the jaxlib that jax requires"


def _error_text(values: Answer, site: Site) -> str:
    """Return the error of an answer without the directories of this run."""
    message = str(values.get("error", f"it found {values.get('devices')} devices")).replace(f"{site.folder}/", "")
    return " ".join(message.split()).removesuffix(".")[:500]
