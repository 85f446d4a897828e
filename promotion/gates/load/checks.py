"""What happens when a Python loads the wheels of a set: a look at each piece, and what to think of the answer."""

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
from promotion.gates.common.messages import LOADER_SENTENCE, NO_DEVICE
from promotion.gates.common.requirements import wheels_for
from promotion.gates.common.site import RocmLibraries, Site
from promotion.gates.load import golden
from promotion.gates.load.child_probe import Probe, ask
from wheelkit.archive.reader import WheelArchive

PLUGIN = re.compile(r"(jax_rocm\d+_plugin)/(\w+)(?:\.[\w-]+)*\.so")
PJRT = re.compile(r"jax_plugins/(xla_rocm\d+)/(xla_rocm_plugin)\.so")
"""Paths of extension modules, and of XLA's plugin: package, module."""

_API = re.compile(r"PJRT plugin has PJRT API version (\d+\.\d+)\. The framework PJRT API version is (\d+\.\d+)")
"""What jaxlib logs when it has loaded a plugin."""
_PLATFORM = "ROCM"
_LISTED = {"module": "plugin", "api": "pjrt", "handlers": "pjrt"}
"""Question -> the part whose golden list its answer is compared with."""
_MANY = 4
_MEND = "Build the wheel again with this file as its recipe lists it."
_READ = "Read what Python says: another version of jaxlib, or what this file itself does, keeps it from being imported."
_WITH_ROCM = "Build the wheel with the ROCm that it shall run with, or give the set that ROCm's manifest."
_WITH_NEEDS = "Compare what it needs with ROCm's libraries: `ci_build inspect` shows both."

Answer = Mapping[str, Any]
AnswerCheck = Callable[[Answer, str], Iterable[Finding]]
"""Takes what the process answered and what it wrote to standard error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelLibrary:
    """One ELF file of a wheel.

    Attributes:
        path: inside the wheel, and below site-packages.
    """

    wheel: Wheel
    path: str

    def __str__(self) -> str:
        return f"{self.wheel.filename}: {self.path}"


class LoadChecks:
    """One Python with the set and a ROCm: looks, and what they found out.

    Attributes:
        found: part -> what it registers, as in its golden list.
        unseen: parts of which something could not be looked at.
    """

    def __init__(self, context: GateContext, site: Site, libraries: RocmLibraries) -> None:
        self.context, self.site, self.rocm = context, site, libraries
        # Where there are GPUs and a real ROCm, they are hidden: what is to be seen is the end without one.
        self.env = {**site.env, **libraries.env, "HIP_VISIBLE_DEVICES": "-1"}
        self.libraries = tuple(_libraries(context, site.version))
        self.found: dict[str, dict[str, dict[str, str | int]]] = {part: {} for part in golden.PARTS}
        self.unseen: set[str] = set()

    def checks(self) -> Iterator[Check]:
        """Every check but the comparison with the golden lists."""
        yield Check(name=f"Python {self.site.version}: wheels", findings=tuple(self._absent()))
        looks = list(self._looks())
        with ThreadPoolExecutor(min(_MANY, os.cpu_count() or 1)) as pool:
            answers = list(pool.map(lambda look: ask(self.context.runner, self.site, self.env, look[0]), looks))
        for (look, judge), answer in zip(looks, answers, strict=True):
            if look.question in _LISTED and (answer.findings or "error" in answer.values):
                self.unseen.add(_LISTED[look.question])
            findings = answer.findings or tuple(judge(answer.values, answer.stderr))
            name = f"Python {self.site.version}: {look.name}"
            yield Check(name=name, findings=findings, details={"peak_kib": answer.values.get("peak_kib", 0)})

    def _absent(self) -> Iterator[Finding]:
        """What no wheel for this Python holds at all."""
        for what, pattern in (("XLA's plugin (xla_rocm_plugin.so)", PJRT), ("extension modules", PLUGIN)):
            if not any(pattern.fullmatch(library.path) for library in self.libraries):
                names = ", ".join(wheel.filename for wheel in wheels_for(self.context.wheel_set, self.site.version))
                text = f"No wheel for Python {self.site.version} holds {what}; those that fit are {names or 'none'}."
                yield error("wheel-missing", text, "Look at the tags of the wheels, and build the one that is missing.")

    def _looks(self) -> Iterator[tuple[Probe, AnswerCheck]]:
        """What to look at, and who judges the answer."""
        yield from self._openings()
        extensions = [(library, found) for library in self.libraries if (found := PLUGIN.fullmatch(library.path))]
        for library, found in extensions:
            yield _look("module", f"{found[1]}.{found[2]}", "import", library), self._imported(library, found[2])
        for package in dict.fromkeys(found[1] for _, found in extensions):
            yield Probe(question="package", about=(package,), name=f"import {package}"), self._package(package)
        for library in self.libraries:
            if found := PJRT.fullmatch(library.path):
                yield from self._starts(library, f"jax_plugins.{found[1]}")
        yield Probe(question="handlers", about=(_PLATFORM,), name="handlers that jax registers"), self._handlers

    def _openings(self) -> Iterator[tuple[Probe, AnswerCheck]]:
        """Load each library alone; those of others, such as jaxlib's, bind to no ROCm and fit into one process."""
        for wheel, libraries in groupby(self.libraries, key=lambda library: library.wheel):
            group = list(libraries)
            if any(PLUGIN.fullmatch(library.path) or PJRT.fullmatch(library.path) for library in group):
                for library in group:
                    yield _look("dlopen", self._path(library), "dlopen", library), self._loaded([library])
            else:
                about = tuple(map(self._path, group))
                name = f"dlopen {wheel.filename}: {len(group)} libraries"
                yield Probe(question="dlopen", about=about, name=name), self._loaded(group)

    def _starts(self, library: WheelLibrary, package: str) -> Iterator[tuple[Probe, AnswerCheck]]:
        """What the package around XLA's plugin and the plugin itself do."""
        path = self._path(library)
        ours = Path(path).with_name("build_info.json").exists()
        yield Probe(question="package", about=(package,), name=f"import {package}"), self._package(package, library)
        yield _look("api", path, "C API of", library), self._api
        yield _look("initialize", path, "jax starts", library), self._started(library)
        yield Probe(question="loader", about=("rocm",), name=f"loader of {package}"), _refused(library, ours=ours)

    def _path(self, library: WheelLibrary) -> str:
        return str(self.site.folder / library.path)

    def _loaded(self, libraries: Sequence[WheelLibrary]) -> AnswerCheck:
        def judge(values: Answer, _stderr: str) -> Iterator[Finding]:
            if "error" in values:
                library = next((lib for lib in libraries if lib.path in values["error"]), libraries[0])
                text = f"{library} cannot be loaded with {self.rocm.kind}: {_short(values, self.site)}."
                yield error("load-failed", text, _WITH_NEEDS if self.rocm.weak else _WITH_ROCM, member=library.path)

        return judge

    def _imported(self, library: WheelLibrary, module: str) -> AnswerCheck:
        def judge(values: Answer, _stderr: str) -> Iterator[Finding]:
            if "error" in values:
                text = f"{library} cannot be imported by Python {self.site.version}: {_short(values, self.site)}."
                yield error("import-failed", text, "Build the module for this Python and ROCm.", member=library.path)
                return
            for table, rows in values["tables"].items():
                self.found["plugin"][f"{module}.{table}"] = {name: " ".join(stages) for name, stages in rows.items()}

        return judge

    def _package(self, package: str, plugin: WheelLibrary | None = None) -> AnswerCheck:
        path = package.replace(".", "/")

        def judge(values: Answer, _stderr: str) -> Iterator[Finding]:
            wheel = plugin or next(lib for lib in self.libraries if lib.path.startswith(f"{path}/"))
            if "error" in values:
                missing = re.search(r"No module named '([\w.]+)'", values["error"])
                member = f"{missing[1].replace('.', '/')}.py" if missing else f"{path}/__init__.py"
                what, remedy = ("is missing", _MEND) if missing else ("cannot be imported", _READ)
                text = f"{wheel.wheel.filename}: {member} {what}: {_short(values, self.site)}."
                yield error("package-broken", text, remedy, member=member)
            elif plugin is not None and not values["entry_points"]:
                member = f"{_dist_info(plugin.wheel)}/entry_points.txt"
                text = f"{wheel.wheel.filename}: {member} does not announce {package}, so jax never finds it."
                yield error("entry-point-missing", text, "Add it to the group jax_plugins.", member=member)

        return judge

    def _api(self, values: Answer, _stderr: str) -> Iterator[Finding]:
        if "error" in values:
            return  # the check that loads it says so
        version = ".".join(map(str, values["version"]))
        self.found["pjrt"]["api"] = {"functions": values["functions"], "version": version}
        self.found["pjrt"]["extensions"] = {f"{kind:02}": size for kind, size in values["extensions"]}
        yield from ()

    def _started(self, library: WheelLibrary) -> AnswerCheck:
        def judge(values: Answer, stderr: str) -> Iterator[Finding]:
            if told := _API.search(stderr):
                if told[1] != told[2]:
                    jaxlib = _jaxlib(self.context, self.site)
                    text = f"{library} has PJRT API {told[1]}, but {jaxlib} has {told[2]}."
                    remedy = "Put the jaxlib into the set that the plugin was built with, and pin it in Requires-Dist."
                    yield error("pjrt-api-skew", text, remedy, member=library.path)
            else:
                text = f"Nobody says which PJRT API {library} and jaxlib have: jaxlib did not load it."
                yield error("pjrt-api-unknown", text, "Mend what the other checks report first.", member=library.path)
            said = values.get("error", f"it found {values.get('devices')} devices")
            if not NO_DEVICE.fullmatch(said):
                text = (
                    f"{library} should end in 'No visible GPU devices' without a GPU, but: {_short(values, self.site)}."
                )
                yield error(
                    "start-failed", text, "Read what XLA says; it must start with this ROCm.", member=library.path
                )

        return judge

    def _handlers(self, values: Answer, _stderr: str) -> Iterator[Finding]:
        if "error" in values:
            text = f"jax cannot be imported with this set by Python {self.site.version}: {_short(values, self.site)}."
            yield error("jax-failed", text, "Look at the versions of jax and jaxlib that the set pins.")
            return
        self.found["pjrt"][f"handlers.{_PLATFORM}"] = values["handlers"]


def _look(question: str, about: str, verb: str, library: WheelLibrary) -> Probe:
    return Probe(question=question, about=(about,), name=f"{verb} {library}", member=library.path)


def _libraries(context: GateContext, version: str) -> Iterator[WheelLibrary]:
    """Every shared library of the wheels for one Python, by what the archives hold."""
    for wheel in wheels_for(context.wheel_set, version):
        with WheelArchive(context.wheel(wheel)) as archive:
            names = [member.name for member in archive.members]
        for name in names:
            if re.search(r"\.so(?:\.\d+)*$", name):
                yield WheelLibrary(wheel=wheel, path=name)


def _refused(library: WheelLibrary, *, ours: bool) -> AnswerCheck:
    """The user's view: our loader has to say why there are no GPUs; other people's may say what they like."""

    def judge(values: Answer, _stderr: str) -> Iterator[Finding]:
        said = values.get("error", "")
        if ours and not values.get("devices") and not (LOADER_SENTENCE.search(said) or NO_DEVICE.search(said)):
            text = f"The loader beside {library} does not say why it cannot use ROCm, but: {said or 'nothing'}."
            yield error("loader-silent", text, "Build the wheel with the loader in pjrt/payload.", member=library.path)

    return judge


def _jaxlib(context: GateContext, site: Site) -> str:
    found = [wheel.filename for wheel in wheels_for(context.wheel_set, site.version) if wheel.name == "jaxlib"]
    return found[0] if found else "the jaxlib that jax asks for"


def _dist_info(wheel: Wheel) -> str:
    return "-".join(wheel.filename.split("-")[:2]) + ".dist-info"


def _short(values: Answer, site: Site) -> str:
    """What was said, without this run's folders."""
    said = str(values.get("error", f"it found {values.get('devices')} devices")).replace(f"{site.folder}/", "")
    return " ".join(said.split()).removesuffix(".")[:500]
