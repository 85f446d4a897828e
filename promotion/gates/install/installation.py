"""Test of one installer and one Python.

Install a set into a fresh environment as a user would, and import it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import GateError, MachineError, ProcessError
from core.frozen import frozen
from core.model import Finding, RocmVersion, WheelSet
from core.process import CREDENTIAL_VARIABLES, ProcessResult, Runner
from core.units import parse_url
from promotion.gates.common.gate_context import Check, error
from promotion.gates.common.gate_site import LOADER_SENTENCE, Site
from promotion.gates.common.installers import (
    Command,
    is_connection_failure,
    on_one_line,
)
from promotion.gates.common.set_requirements import (
    hashed,
    locked,
    modules,
    wheels_for,
    write_lines,
)
from promotion.gates.common.uv_installer import Installer
from promotion.index.pages import install_requirements
from promotion.index.rocm_packages import extras_of, with_extra

_SUFFIX = " JAX goes on without it; JAX_PLATFORMS=cpu silences this message."
_NO_GPU = "no AMD GPU was found"
_PROBE = Path(__file__).with_name("install_probe.py")
_SECONDS = 900.0
_PROBE_SECONDS = 120.0
"""Time for the imports of an installed set, which take some seconds."""
_ROCM_VARIABLES = ("LD_LIBRARY_PATH", "ROCM_PATH")
"""Variables that name another ROCm than that of an extra."""
_REMEDY = "Read the output, fix the cause and run the gate again."


class InstallationError(GateError):
    """A failed step of an installation test; `code` is the code of its finding."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@frozen
class InstallationSource:
    """The index and lock file from which a set is installed.

    Attributes:
        index: URL of a simple index with the set.
        lock: text of the set's pylock.toml; None if the set has none.
        verify_origin: called after the installation; raises InstallationError unless
            the index served the wheels.
        html_index: URL of the same index on a server without JSON pages; empty to test
            only `index`.
        compiled: an environment with the same Python, which may have bytecode of the
            same files.
        extra: extra of the plugin to install ROCm with; empty for none.
        rocm_index: URL of a simple index with stand-ins for its wheels.
    """

    index: str
    wheel_set: WheelSet
    lock: str | None
    verify_origin: Callable[[], None] = lambda: None
    html_index: str = ""
    compiled: Site | None = None
    extra: str = ""
    rocm_index: str = ""


class InstallationTest:
    """Test of one installer with one Python version.

    Args:
        folder: an empty directory.
        dependencies: program that installs the locked dependencies, which are no part
            of the set; None means the tested one.
        check_loader: whether to check the error of the loader with JAX_PLATFORMS=rocm
            too.
        is_wanted: called before each step; False stops the test.
    """

    def __init__(
        self,
        source: InstallationSource,
        runner: Runner,
        installer: Installer,
        version: str,
        folder: Path,
        *,
        dependencies: Installer | None = None,
        check_loader: bool = True,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.source = source
        self.installer = installer
        self.version = version
        self.folder = folder
        self.wheels = wheels_for(source.wheel_set, version)
        self._dependencies = dependencies or installer
        self._runner = runner
        self._check_loader = check_loader
        self._is_wanted = is_wanted
        self._answer: dict[str, Any] = {}
        self._stderr = ""
        self._python = folder / "environment" / "bin" / "python"

    @property
    def program(self) -> str:
        """Name and version of the tested program."""
        return f"{self.installer.name} {self.installer.version}"

    def checks(self, python: Path | None) -> Iterator[Check]:
        """Install, import and resolve the set; without an interpreter, skip this."""
        where = f"{self.installer.name} for Python {self.version}"
        if python is None:
            skipped = f"no Python {self.version} on this machine"
            yield Check(name=where, skipped=skipped)
            return
        installed = self._check(where, lambda: self._install(python))
        yield installed
        yield from self.resolution_checks(python)
        if not installed.failed:
            yield self._check(f"loader after {where}", self._loader)
            if self.source.extra:
                yield self._check(f"ROCm by {where}", self._install_rocm)

    def resolution_checks(self, python: Path) -> Iterator[Check]:
        """Resolve the set by name without installing it, which must choose exactly its files."""
        where = f"{self.installer.name} for Python {self.version}"
        yield self._check(
            f"resolution by {where}", lambda: self._resolve(python, self.source.index)
        )
        if html_index := self.source.html_index:
            # Installers that accept JSON pages read HTML pages on hosts that negotiate
            # no content.
            name = f"resolution of HTML pages by {where}"
            yield self._check(name, lambda: self._resolve(python, html_index))

    def _check(self, name: str, work: Callable[[], Mapping[str, Any]]) -> Check:
        started = time.monotonic()
        findings: tuple[Finding, ...] = ()
        details: Mapping[str, Any] = {}
        try:
            details = work()
        except InstallationError as problem:
            findings = (error(problem.code, f"{name}: {problem.message}", _REMEDY),)
        seconds = round(time.monotonic() - started, 1)
        details = {**details, "installer": self.program, "seconds": seconds}
        return Check(name=name, findings=findings, details=details)

    def _install(self, python: Path) -> Mapping[str, Any]:
        self._run(
            "environment-failed",
            self.installer.create(python, self.folder / "environment"),
        )
        index = self.source.index
        staged = write_lines(
            self.folder / "staged.txt", hashed(self.source.wheel_set.wheels)
        )
        self._run(
            "install-failed",
            self.installer.install_staged(self._python, staged, index),
        )
        self.source.verify_origin()
        wheel_set = self.source.wheel_set
        lock = self.source.lock
        if lock is None:
            pins = {wheel.name: wheel.version for wheel in self.wheels} | dict(
                wheel_set.pins
            )
            lines = [f"{name}=={pinned}" for name, pinned in pins.items()]
        else:
            lines = locked(
                lock, self.version, {wheel.name for wheel in wheel_set.wheels}
            )
        rest = write_lines(self.folder / "rest.txt", lines)
        program = self.installer if lock is None else self._dependencies
        self._run(
            "dependencies-failed",
            program.install_rest(self._python, rest, locked=lock is not None),
        )
        self._run("install-inconsistent", self.installer.check(self._python))
        if self.source.compiled is not None:
            self.source.compiled.share_bytecode(
                self.folder
                / "environment"
                / "lib"
                / f"python{self.version}"
                / "site-packages"
            )
        distributions = {
            name: {"version": pinned, "files": {}}
            for name, pinned in wheel_set.pins.items()
        }
        for wheel in self.wheels:
            files = {member.path: member.sha256 for member in wheel.members}
            own = {"version": wheel.version, "files": files}
            distributions.setdefault(wheel.name, own)
        self._answer, self._stderr = self._probe(distributions, modules(wheel_set))
        return {"installed": self._answer["installed"]}

    def _resolve(self, python: Path, index: str) -> Mapping[str, Any]:
        """Check that the documented install command resolves to the files of the set."""
        wheel_set = self.source.wheel_set
        lines = install_requirements(wheel_set.wheels, wheel_set.pins)
        requirements = write_lines(self.folder / "wanted.txt", lines)
        completed = self._run(
            "resolution-failed", self.installer.resolve(python, requirements, index)
        )
        try:
            chosen = self.installer.chosen(completed.stdout)
        except ValueError as problem:
            raise InstallationError("resolution-failed", f"{problem}.") from problem
        own = {wheel.sha256 for wheel in wheel_set.wheels}
        for wheel in self.wheels:
            got = chosen.get(wheel.name, frozenset())
            # uv's lock lists every compatible file; none may come from another index.
            if wheel.sha256 not in got or got - own:
                others = ", ".join(sorted(got - own)) or "nothing of the set"
                text = (
                    f"the resolver chose {wheel.name} with sha256 {others}, not"
                    f" {wheel.filename} with {wheel.sha256}."
                )
                raise InstallationError("resolution-elsewhere", text)
        return {"chosen": sorted(chosen)}

    def _loader(self) -> Mapping[str, Any]:
        """Check the loader's warning, and that JAX_PLATFORMS=rocm turns it into an error."""
        answer = self._answer
        stderr = self._stderr
        if answer["refusal"]:
            raise InstallationError(
                "loader-breaks-jax", f"jax.devices() failed: {answer['refusal']}"
            )
        (pjrt,) = (wheel for wheel in self.wheels if wheel.name.endswith("-pjrt"))
        # Wheels published by others have another loader.
        if "rocm" in answer["platforms"] or pjrt.as_published:
            return {"platforms": answer["platforms"]}
        warnings = [match[1] for match in LOADER_SENTENCE.finditer(stderr)]
        if not warnings:
            raise InstallationError(
                "loader-silent",
                "jax.devices() has no rocm device, and no reason was printed.",
            )
        sentence = warnings[0].removesuffix(_SUFFIX)
        if len(warnings) > 1 or sentence == warnings[0] or "Traceback" in stderr:
            text = "one warning that ends in " + repr(_SUFFIX.strip())
            raise InstallationError(
                "loader-form", f"expected {text}, but got: {stderr.strip()}"
            )
        start = f"{pjrt.name} {pjrt.version} cannot use ROCm: " + (
            "" if answer["gpu"] else _NO_GPU
        )
        if not sentence.startswith(start):
            raise InstallationError(
                "loader-form", f"the warning does not begin with {start!r}: {sentence}"
            )
        if self._check_loader:
            answer, _ = self._probe({}, [], platforms="rocm")
            if sentence not in answer["refusal"]:
                message = (
                    answer["refusal"] or f"platforms {', '.join(answer['platforms'])}"
                )
                text = (
                    "with JAX_PLATFORMS=rocm the error of jax differs from the"
                    f" warning: {message}"
                )
                raise InstallationError("loader-form", text)
        return {"platforms": self._answer["platforms"], "loader": sentence}

    def _install_rocm(self) -> Mapping[str, Any]:
        """Add the ROCm of a GPU as users do, and let the loader look for it."""
        wheel_set = self.source.wheel_set
        extra = self.source.extra
        lines = with_extra(install_requirements(wheel_set.wheels, {}), extra)
        requirements = write_lines(self.folder / "rocm.txt", lines)
        command = self.installer.install_staged(
            self._python, requirements, self.source.rocm_index, locked=False
        )
        self._run("resolution-failed", command)
        major = RocmVersion(text=wheel_set.rocm_version).major
        answer, _ = self._probe({}, [], loader=f"jax_plugins.xla_rocm{major}")
        projects = extras_of(wheel_set.wheels)[extra]
        wanted = dict.fromkeys(projects, wheel_set.rocm_version)
        expected = self._answer["installed"] | wanted
        found = answer["installed"].items()
        if found != expected.items():
            different = dict(found ^ expected.items())
            text = f"{extra} installs others than {wanted}: {', '.join(different)}."
            raise InstallationError("install-untrue", text)
        if answer["reasons"]:
            text = f"the loader does not use {wanted}: {' '.join(answer['reasons'])}"
            raise InstallationError("loader-misses-rocm", text)
        return {"rocm": wanted}

    def _run(self, code: str, command: Command) -> ProcessResult:
        if not self._is_wanted():
            raise InstallationError(code, "the test was stopped.")
        try:
            return self._runner.run(
                command.argv, env=command.env, cwd=str(self.folder), timeout=_SECONDS
            )
        except ProcessError as problem:
            if "No space left on device" in on_one_line(problem.message):
                hint = "Free space, and run the command again."
                raise MachineError(
                    f"The disk is full: {problem.message}", hint=hint
                ) from problem
            host = parse_url(self.source.index).hostname or ""
            # The tested index answered a moment ago; its failures mention its host.
            if (
                is_connection_failure(problem.message)
                and host not in problem.message.partition("\n")[2]
            ):
                hint = (
                    "Check the network and pip's configuration, and run the command"
                    " again."
                )
                raise MachineError(
                    f"A package index cannot be reached: {problem.message}", hint=hint
                ) from problem
            raise InstallationError(code, problem.message) from problem

    def _probe(
        self,
        distributions: Mapping[str, Any],
        imports: Sequence[str],
        *,
        platforms: str = "",
        loader: str = "",
    ) -> tuple[dict[str, Any], str]:
        """Run `install_probe.py` and return its answer and standard error."""
        question = {
            "distributions": distributions,
            "imports": imports,
            "loader": loader,
            "seconds": _PROBE_SECONDS,
        }
        argv = (str(self._python), "-I", str(_PROBE), json.dumps(question))
        env = {
            **dict.fromkeys(CREDENTIAL_VARIABLES, ""),
            "JAX_PLATFORMS": platforms,
            "JAX_PLATFORM_NAME": "",
            **(dict.fromkeys(_ROCM_VARIABLES, "") if loader else {}),
        }
        started = time.monotonic()
        try:
            completed = self._run("probe-failed", Command(argv=argv, env=env))
        except InstallationError as problem:
            if time.monotonic() - started < _PROBE_SECONDS:
                raise
            text = (
                "the imports and jax.devices() did not end within"
                f" {_PROBE_SECONDS:g} seconds: {problem.message}"
            )
            raise InstallationError("import-hangs", text) from problem
        answer: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
        if answer["problems"]:
            raise InstallationError("install-untrue", "; ".join(answer["problems"]))
        return answer, completed.stderr
