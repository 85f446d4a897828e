"""One trial: one installer puts a set into one fresh environment, as a user would, and Python uses it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.errors import GateError, ProcessError
from core.model import Finding, Severity, WheelSet
from core.process import Completed, Runner
from promotion.gates.common.gate import Check, error
from promotion.gates.common.installers import Command, Installer
from promotion.gates.common.messages import LOADER_SENTENCE
from promotion.gates.common.requirements import locked, modules, wheels_for
from promotion.promote import install_requirements

_GOES_ON = " JAX goes on without it; JAX_PLATFORMS=cpu silences this message."
_NO_GPU = "no AMD GPU was found"
_PROBE = Path(__file__).with_name("probe.py")
_SECONDS = 900.0
_AGAIN = "Read the output, mend it, and run the gate again."


class InstallationError(GateError):
    """A step of a trial failed; `code` names the kind of finding."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallationSource:
    """Where a trial gets the set from.

    Attributes:
        index: URL of a simple index that offers it.
        lock: text of the set's pylock.toml; None when it has none.
        came: called after the set's wheels were installed; raises TrialError unless they came from that index.
    """

    index: str
    wheel_set: WheelSet
    lock: str | None
    came: Callable[[], None] = lambda: None


class InstallationTest:
    """One installer, one Python version.

    Args:
        folder: an empty folder.
        insists: also look at what a user is told who insists on ROCm.
        wanted: asked before each step; False stops the trial.
    """

    def __init__(
        self,
        source: InstallationSource,
        runner: Runner,
        installer: Installer,
        version: str,
        folder: Path,
        *,
        insists: bool = True,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.source, self.installer, self.version, self.folder = source, installer, version, folder
        self.wheels = wheels_for(source.wheel_set, version)
        self._runner, self._insists, self._wanted = runner, insists, wanted
        self._answer: dict[str, Any] = {}
        self._stderr = ""
        self._python = folder / "environment" / "bin" / "python"

    def checks(self, python: Path | None) -> Iterator[Check]:
        """Install, import, resolve; without an interpreter only unpack, which counts as skipped."""
        where = f"{self.installer.name} for Python {self.version}"
        if python is None:
            skipped = f"no Python {self.version} on this machine: unpacked, but not imported"
            yield self._check(where, self._unpack, skipped=skipped)
            return
        installed = self._check(where, lambda: self._install(python))
        yield installed
        # Whoever asks for the set by name has to get these very files.
        yield self._check(f"resolution by {where}", lambda: self._resolve(python))
        if not installed.failed:
            yield self._check(f"loader after {where}", self._loader)

    def _check(self, name: str, work: Callable[[], Mapping[str, Any]], *, skipped: str = "") -> Check:
        started = time.monotonic()
        findings: tuple[Finding, ...] = ()
        details: Mapping[str, Any] = {}
        try:
            details = work()
        except InstallationError as problem:
            skipped = ""
            findings = (self._judged(error(problem.code, f"{name}: {problem.message}", _AGAIN)),)
        seconds = round(time.monotonic() - started, 1)
        return Check(name=name, findings=findings, skipped=skipped, details={**details, "seconds": seconds})

    def _judged(self, finding: Finding) -> Finding:
        """A loader that was taken from others cannot be mended here."""
        if finding.code.startswith("loader-") and _loader_as_published(self.source.wheel_set):
            return replace(finding, severity=Severity.WARNING)
        return finding

    def _install(self, python: Path) -> Mapping[str, Any]:
        self._do("environment-failed", self.installer.create(python, self.folder / "environment"))
        index = self.source.index
        self._do("install-failed", self.installer.install_staged(self._python, self._requirements(), index))
        self.source.came()
        rest, is_locked = self._rest()
        self._do("dependencies-failed", self.installer.install_rest(self._python, rest, locked=is_locked))
        self._do("install-inconsistent", self.installer.check(self._python))
        self._answer, self._stderr = self._probe(self._python, self._question(imports=True))
        return {"installed": self._answer["installed"]}

    def _unpack(self) -> Mapping[str, Any]:
        target = self.folder / "unpacked"
        index = self.source.index
        self._do("install-failed", self.installer.unpack(self.version, target, self._requirements(), index))
        self.source.came()
        self._probe(Path(sys.executable), {**self._question(imports=False), "paths": [str(target)]})
        return {}

    def _resolve(self, python: Path) -> Mapping[str, Any]:
        """The resolver of the user's installer, told what a user is told to type, takes the set's own files."""
        wanted = self._write("wanted.txt", install_requirements(self.source.wheel_set))
        done = self._do("resolution-failed", self.installer.resolve(python, wanted, self.source.index))
        try:
            chosen = self.installer.chosen(done.stdout)
        except ValueError as problem:
            raise InstallationError("resolution-failed", f"{problem}.") from problem
        own = {wheel.sha256 for wheel in self.source.wheel_set.wheels}
        for wheel in self.wheels:
            got = chosen.get(wheel.name, frozenset())
            # uv's lock lists what fits, best or not; none of that may be from elsewhere.
            if wheel.sha256 not in got or got - own:
                others = ", ".join(sorted(got - own)) or "nothing of the set"
                text = f"it chose {wheel.name} with sha256 {others}, not {wheel.filename} with {wheel.sha256}."
                raise InstallationError("resolution-elsewhere", text)
        return {"chosen": sorted(chosen)}

    def _loader(self) -> Mapping[str, Any]:
        """Without a GPU there is one warning, and whoever insists on ROCm gets the same words as an error."""
        answer, stderr = self._answer, self._stderr
        if answer["refusal"]:
            raise InstallationError("loader-breaks-jax", f"jax.devices() failed: {answer['refusal']}")
        if "rocm" in answer["platforms"]:
            return {"platforms": answer["platforms"]}
        said = [match[1] for match in LOADER_SENTENCE.finditer(stderr)]
        if not said:
            raise InstallationError("loader-silent", "jax.devices() has no rocm device, and nobody says why.")
        sentence = said[0].removesuffix(_GOES_ON)
        if len(said) > 1 or sentence == said[0] or "Traceback" in stderr:
            text = "one warning that ends in " + repr(_GOES_ON.strip())
            raise InstallationError("loader-form", f"instead of {text}, there is: {stderr.strip()}")
        (pjrt,) = (wheel for wheel in self.wheels if wheel.name.endswith("-pjrt"))
        start = f"{pjrt.name} {pjrt.version} cannot use ROCm: " + ("" if answer["gpu"] else _NO_GPU)
        if not sentence.startswith(start):
            raise InstallationError("loader-form", f"the warning begins otherwise than {start!r}: {sentence}")
        if self._insists:
            self._insist(sentence)
        return {"platforms": answer["platforms"], "loader": sentence}

    def _insist(self, sentence: str) -> None:
        question: dict[str, Any] = {"paths": None, "distributions": {}, "imports": [], "devices": True}
        answer, _ = self._probe(self._python, question, platforms="rocm")
        if sentence not in answer["refusal"]:
            told = answer["refusal"] or f"platforms {', '.join(answer['platforms'])}"
            raise InstallationError("loader-form", f"with JAX_PLATFORMS=rocm jax does not say the same, but: {told}")

    def _do(self, code: str, command: Command) -> Completed:
        if not self._wanted():
            raise InstallationError(code, "it was stopped.")
        try:
            return self._runner.run(command.argv, env=command.env, cwd=str(self.folder), timeout=_SECONDS)
        except ProcessError as problem:
            raise InstallationError(code, problem.message) from problem

    def _requirements(self) -> Path:
        """The set's projects with the hashes of all their wheels, as a user's lock would have them."""
        lines: dict[str, str] = {}
        for wheel in self.source.wheel_set.wheels:
            line = lines.get(wheel.name, f"{wheel.name}=={wheel.version}")
            lines[wheel.name] = f"{line} --hash=sha256:{wheel.sha256}"
        return self._write("staged.txt", lines.values())

    def _rest(self) -> tuple[Path, bool]:
        """What else has to be installed, and whether it is locked: by the set's pylock.toml if it has one."""
        wheel_set = self.source.wheel_set
        if self.source.lock is None:
            pins = {wheel.name: wheel.version for wheel in self.wheels} | dict(wheel_set.pins)
            return self._write("rest.txt", (f"{name}=={pinned}" for name, pinned in pins.items())), False
        own = {wheel.name for wheel in wheel_set.wheels}
        return self._write("rest.txt", locked(self.source.lock, self.version, own)), True

    def _write(self, name: str, lines: Iterable[str]) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def _question(self, *, imports: bool) -> dict[str, Any]:
        """What has to be installed and, with `imports`, can be imported."""
        wheel_set = self.source.wheel_set
        wanted = {
            wheel.name: {"version": wheel.version, "files": {member.path: member.sha256 for member in wheel.members}}
            for wheel in self.wheels
        }
        pins = {name: {"version": pinned, "files": {}} for name, pinned in wheel_set.pins.items()}
        return {
            "paths": None,
            "distributions": wanted | (pins if imports else {}),
            "imports": modules(wheel_set) if imports else [],
            "devices": imports,
        }

    def _probe(self, python: Path, question: Mapping[str, Any], *, platforms: str = "") -> tuple[dict[str, Any], str]:
        """Ask a Python; its answer, and what it wrote on standard error."""
        argv = (str(python), "-I", str(_PROBE), json.dumps(question))
        env = {"JAX_PLATFORMS": platforms, "JAX_PLATFORM_NAME": ""}
        done = self._do("probe-failed", Command(argv=argv, env=env))
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if answer["problems"]:
            raise InstallationError("install-untrue", "; ".join(answer["problems"]))
        return answer, done.stderr


def _loader_as_published(wheel_set: WheelSet) -> bool:
    loaders: Sequence[bool] = [wheel.as_published for wheel in wheel_set.wheels if wheel.name.endswith("-pjrt")]
    return all(loaders)
