"""The output of a build: written to its log, and parsed for progress, wheels and errors.

The builds name their wheels in two ways (jax 0.8.0 to 0.11.0, rocm-jax 0.8.0 to 0.9.1):

- The wheel builder that rocm-jax runs prints `Output wheel: <path>` for the file that
  it writes to `--output_path`. In jax, the same line comes from a Bazel action and
  names a path inside Bazel's output tree.
- jax's build.py prints `Distribution path: <path>` for each file that it copies from
  `bazel-bin/jaxlib/tools/dist`. Bazel never removes files there, so the wheels of other
  Pythons and of earlier builds are copied too. Each wheel is a declared output of its
  own target, and Bazel prints the outputs of the target that it has just brought up to
  date (`--show_result`). Only this wheel is of this build, whatever the names and times
  of the others.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ci_build.wheelset.source import bazel
from ci_build.wheelset.source.build_py import BuildCommand, cpython_tag
from core.errors import InputError
from core.model import Progress

_COPIED = re.compile(r"Distribution path: (\S.*?\.whl)\s*$")
_WRITTEN = re.compile(r"Output wheel: (/.*?\.whl)\s*$")
_DIST = "bazel-bin/jaxlib/tools/dist"
"""Folder from which jax's build.py copies wheels."""


class BuildProgress(Progress, Protocol):
    """Progress of a build; `core.report` implements it."""

    def warning(self, text: str) -> None:
        """Report a problem that does not stop the build."""


@dataclass(kw_only=True, slots=True)
class BuiltWheels:
    """Wheels that a build names, parsed from every line of its output in order.

    Attributes:
        written: absolute paths that a wheel builder wrote.
        copied: paths that build.py copied, including wheels of other builds.
        results: outputs of the target that Bazel built.
    """

    written: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    results: bazel.Results = field(default_factory=bazel.Results)

    def feed(self, line: str) -> None:
        """Parse one line."""
        if match := _COPIED.search(line):
            self.copied.append(match[1])
        elif match := _WRITTEN.search(line):
            self.written.append(match[1])
        self.results.feed(line)

    def requested(self, command: BuildCommand) -> str:
        """Return the file name of the wheel in `command.output` that this build made.

        Raises:
            InputError: the output names no wheel, several wheels, or a wheel that was
                not requested; or Bazel did not build a copied wheel.
        """
        paths = list(dict.fromkeys(self.copied or self.written))
        if self.copied:
            built = {
                path.removeprefix(f"{_DIST}/")
                for path in self.results.files
                if path.endswith(".whl")
            }
            mine = [path for path in paths if path.rpartition("/")[2] in built]
            if not mine:
                raise InputError(
                    f"The build of {command.target} copied {', '.join(paths)}, but"
                    " Bazel built"
                    f" {', '.join(sorted(self.results.files)) or 'no file'}.",
                    hint=f"Read its log. The wheel has to be in {_DIST}.",
                )
            paths = mine
        if len(paths) != 1:
            what = f"{len(paths)} wheels ({', '.join(paths)})" if paths else "no wheel"
            raise InputError(
                f"The output of the build of {command.target} names {what}.",
                hint="Read its log.",
            )
        return _checked_name(paths[0], command)


class BuildOutput:
    """The output of a build, line by line.

    Args:
        root: path of the workspace as seen by the build.
    """

    def __init__(self, log: TextIO, progress: BuildProgress, root: str) -> None:
        self._log = log
        self._progress = progress
        self.wheels = BuiltWheels()
        self.failure = bazel.Failure(root=root)
        self.actions = bazel.ActionCounts()
        self.last = ""

    def line(self, line: str) -> None:
        """Log and parse one line."""
        line = line.rstrip("\r")
        self._log.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        if (progress := bazel.progress_of(line)) is not None:
            self._progress.count(*progress)
            return
        self.wheels.feed(line)
        self.failure.feed(line)
        self.actions.feed(line)
        if line.strip():
            self.last = line.strip()


def _checked_name(path: str, command: BuildCommand) -> str:
    """Return a wheel's file name after comparing its parts with the request."""
    folder, _, name = path.rpartition("/")
    try:
        project, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise InputError(
            f"The build wrote a file that is not a wheel: {name}.", hint="Read its log."
        ) from error
    expected = {cpython_tag(command.python)} if command.python else {"py3"}
    interpreters = {tag.interpreter for tag in tags}
    wrong = [
        text
        for text, fits in (
            (f"it is in {folder}", folder == command.output),
            (f"its project is {project}", project == command.project),
            (f"its version is {version}", str(version) in command.versions),
            (
                f"its interpreter tag is {', '.join(sorted(interpreters))}",
                interpreters == expected,
            ),
        )
        if not fits
    ]
    if wrong:
        raise InputError(
            f"The build wrote {name} instead of the requested wheel:"
            f" {'; '.join(wrong)}.",
            hint=(
                f"Read its log. The requested wheel is {command.project}"
                f" {command.versions[0]} in {command.output}."
            ),
        )
    return name
