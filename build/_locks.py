"""Update of the lock files.

The uv of `.venv` pins the requirements of the .in files, with hashes.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import _venv

INSTALLERS = _venv.ROOT / "promotion" / "gates" / "install" / "installers.toml"
COMPILE = [
    "pip",
    "compile",
    "--quiet",
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
]
HEADER = "--custom-compile-command=python3 build/update_locks"


def update(options: Sequence[str]) -> None:
    """Write all lock files.

    Packages that requirements.lock pins have the same versions in the other locks.

    Versions that are pinned already stay, unless an option such as `--upgrade` requests
    newer ones.

    Args:
        options: options of `uv pip compile`, which queries the index of the user's uv
            configuration.
    """
    _venv.enter("requirements.lock")
    _compile("requirements", [*options])
    pinned = "--constraints=requirements.lock"
    for name in (
        "requirements-cluster",
        "requirements-attest",
        "requirements-docs",
        "requirements-gate",
    ):
        _compile(name, [*options, pinned])
    _compile("../tests/support/rbe/requirements", [*options, pinned])
    # The tests use the cluster packages, in the versions that users get.
    _compile("requirements-dev", [*options, "--constraints=requirements-cluster.lock"])
    # The packages of this lock are unpacked and not installed, so their dependencies
    # are not needed.
    _compile("requirements-kernels", [*options, "--no-deps"])
    for row in tomllib.loads(INSTALLERS.read_text())["installers"]:
        _compile(
            f"installers/{row['name']}", [*options], requirement=row["requirement"]
        )


def _compile(name: str, options: list[str], requirement: str = "") -> None:
    """Write a lock file from its .in file, or from one requirement."""
    # Bare file names and no index address, so that the lock does not depend on this
    # machine.
    argv = [
        str(Path(sys.prefix, "bin", "uv")),
        *COMPILE,
        "--no-emit-index-url",
        HEADER,
        *options,
    ]
    argv += ["-" if requirement else f"{name}.in", f"--output-file={name}.lock"]
    done = subprocess.run(
        argv, cwd=_venv.BUILD, input=requirement, text=True, check=False
    )
    if done.returncode:
        print(
            f"update_locks: error: uv could not pin build/{name}.lock; the old lock stays.",
            file=sys.stderr,
        )
        sys.exit(_venv.EXIT_MACHINE)
