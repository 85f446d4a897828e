"""Builds of native wheels from source: one command for each wheel, its log, and its result.

Results are cached under a key of everything that affects them: the command, the source
trees, the ROCm, the builder and the gfx targets. The output of a build is written to a
log beside the set, line by line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from ci_build.wheelset.source import bazel
from ci_build.wheelset.source import source_checkouts as sources
from ci_build.wheelset.source.build_py import BuildCommand, SourceLayout
from ci_build.wheelset.source.given_rocm import REFUSED, check_wheel
from ci_build.wheelset.source.output import BuildOutput, BuildProgress
from core.atomic import write_whole
from core.digests import sha256_of
from core.errors import FormatError, InputError, ProcessError, RepairError
from core.model import RocmVersion, to_json
from core.pip import InputStore, Resolved
from core.process import LineSink, Runner
from core.records import read_json
from core.rocm_layouts import allowed_sonames
from core.source_request import Checkout, SourceInputs, SourceRequest
from core.steps import step_key
from core.store import hold_lock, lock_in_use
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.inspect.compiled_rocm import BuildRocm
from wheelkit.repair.wheel_repair import repaired_platform

_KEEP = 1 << 16
_KILLED = 137
"""Exit code of a container whose command was killed."""
_FORMAT = 1


@dataclass(kw_only=True)
class SourceBuilder:
    """A builder of wheels from source, in a container or on this machine.

    Attributes:
        request: request for the build from source.
        inputs: commits and digests of the build.
        layout: paths of the build.
        rocm: the ROCm given to the build, with which every wheel is compared.
        platform: platform tag that every wheel must allow; see `RepairPlan`.
        host: runner of git on this machine.
        inside: function that returns a runner in the build environment; the runner
            passes every line to a listener.
        work: folder on this machine that the build sees as `layout.paths.out`.
        builds: folder for records of finished builds.
        bazel_tree: folder on this machine for Bazel's own output, an entry of the
            cache.
        logs: log folder beside the set.
    """

    request: SourceRequest
    inputs: SourceInputs
    layout: SourceLayout
    rocm: BuildRocm
    platform: str
    host: Runner
    inside: Callable[[LineSink], Runner]
    work: Path
    builds: Path
    bazel_tree: Path
    logs: Path
    progress: BuildProgress

    def checkout(self, checkout: Checkout, folder: str) -> None:
        """Fetch a source tree, or check that the user's folder is unchanged since planning.

        Raises:
            InputError: the tree cannot be fetched, or was changed.
        """
        sources.check_complete(self.inputs)
        if checkout.folder:
            now = sources.folder_commit(Path(checkout.folder), self.host)[0]
            if now != checkout.commit:
                raise InputError(
                    f"{checkout.folder} was changed during the build: its commit is"
                    f" {now}, and was {checkout.commit}.",
                    hint="Run the same command again.",
                )
            return
        sources.fetch_tree(checkout, Path(folder), self.host, self.progress)

    def build(self, command: BuildCommand, inputs: InputStore) -> Resolved:
        """Return the wheel of a command, which is added to `inputs`.

        A recorded wheel is not built again, also one that was refused for its platform:
        a run with another platform tag uses it.

        Raises:
            ProcessError: the build failed; the message has the cause and the log.
            InputError: the build did not write exactly the requested wheel, or the user
                changed a source folder.
            OtherRocmError: the wheel was compiled with another ROCm.
            RepairError: the libraries do not run on the platform of the wheels.
        """
        built = self._built(command, inputs)
        # jaxlib is independent of ROCm.
        rocm = frozenset[str]()
        if command.project != "jaxlib":
            rocm = allowed_sonames(RocmVersion(text=self.rocm.version))
        self._check_platform(inputs.path(built), rocm, host_compiler(command))
        return built

    def _check_platform(self, wheel: Path, rocm: frozenset[str], compiler: str) -> None:
        """Refuse a wheel that its repair would refuse, before the next one is compiled."""
        try:
            repaired_platform(
                wheel,
                self.builds,
                platform=self.platform,
                allowed_sonames=rocm,
            )
        except RepairError as error:
            raise RepairError(
                f"{error.message}\nIts host code was compiled by {compiler}.\nThe compiled"
                f" wheel was kept: {wheel}.",
                hint=f"{error.hint} The next run continues with this wheel.",
            ) from error

    def _built(self, command: BuildCommand, inputs: InputStore) -> Resolved:
        key = step_key(format=_FORMAT, command=command, made_of=made_of(self.inputs))
        record = self.builds / f"{key}.json"
        if (recorded := _recorded(record)) is not None and inputs.has(recorded):
            return recorded
        self.builds.mkdir(parents=True, exist_ok=True)
        # Only one run at a time may use Bazel's output tree and this folder;
        # `ci_build cache` must keep the tree meanwhile.
        with hold_lock(self.work.with_suffix(".lock")), lock_in_use(self.bazel_tree):
            if (recorded := _recorded(record)) is not None and inputs.has(recorded):
                return recorded
            wheel = self._run(command)
            for checkout in self.inputs.sources:
                # A record would give this wheel to later runs with the original files.
                if checkout.folder:
                    self.checkout(checkout, checkout.folder)
            check_wheel(
                wheel,
                self.rocm,
                kept=self.logs / REFUSED,
                scratch=self.work,
                progress=self.progress,
            )
            built = _describe(wheel, self.inputs.jax_commit)
            inputs.adopt(built, wheel)
        write_whole(record, json.dumps(to_json(built), indent=1).encode())
        return built

    def _run(self, command: BuildCommand) -> Path:
        """Run the command and return the wheel that its output names."""
        folder = self.work / Path(command.output).relative_to(self.layout.paths.out)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = (
            self.logs
            / f"{command.target}{'-' + command.python if command.python else ''}.log"
        )
        python = f" for Python {command.python}" if command.python else ""
        self.progress.step(f"build {command.project}{python}, log in {log}")
        with log.open("w", encoding="utf-8", buffering=1) as file:
            output = BuildOutput(file, self.progress, command.cwd)
            runner = self.inside(output.line)
            done = runner.run(
                command.argv, env=command.env, cwd=command.cwd, check=False, keep=_KEEP
            )
        if done.returncode:
            raise self._failure(command, output, done.returncode, log)
        wheel = folder / output.wheels.requested(command)
        if not wheel.is_file():
            raise InputError(
                f"The build of {command.target} did not write the wheel {wheel}.",
                hint=f"Read {log}.",
            )
        for other in (
            folder.iterdir()
        ):  # copies of the wheels of earlier builds, several hundred megabytes each
            if other != wheel and other.suffix == ".whl":
                other.unlink()
        self._report_actions(command, output.actions)
        return wheel

    def _report_actions(
        self, command: BuildCommand, actions: bazel.ActionCounts
    ) -> None:
        """Log the number of actions by strategy; warn of actions that fell back to this machine."""
        request = self.request
        if request.remote is None and not request.cache:
            return
        self.progress.step(
            f"{command.project}: {actions.summary() or 'no actions had to run'}"
        )
        warnings = [actions.warning] if actions.warning else []
        if actions.local and (warnings or request.remote is not None):
            warnings = [f"{actions.local:,} actions ran on this machine", *warnings]
        if warnings:
            self.progress.warning(f"{command.project}: {': '.join(warnings)}")

    def _failure(
        self, command: BuildCommand, output: BuildOutput, returncode: int, log: Path
    ) -> ProcessError:
        """Return the error of a failed build."""
        ended = f"exit code {returncode}; last line: {output.last or 'none'}"
        cause = output.failure.summary() or ended
        if returncode == _KILLED:
            cause = f"killed, most likely out of memory (see --container-args); {ended}"
        return ProcessError(
            f"The build of {command.project} failed: {cause}.", hint=f"Read {log}."
        )


def host_compiler(command: BuildCommand) -> str:
    """Return words on the compiler whose libstdc++ a build uses."""
    for word in command.argv:
        option, _, path = word.partition("=")
        if option in ("--clang_path", "--gcc_path"):
            return f"{path} with the libstdc++ that it finds"
    return "Bazel's clang with the libstdc++ of its sysroot"


def made_of(inputs: SourceInputs) -> dict[str, Any]:
    """Return the inputs, besides the command, that affect the result of a build.

    This repository's commit does not.
    """
    return {
        "rocm": inputs.rocm,
        "builder": inputs.builder,
        "xla": inputs.xla_commit,
        "sources": [(checkout.name, checkout.commit) for checkout in inputs.sources],
    }


def _recorded(record: Path) -> Resolved | None:
    try:
        return read_json(record.read_bytes(), Resolved, str(record))
    except (OSError, FormatError):
        return None


def _describe(path: Path, commit: str) -> Resolved:
    """Return a built wheel in the form of a fetched distribution."""
    with WheelArchive(path) as archive:
        requires = str(archive.headers("METADATA")["Requires-Python"] or "")
    name, version, _, _ = parse_wheel_filename(path.name)
    return Resolved(
        name=name,
        version=str(version),
        filename=path.name,
        url=f"source:jax@{commit}",
        sha256=sha256_of(path),
        requires_python=requires,
    )
