"""Tools of a build from source.

Their check in an image or on this machine, and the Bazel that the sources need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ci_build.images.image_pins import DOCKER
from ci_build.wheelset.source.build_py import source_of
from ci_build.wheelset.source.pins import interface_for
from core.frozen import frozen
from core.model import BuildRequest
from core.process import Runner

SCRIPT = DOCKER / "check-tools.sh"
"""Script that reports the tools of an environment.

The builder image also runs it as a self-test.
"""
_BAZEL = re.compile(r"bazel\s+(\S+)")


@frozen
class ToolReport:
    """Tools of a build environment.

    Attributes:
        versions: path or name of each usable tool -> its version.
        problems: path or name of each other tool -> the reason.
    """

    versions: Mapping[str, str]
    problems: Mapping[str, str]

    def missing(self) -> Iterator[str]:
        """Yield a part of a sentence for each tool that cannot be used."""
        for tool, reason in self.problems.items():
            yield f"{tool} ({reason})"


def report_tools(runner: Runner, argv: Sequence[str]) -> ToolReport:
    """Return the report of `SCRIPT`, from the command that runs it."""
    done = runner.run(argv, check=False)
    rows = [
        line.split("\t", 2)
        for line in done.stdout.splitlines()
        if line.startswith(("ok\t", "no\t"))
    ]
    versions = {row[1]: row[-1] for row in rows if row[0] == "ok"}
    problems = {row[1]: row[-1] for row in rows if row[0] == "no"}
    if not rows:
        text = done.stderr.strip() or "prints nothing"
        problems[argv[0]] = text.splitlines()[-1]
    return ToolReport(versions=versions, problems=problems)


def needed_bazel(request: BuildRequest) -> str:
    """Return the Bazel version of the sources, from .bazelversion or the interface."""
    folders = [
        Path(tree.folder)
        for tree in source_of(request).sources
        if tree.name == "jax" and tree.folder
    ]
    for folder in folders:
        try:
            lines = (folder / ".bazelversion").read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError):
            continue
        if lines:
            return lines[0]
    return interface_for(request.jax_version).bazel


def bazel_version(printed: str) -> str:
    """Return the version in the output of `bazel --version`, or the output if there is none."""
    match = _BAZEL.search(printed)
    return match[1] if match else printed


def bazel_serves(version: str, needed: str) -> bool:
    """Return whether a Bazel builds sources made for another version.

    The same major version, and not an older one.
    """
    try:
        found = Version(version.partition("-")[0])
        wanted = Version(needed)
    except InvalidVersion:
        return version == needed
    return found.major == wanted.major and found >= wanted
