"""Carries out the part of a plan that compiles: source trees, one command for each wheel, and what came of it.

What was built is kept by what went into it, like every step: its key is made of the command, the source trees, the
ROCm, the builder and the gfx targets. A build's output goes into a log beside the set, line by line as it comes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from filelock import FileLock

from ci_build.build.plan import SourceLayout
from ci_build.build.source import bazel, sources
from ci_build.build.source.build_output import name_of_built, wheel_said
from ci_build.build.source.build_py import BuildCommand, source_of
from core.atomic import write_whole
from core.digests import file_sha256
from core.errors import InputError, ProcessError
from core.model import BuildRequest, Progress, to_json
from core.pip import InputStore, Resolved
from core.process import LineSink, Runner
from core.source_request import Checkout
from core.store import step_key
from wheelkit.archive.reader import WheelArchive

STATE = "state.json"
"""File of the log folder: what was run where, and what failed; `shell` reads it."""
_KEEP = 1 << 16
_KILLED = 137
"""Exit code of a container whose command was killed."""
_FORMAT = 1


class BuildProgress(Progress, Protocol):
    """What a build reports to; `core.report` implements it."""

    def count(self, done: int, total: int, what: str) -> None:
        """So many actions of so many are done in the current step, and what goes on."""

    def warning(self, text: str) -> None:
        """Something that is not as it should be but does not stop the work."""


@dataclass(kw_only=True)
class Native:
    """Everything that the compiling part of a plan needs.

    Attributes:
        request: what is built, with every commit and digest.
        layout: where things are.
        host: runs git on this machine.
        inside: makes a door to where the build runs, which tells a listener every line that is printed.
        work: folder of this machine that the build sees as `layout.places.out`.
        builds: records of what was built.
        logs: the folder beside the set.
        where: how to get to where the build runs, as JSON values, for `shell`.
        again: a command that goes into the builder, for people; empty when there is no such place.
    """

    request: BuildRequest
    layout: SourceLayout
    host: Runner
    inside: Callable[[LineSink], Runner]
    work: Path
    builds: Path
    logs: Path
    progress: BuildProgress
    where: Mapping[str, Any] = field(default_factory=dict)
    again: str = ""

    def checkout(self, checkout: Checkout, folder: str) -> None:
        """Bring one source tree; a folder of the user's has to be still what it was when the plan was made.

        Raises:
            InputError: it cannot be had, or was changed.
        """
        sources.refuse_unknown(source_of(self.request))
        if checkout.folder:
            now = sources.folder_commit(Path(checkout.folder), self.host)[0]
            if now != checkout.commit:
                raise InputError(
                    f"{checkout.folder} was changed meanwhile: it is {now}, and was {checkout.commit}.",
                    hint="Run the same command again.",
                )
            return
        sources.bring(checkout, Path(folder), self.host, self.progress)

    def build(self, command: BuildCommand, inputs: InputStore) -> Resolved:
        """The wheel of a command, built now or found; it lies in `inputs` afterwards.

        Raises:
            ProcessError: the build failed; the message says why, and where its log is.
            InputError: it made something else.
        """
        key = step_key(format=_FORMAT, command=command, made_of=made_of(self.request))
        record = self.builds / f"{key}.json"
        if (found := _recorded(record)) is not None and inputs.has(found):
            return found
        self.builds.mkdir(parents=True, exist_ok=True)
        # Bazel's own output tree and this folder have one user at a time.
        with FileLock(self.work.with_suffix(".lock")):
            if (found := _recorded(record)) is not None and inputs.has(found):
                return found
            made = self._run(command)
            built = _describe(made, source_of(self.request).jax_commit)
            inputs.adopt(built, made)
        write_whole(record, json.dumps(to_json(built), indent=1).encode())
        return built

    def _run(self, command: BuildCommand) -> Path:
        """Run the command; the wheel that it says it made."""
        folder = self.work / Path(command.output).relative_to(self.layout.places.out)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{command.target}{'-' + command.python if command.python else ''}.log"
        self._note(command, log, "running")
        python = f" for Python {command.python}" if command.python else ""
        self.progress.step(f"build {command.project}{python}, log in {log}")
        with log.open("w", encoding="utf-8", buffering=1) as file:
            watch = _Watch(file, self.progress, command.cwd)
            door = self.inside(watch.line)
            done = door.run(command.argv, env=command.env, cwd=command.cwd, check=False, keep=_KEEP)
        if done.returncode:
            self._note(command, log, "failed")
            raise ProcessError(*self._failure(command, watch, done.returncode, log))
        name = name_of_built(watch.said, command)
        made = folder / name
        if not made.is_file():
            raise InputError(f"The build says that it made {name}, and {made} is not there.", hint=f"Look at {log}.")
        self._note(command, log, "done")
        self._tell_where(command, watch.carried)
        return made

    def _tell_where(self, command: BuildCommand, carried: bazel.Carried) -> None:
        """Say how much came from a cache or from executors, and above all when those did not do their part."""
        source = source_of(self.request)
        if source.remote is None and not source.cache.remote and not source.cache.disk:
            return
        self.progress.step(f"{command.project}: {carried.summary() or 'nothing had to be done'}")
        told = [carried.warning] if carried.warning else []
        if carried.here and (told or source.remote is not None):
            told = [f"{carried.here:,} actions were carried out here", *told]
        if told:
            self.progress.warning(f"{command.project}: {': '.join(told)}")

    def _failure(self, command: BuildCommand, watch: _Watch, returncode: int, log: Path) -> tuple[str]:
        """What to tell when a build failed."""
        ended = f"exit code {returncode}; it ended with: {watch.last or 'nothing'}"
        why = watch.failure.summary() or ended
        if returncode == _KILLED:
            why = f"it was killed, most likely for want of memory (see --container-memory); {ended}"
        again = f" `{self.again}` opens the same place with the command at hand." if self.again else ""
        return (f"The build of {command.project} failed: {why}. The whole log is {log}.{again}",)

    def _note(self, command: BuildCommand, log: Path, state: str) -> None:
        """Write down what was run, so that a person can do it again by hand."""
        body = {
            "state": state,
            "what": command.target,
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": command.cwd,
            "log": log.name,
            "out": str(self.work),
            "inside": self.layout.places.out,
            "where": self.where,
        }
        write_whole(self.logs / STATE, json.dumps(body, indent=1).encode())


class _Watch:
    """Reads a build's output: log, progress, wheels, errors."""

    def __init__(self, log: TextIO, progress: BuildProgress, root: str) -> None:
        self._log, self._progress = log, progress
        self.said: list[str] = []
        self.failure = bazel.Failure(root=root)
        self.carried = bazel.Carried()
        self.last = ""

    def line(self, line: str) -> None:
        """One line of it."""
        line = line.rstrip("\r")
        self._log.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        if (progress := bazel.progress_of(line)) is not None:
            self._progress.count(*progress)
            return
        if (path := wheel_said(line)) is not None:
            self.said.append(path)
        self.failure.feed(line)
        self.carried.feed(line)
        if line.strip():
            self.last = line.strip()


def made_of(request: BuildRequest) -> dict[str, Any]:
    """What decides a build's result beside its command; this repository's own commit does not."""
    source = source_of(request)
    return {
        "rocm": source.rocm,
        "builder": source.builder,
        "xla": source.xla_commit,
        "sources": [(checkout.name, checkout.commit) for checkout in source.sources],
    }


def _recorded(record: Path) -> Resolved | None:
    try:
        return Resolved(**json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _describe(path: Path, commit: str) -> Resolved:
    """A wheel that was built, as one that was fetched."""
    from packaging.utils import parse_wheel_filename

    with WheelArchive(path) as archive:
        requires = str(archive.metadata()["Requires-Python"] or "")
    name, version, _, _ = parse_wheel_filename(path.name)
    return Resolved(
        name=name,
        version=str(version),
        filename=path.name,
        url=f"source:jax@{commit}",
        sha256=file_sha256(path),
        requires_python=requires,
    )
