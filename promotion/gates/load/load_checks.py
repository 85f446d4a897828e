"""Checks of the load gate for one Python.

Probes of each library, and the findings from their answers.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath

from core.frozen import frozen
from core.model import Finding, Wheel
from promotion.gates.common.gate_context import Check, GateContext, error
from promotion.gates.common.gate_site import NO_DEVICE, RocmLibraries, Site
from promotion.gates.common.set_requirements import wheels_for
from promotion.gates.load import golden
from promotion.gates.load.child_probe import (
    AnswerCheck,
    Probe,
    ProbeResult,
    run_probe,
    shortened,
)
from promotion.gates.load.machines import (
    MACHINE_CHILD,
    Machine,
    as_json,
    check_machines,
    machines,
    machines_of_majors,
)
from promotion.gates.load.python_packages import (
    check_modules,
    check_package,
    modules_of,
)
from promotion.gates.load.registered import registration_findings
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import REPORT_PUBLISHED, finding

PLUGIN = re.compile(r"(jax_rocm\d+_plugin)/(\w+)(?:\.[\w-]+)*\.so")
PJRT = re.compile(r"jax_plugins/(xla_rocm\d+)/(xla_rocm_plugin)\.so")
"""Paths of extension modules and of XLA's plugin, with the groups package and module."""

_API = re.compile(
    r"PJRT plugin has PJRT API version (\d+\.\d+)\. The framework PJRT API version is"
    r" (\d+\.\d+)"
)
"""Log message of jaxlib after it loaded a plugin."""
_PLATFORM = "ROCM"
_REGISTERING = ("module", "api", "handlers")
"""Probe functions whose answers the golden lists contain."""
_LEVELS = {"dlopen": 0, "initialize": 2, "handlers": 2, "machines": 3}
"""Probe function -> level; 1 for others. Failures of a level explain those of the next."""
_EXPLAINED = "an earlier check of the wheels failed"
_REMEDY_FOR_USERS = ("load-failed", "pjrt-api-unknown", "pjrt-api-skew")
"""Codes whose remedy does not need another build of the wheel."""
_MOST_PROCESSES = 4
_WITH_ROCM = (
    "Build or adopt the wheel with the --rocm-version that it will run with, or add"
    " that ROCm's manifest."
)
_WITH_NEEDS = (
    "Compare the library's needs with ROCm's libraries; `ci_build inspect` shows both."
)


@frozen
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
        complete: whether all probes of registrations succeeded.
    """

    def __init__(
        self, context: GateContext, site: Site, libraries: RocmLibraries
    ) -> None:
        self.context = context
        self.site = site
        self.rocm = libraries
        # GPUs are hidden, since the checks expect the errors of a machine without one.
        self.env = {**site.env, **libraries.env, "HIP_VISIBLE_DEVICES": "-1"}
        self.wheels = wheels_for(context.wheel_set, site.version)
        self._names: dict[str, list[str]] = {}
        self.libraries: list[WheelLibrary] = []
        for wheel in self.wheels:
            with WheelArchive(context.wheel(wheel)) as archive:
                names = [member.name for member in archive.members]
            self._names[wheel.filename] = names
            for name in names:
                if re.search(r"\.so(?:\.\d+)*$", name):
                    self.libraries.append(WheelLibrary(wheel=wheel, path=name))
        self.registered: dict[str, dict[str, dict[str, str | int]]] = {
            part: {} for part in golden.PARTS
        }
        self.complete = True

    def run(self) -> Iterator[Check]:
        """Run the probes and yield all checks except the comparison with the golden lists."""
        python = f"Python {self.site.version}"
        probes = list(self._probes())
        with ThreadPoolExecutor(min(_MOST_PROCESSES, os.cpu_count() or 1)) as pool:
            run = partial(run_probe, self.context.runner, self.site, self.env)
            answers = list(pool.map(run, probes))
        failed: list[tuple[int, str]] = []
        pairs = sorted(
            zip(probes, answers, strict=True), key=lambda pair: _level(pair[0])
        )
        for probe, answer in pairs:
            name = f"{python}: {probe.name}"
            if probe.function in _REGISTERING and (
                answer.findings or "error" in answer.values
            ):
                self.complete = False
            if _is_explained(probe, failed):
                yield Check(name=name, skipped=_EXPLAINED)
                continue
            found = answer.findings or tuple(probe.check(answer))
            if found:
                failed.append((_level(probe), probe.wheel))
            yield Check(name=name, findings=tuple(map(self._for_users, found)))

    def _for_users(self, item: Finding) -> Finding:
        """Replace remedies for builders of wheels if the set has the published wheel."""
        if item.code in _REMEDY_FOR_USERS:
            return item
        for wheel in self.wheels:
            if wheel.as_published and wheel.filename in item.message:
                return replace(item, remedy=REPORT_PUBLISHED)
        return item

    def _probes(self) -> Iterator[Probe]:
        """Yield the probes, the longest one first and then those that load libraries.

        Each library of a plugin or PJRT wheel is loaded in its own process.
        """
        started = []
        for library in self.libraries:
            if PJRT.fullmatch(library.path):
                started.append(library)
                if _info_path(library) in self._names[library.wheel.filename]:
                    yield from self._machine_probes(library)
        for wheel, libraries in groupby(
            self.libraries, key=lambda library: library.wheel
        ):
            group = list(libraries)
            paths = [library.path for library in group]
            if any(PLUGIN.fullmatch(path) or PJRT.fullmatch(path) for path in paths):
                for library in group:
                    check = partial(self._check_loaded, [library])
                    yield _library_probe(
                        "dlopen", self._path(library), "dlopen", library, check
                    )
            else:
                # The libraries of wheels without ROCm, such as jaxlib, share a process.
                yield Probe(
                    function="dlopen",
                    wheel=wheel.filename,
                    arguments=tuple(map(self._path, group)),
                    name=f"dlopen {wheel.filename}: {len(group)} libraries",
                    check=partial(self._check_loaded, group),
                )
        for library in self.libraries:
            if modules := PLUGIN.fullmatch(library.path):
                check = partial(self._check_imported, library, modules[2])
                name = f"{modules[1]}.{modules[2]}"
                yield _library_probe("module", name, "import", library, check)
        for library in started:
            path = self._path(library)
            check = partial(self._check_started, library)
            yield _library_probe("api", path, "C API of", library, self._check_api)
            yield _library_probe("initialize", path, "jax starts", library, check)
        yield Probe(
            function="handlers",
            arguments=(_PLATFORM,),
            name="handlers that jax registers",
            check=self._check_handlers,
        )
        for wheel in self.wheels:
            yield from self._python_probes(wheel)

    def _python_probes(self, wheel: Wheel) -> Iterator[Probe]:
        """Yield the probe of the Python modules in a wheel.

        Jaxlib as published is not this project's.
        """
        names = self._names[wheel.filename]
        modules = modules_of(names)
        found = (PLUGIN.fullmatch(name) or PJRT.fullmatch(name) for name in names)
        if match := next(filter(None, found), None):
            package = match[1] if match.re is PLUGIN else f"jax_plugins.{match[1]}"
            yield Probe(
                function="package",
                wheel=wheel.filename,
                arguments=(package, wheel.name, *modules),
                name=f"import {package}",
                check=partial(check_package, wheel, package, self.context.wheel_set),
            )
        elif modules and not wheel.as_published:
            yield Probe(
                function="modules",
                wheel=wheel.filename,
                arguments=modules,
                name=f"import {wheel.filename}",
                check=partial(check_modules, wheel),
            )

    def _machine_probes(self, library: WheelLibrary) -> Iterator[Probe]:
        """Yield the probes that start jax on simulated machines.

        Only the loader of this project is tested.
        """
        names = self.context.wheel_set.targets
        version = self.context.wheel_set.rocm_version
        rocm = Path(self.rocm.env["ROCM_PATH"])
        folder = Path(tempfile.mkdtemp(prefix="machines-", dir=self.context.work))
        rows = tuple(machines(names, version, rocm, folder))
        yield self._machine_probe(library, "simulated machines", rows, folder)
        folder = Path(tempfile.mkdtemp(prefix="majors-", dir=self.context.work))
        rows = ()
        # Damaged build information fails on the machines above.
        with suppress(KeyError, ValueError):
            site = self.site.folder
            rows = tuple(machines_of_majors(names, version, rocm, folder, site))
        if rows:
            yield self._machine_probe(library, "machines with two majors", rows, folder)

    def _machine_probe(
        self, library: WheelLibrary, about: str, rows: Sequence[Machine], folder: Path
    ) -> Probe:
        return Probe(
            function="machines",
            arguments=(str(folder), as_json(rows, self.context.wheel_set.rocm_version)),
            name=f"jax on {about} with {library}",
            member=library.path,
            check=lambda answer: check_machines(str(library), rows, answer.values),
            child=MACHINE_CHILD,
            # The loader must find ROCm itself, and GPUs are hidden from HIP in another
            # way. A fork needs one thread.
            env={
                "LD_LIBRARY_PATH": "",
                "HIP_VISIBLE_DEVICES": "",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def _path(self, library: WheelLibrary) -> str:
        return str(self.site.folder / library.path)

    def _check_loaded(
        self, libraries: Sequence[WheelLibrary], answer: ProbeResult
    ) -> Iterator[Finding]:
        values = answer.values
        named = values.get("error") or values.get("flushes", "")
        library = next((lib for lib in libraries if lib.path in named), libraries[0])
        if "error" in values:
            text = (
                f"{library} cannot be loaded with {self.rocm.kind}:"
                f" {self._error_text(answer)}."
            )
            remedy = _WITH_NEEDS if self.rocm.weak else _WITH_ROCM
            yield error("load-failed", text, remedy, member=library.path)
        elif "flushes" in values:
            text = f"{library} makes the process flush denormal numbers (-ffast-math)."
            yield finding("load-flags-wrong", text, member=library.path)
        elif "registered" in values:  # HIP is the stand-in
            for library in libraries:
                path = Path(self._path(library))
                seen = values["registered"].get(os.path.realpath(path), {})
                yield from registration_findings(str(library), library.path, path, seen)

    def _check_imported(
        self, library: WheelLibrary, module: str, answer: ProbeResult
    ) -> Iterator[Finding]:
        if "error" in answer.values:
            text = (
                f"{library} cannot be imported by Python {self.site.version}:"
                f" {self._error_text(answer)}."
            )
            remedy = "Build the module for this Python and ROCm."
            yield error("import-failed", text, remedy, member=library.path)
            return
        for table, rows in answer.values["tables"].items():
            registered = self.registered["plugin"].setdefault(f"{module}.{table}", {})
            registered |= rows

    def _check_api(self, answer: ProbeResult) -> tuple[Finding, ...]:
        values = answer.values
        if "error" in values:  # reported by the check that loads the library
            return ()
        registered = self.registered["pjrt"]
        version = ".".join(map(str, values["version"]))
        registered["api"] = {"functions": values["functions"], "version": version}
        registered["extensions"] = {
            f"{kind:02}": size for kind, size in values["extensions"]
        }
        return ()

    def _check_started(
        self, library: WheelLibrary, answer: ProbeResult
    ) -> Iterator[Finding]:
        versions = _API.search(answer.stderr)
        started = NO_DEVICE.fullmatch(_raw_text(answer))
        if versions is None and started:
            text = (
                f"The PJRT API versions of {library} and jaxlib are unknown, since"
                " jaxlib did not log them."
            )
            remedy = "Compare jaxlib's log message with that of earlier releases."
            yield error("pjrt-api-unknown", text, remedy, member=library.path)
        elif versions and versions[1] != versions[2]:
            jaxlibs = [
                wheel.filename for wheel in self.wheels if wheel.name == "jaxlib"
            ]
            jaxlib = jaxlibs[0] if jaxlibs else "the jaxlib that jax requires"
            text = (
                f"{library} has PJRT API {versions[1]}, but {jaxlib} has {versions[2]}."
            )
            remedy = (
                "Add the jaxlib that the plugin was built with to the set, and pin it"
                " in Requires-Dist."
            )
            yield error("pjrt-api-skew", text, remedy, member=library.path)
        if not started:
            problem = self._error_text(answer)
            text = (
                f"{library} should fail with 'No visible GPU devices' without a GPU,"
                f" but the result was: {problem}."
            )
            remedy = (
                "Read XLA's error and fix the plugin, which must start with this ROCm."
            )
            yield error("start-failed", text, remedy, member=library.path)

    def _check_handlers(self, answer: ProbeResult) -> Iterator[Finding]:
        if "error" in answer.values:
            version = self.site.version
            problem = self._error_text(answer)
            text = (
                f"jax cannot be imported with this set by Python {version}: {problem}."
            )
            remedy = "Check the versions of jax and jaxlib that the set pins."
            yield error("jax-failed", text, remedy)
            return
        self.registered["pjrt"][f"handlers.{_PLATFORM}"] = answer.values["handlers"]

    def _error_text(self, answer: ProbeResult) -> str:
        """Return the error of an answer without the directories of this run."""
        return shortened(_raw_text(answer).replace(f"{self.site.folder}/", ""))


def _level(probe: Probe) -> int:
    return _LEVELS.get(probe.function, 1)


def _is_explained(probe: Probe, failed: Iterable[tuple[int, str]]) -> bool:
    """Return whether probes of earlier levels failed: of the wheel, or of any if jax starts."""
    level = _level(probe)
    return any(
        other < level and (level > 1 or wheel == probe.wheel) for other, wheel in failed
    )


def _info_path(library: WheelLibrary) -> str:
    return str(PurePosixPath(library.path).with_name("build_info.json"))


def _raw_text(answer: ProbeResult) -> str:
    return str(
        answer.values.get("error", f"it found {answer.values.get('devices')} devices")
    )


def _library_probe(
    function: str, about: str, verb: str, library: WheelLibrary, check: AnswerCheck
) -> Probe:
    return Probe(
        function=function,
        arguments=(about,),
        name=f"{verb} {library}",
        wheel=library.wheel.filename,
        member=library.path,
        check=check,
    )
