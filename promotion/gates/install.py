"""The install gate: pip and uv install the staged set into clean environments, by hash, and Python imports it."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from ci_build.errors import GateError, ProcessError
from ci_build.model import PYLOCK, Completed, Runner, Tier
from promotion.dirbucket import DirBucket
from promotion.gates import Check, Gate, Room, error
from promotion.gates.installers import Command, Installer, Pip, Uv
from promotion.gates.pip_config import parse_config, uv_options
from promotion.gates.pythons import find_pythons
from promotion.gates.requirements import locked, modules, wheels_for
from promotion.serve import IndexServer, Served

LOADER_SENTENCE = re.compile(r"jax-rocm\d+-pjrt \S+ cannot use ROCm: .+")
"""What the loader in `pjrt/payload` says where it cannot work."""

_PROBE = Path(__file__).with_name("probe.py")
_SECONDS = 900.0
_AGAIN = "Read the output, mend it, and run the gate again."


def installers(runner: Runner) -> tuple[Installer, ...]:
    """pip, and uv with the user's pip configuration."""
    config = runner.run((sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list")).stdout
    return Pip(), Uv(find_uv_bin(), uv_options(parse_config(config)))


def make_gate(
    pythons: Mapping[str, Path] | None = None, *, with_: Callable[[Runner], Sequence[Installer]] = installers
) -> Gate:
    """The gate.

    Args:
        pythons: interpreters by version; None looks for those of the set. Of a version that has none, the wheels are
            only unpacked, which the evidence counts as skipped.
        with_: gives the installers to use.
    """

    def run(room: Room) -> Iterator[Check]:
        versions = room.wheel_set.python_versions
        found = find_pythons(versions, room.runner, find_uv_bin()) if pythons is None else pythons
        programs = with_(room.runner)
        for version in versions:
            for installer in programs:
                room.progress.step(f"install with {installer.name} for Python {version}")
                with tempfile.TemporaryDirectory(dir=room.work) as folder:
                    yield _Installation(room, installer, version, Path(folder)).check(found.get(version))

    return Gate(name="install", tier=Tier.STRUCTURE, per_target=False, run=run)


class InstallationError(GateError):
    """A step of an installation failed; `code` names the kind of finding."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Installation:
    """One installer, one Python version, one fresh environment."""

    def __init__(self, room: Room, installer: Installer, version: str, folder: Path) -> None:
        self.room, self.installer, self.version, self.folder = room, installer, version, folder
        self.wheels = wheels_for(room.wheel_set, version)
        self.served: list[Served] = []
        self.details: dict[str, Any] = {}

    def check(self, python: Path | None) -> Check:
        """Install, look and import; without an interpreter only unpack and look."""
        name, started = f"{self.installer.name} for Python {self.version}", time.monotonic()
        skipped, findings = "", []
        try:
            if python is None:
                skipped = f"no Python {self.version} on this machine: unpacked, but not imported"
                self._unpack()
            else:
                self._install(python)
        except InstallationError as problem:
            skipped = ""
            findings.append(error(problem.code, f"{name}: {problem.message}", _AGAIN))
        self.details["seconds"] = round(time.monotonic() - started, 1)
        return Check(name=name, findings=tuple(findings), skipped=skipped, details=self.details)

    def _install(self, python: Path) -> None:
        own = self.folder / "environment"
        interpreter = own / "bin" / "python"
        self._do("environment-failed", self.installer.create(python, own))
        self._staged(lambda index: self.installer.install_staged(interpreter, self._requirements(), index))
        rest, locked = self._rest()
        self._do("dependencies-failed", self.installer.install_rest(interpreter, rest, locked=locked))
        self._do("install-inconsistent", self.installer.check(interpreter))
        answer, stderr = self._probe(interpreter, None)
        if "rocm" not in answer["platforms"]:
            told = LOADER_SENTENCE.search(stderr)
            if told is None:
                raise InstallationError("loader-silent", "jax.devices() has no rocm device, and nobody says why.")
            self.details["loader"] = told[0]
        self.details |= {"platforms": answer["platforms"], "installed": answer["installed"]}

    def _unpack(self) -> None:
        target = self.folder / "unpacked"
        self._staged(lambda index: self.installer.unpack(self.version, target, self._requirements(), index))
        self._probe(Path(sys.executable), target)

    def _do(self, code: str, command: Command) -> Completed:
        try:
            return self.room.runner.run(command.argv, env=command.env, cwd=str(self.folder), timeout=_SECONDS)
        except ProcessError as problem:
            raise InstallationError(code, problem.message) from problem

    def _staged(self, command: Callable[[str], Command]) -> None:
        """Install from the staged set's own index, and make sure that every wheel came from there."""
        bucket = self.room.bucket
        if not isinstance(bucket, DirBucket):
            raise GateError("The install gate can serve a bucket only when it is a folder.")
        with IndexServer(bucket.root, on_request=self.served.append) as server:
            self._do("install-failed", command(server.url + self.room.staged.simple))
        for wheel in self.wheels:
            key = self.room.staged.file(wheel.filename)
            if sum(answer.sent for answer in self.served if answer.path == key) < wheel.size:
                raise InstallationError("install-elsewhere", f"{wheel.filename} did not come from the staged index.")

    def _requirements(self) -> Path:
        """The set's projects with the hashes of all their wheels, as a user's lock would have them."""
        lines: dict[str, str] = {}
        for wheel in self.room.wheel_set.wheels:
            line = lines.get(wheel.name, f"{wheel.name}=={wheel.version}")
            lines[wheel.name] = f"{line} --hash=sha256:{wheel.sha256}"
        return self._write("staged.txt", lines.values())

    def _rest(self) -> tuple[Path, bool]:
        """What else has to be installed, and whether it is locked: by the set's pylock.toml if it has one."""
        key = self.room.staged.file(PYLOCK)
        wheel_set = self.room.wheel_set
        if self.room.bucket.head(key) is None:
            pins = {wheel.name: wheel.version for wheel in self.wheels} | dict(wheel_set.pins)
            return self._write("rest.txt", (f"{name}=={pinned}" for name, pinned in pins.items())), False
        own = {wheel.name for wheel in wheel_set.wheels}
        lines = locked(self.room.bucket.get(key).decode(), self.version, own)
        return self._write("rest.txt", lines), True

    def _write(self, name: str, lines: Iterable[str]) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def _probe(self, python: Path, target: Path | None) -> tuple[dict[str, Any], str]:
        """Ask a Python what is installed, and let it import unless the wheels are only unpacked."""
        wanted = {
            wheel.name: {"version": wheel.version, "files": {member.path: member.sha256 for member in wheel.members}}
            for wheel in self.wheels
        }
        pins = {name: {"version": pinned, "files": {}} for name, pinned in self.room.wheel_set.pins.items()}
        question = {
            "paths": None if target is None else [str(target)],
            "distributions": wanted | ({} if target else pins),
            "imports": [] if target else modules(self.room.wheel_set),
            "devices": target is None,
        }
        argv = (str(python), "-I", str(_PROBE), json.dumps(question))
        done = self._do("probe-failed", Command(argv=argv, env={"JAX_PLATFORMS": "", "JAX_PLATFORM_NAME": ""}))
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if answer["problems"]:
            raise InstallationError("install-untrue", "; ".join(answer["problems"]))
        return answer, done.stderr
