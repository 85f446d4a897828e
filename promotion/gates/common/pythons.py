"""Python interpreters of this machine, by version."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from core.errors import ProcessError
from core.process import Completed, Runner

_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def find_pythons(versions: Iterable[str], runner: Runner, uv: str) -> Mapping[str, Path]:
    """Interpreters for versions such as 3.12; those that are not on this machine are left out.

    The running one counts, then what uv finds (PATH and its own), then pyenv's, whose shims on PATH answer only for
    activated versions.
    """
    found = {}
    for version in versions:
        for candidate in _candidates(version, runner, uv):
            if _answer((str(candidate), "-I", "-c", _VERSION), runner) == version:
                found[version] = candidate
                break
    return found


def _candidates(version: str, runner: Runner, uv: str) -> Iterator[Path]:
    if version == "{}.{}".format(*sys.version_info[:2]):
        yield Path(sys.executable)
    if path := _answer((uv, "python", "find", "--no-project", "--no-python-downloads", version), runner):
        yield Path(path)
    if root := _answer(("pyenv", "root"), runner):
        yield from sorted(Path(root).glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def _answer(argv: tuple[str, ...], runner: Runner) -> str:
    """What a command prints, or nothing when it fails or is not there."""
    try:
        done: Completed = runner.run(argv, check=False)
    except ProcessError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
