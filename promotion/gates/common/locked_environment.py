"""Environments of programs from lock files, kept in the user's cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from core.digests import sha256_of
from core.errors import MachineError, ProcessError
from core.process import Runner
from core.store import ContentStore
from promotion.gates.common.uv_installer import Uv

_SECONDS = 900.0


def locked_environment(
    root: Path, name: str, lock: Path, uv: Uv, runner: Runner, *, what: str = ""
) -> Path:
    """Return the shared environment of a lock file, installed by hash on its first use.

    Args:
        root: folder of the cache for such environments.
        name: name of the program, with which its folder begins.
        uv: program that installs it, from the user's package index.
        what: description of the program for errors, by default its name.

    Raises:
        MachineError: it cannot be installed, for example without a network.
    """
    store = ContentStore(root)
    identity = "\n".join((sys.version, sys.base_prefix, lock.read_text()))
    key = f"{name}-{sha256_of(identity.encode())[:16]}"
    folder = store.folder(key)
    if not folder.is_dir():
        store.sweep()
        with store.scratch() as work:
            environment = work / "environment"
            create = uv.create(Path(sys.executable), environment)
            install = uv.install_rest(environment / "bin" / "python", lock, locked=True)
            try:
                # A relocatable environment may be renamed when it is complete.
                runner.run(
                    (*create.argv, "--relocatable"), env=create.env, timeout=_SECONDS
                )
                runner.run(install.argv, env=install.env, timeout=_SECONDS)
            except ProcessError as problem:
                raise MachineError(
                    f"Cannot install {what or name}: {problem.message}",
                    hint=(
                        "Check the package index of pip's configuration and run the"
                        " command again."
                    ),
                ) from problem
            store.publish(environment, key)
    os.utime(folder)  # `ci_build cache` keeps recently used entries
    return folder
