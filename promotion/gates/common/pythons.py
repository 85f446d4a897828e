"""Python interpreters of this machine, by version."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from uv import find_uv_bin

from core.errors import MachineError, ProcessError
from core.process import ProcessResult, Runner

_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
OWN = "{}.{}".format(*sys.version_info[:2])
"""Version of the running Python."""


def require_python(versions: Sequence[str], found: Mapping[str, Path]) -> None:
    """Check that one of some Pythons was found.

    Raises:
        MachineError: this machine lacks all of them.
    """
    if not found:
        raise MachineError(
            f"This machine has no Python {', '.join(versions)}, so no wheel of the set"
            " can run.",
            hint=install_hint(versions),
        )


def install_hint(versions: Iterable[str]) -> str:
    """Return the hint for missing Pythons."""
    return f"Run `{find_uv_bin()} python install {' '.join(versions)}`."


def find_pythons(versions: Iterable[str], runner: Runner) -> Mapping[str, Path]:
    """Find interpreters for versions such as 3.12; versions that this machine lacks are left out.

    The search covers the running interpreter, uv's search path, and pyenv's versions,
    including inactive ones.
    """
    pythons = {}
    for version in versions:
        for candidate in _candidates(version, runner):
            if _output((str(candidate), "-I", "-c", _VERSION), runner) == version:
                pythons[version] = candidate
                break
    return pythons


def _candidates(version: str, runner: Runner) -> Iterator[Path]:
    if version == OWN:
        yield Path(sys.executable)
    if path := _output(
        (
            find_uv_bin(),
            "python",
            "find",
            "--no-project",
            "--no-python-downloads",
            version,
        ),
        runner,
    ):
        yield Path(path)
    if root := _output(("pyenv", "root"), runner):
        yield from sorted(
            Path(root).glob(f"versions/{version}.*/bin/python{version}"), reverse=True
        )


def _output(argv: tuple[str, ...], runner: Runner) -> str:
    """Return the output of a command; empty if the command fails or does not exist."""
    try:
        completed: ProcessResult = runner.run(argv, check=False)
    except ProcessError:
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""
