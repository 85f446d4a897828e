"""Pins the .in files into the lock files, with hashes, through the uv of `.venv`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import _venv

COMPILE = ["pip", "compile", "--quiet", "--universal", "--python-version=3.11", "--generate-hashes"]
HEADER = "--custom-compile-command=python3 build/update_locks"


def update(options: Sequence[str]) -> None:
    """Write requirements.lock, then the locks of developers, `attest`, the device gate and tests, in the same versions.

    What is pinned stays, unless an option such as `--upgrade` says otherwise.

    Args:
        options: for `uv pip compile`, which asks the index of the user's uv configuration.
    """
    _venv.enter("requirements.lock")
    _compile("requirements", [*options])
    for name in ("requirements-dev", "requirements-attest", "requirements-gate", "../tests/support/rbe/requirements"):
        _compile(name, [*options, "--constraints=requirements.lock"])
    # These are unpacked rather than installed, so their dependencies are not needed.
    _compile("requirements-kernels", [*options, "--no-deps"])


def _compile(name: str, options: list[str]) -> None:
    # With bare file names and no index address, so that nothing of this machine gets into the file.
    argv = [str(Path(sys.prefix, "bin", "uv")), *COMPILE, "--no-emit-index-url", HEADER, *options]
    done = subprocess.run([*argv, f"{name}.in", f"--output-file={name}.lock"], cwd=_venv.BUILD, check=False)
    if done.returncode:
        print(f"update_locks: error: uv could not pin build/{name}.in; the old lock stays.", file=sys.stderr)
        sys.exit(_venv.EXIT_MACHINE)
