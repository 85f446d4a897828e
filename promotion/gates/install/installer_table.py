"""The installers of the gate and of `index check`, and their environments.

The newest pip and uv are those of the running interpreter. The oldest supported pips
are in `installers.toml`; each is installed by hash into an environment, which is kept
in the user's cache.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path

from uv import find_uv_bin

from core.errors import RequestError
from core.frozen import frozen
from core.process import Runner
from core.records import read_toml
from promotion.gates.common.installers import LOOPBACK, Pip, pip_config
from promotion.gates.common.uv_installer import Installer, Uv, locked_environment

NEWEST, ALL = SELECTIONS = ("newest", "all")
"""Names of selections: the newest pip and uv, or also the oldest supported pips."""
STORE = "installers"
"""Folder of the cache with the environments of installers."""
_TABLE = Path(__file__).with_name("installers.toml")
_LOCKS = Path(__file__).parents[3] / "build" / "installers"
_RUNNING = ("pip", "uv")
"""Installers of the running interpreter, which are the newest."""


@frozen
class LockedInstaller:
    """A pip of the table; see `installers.toml`."""

    name: str
    requirement: str
    pythons: tuple[str, ...]

    @property
    def lock(self) -> Path:
        """Return its lock file."""
        return _LOCKS / f"{self.name}.lock"

    @property
    def version(self) -> str:
        """Return its version according to the lock file."""
        found = re.search(r"^pip==(\S+)", self.lock.read_text(), re.MULTILINE)
        assert found is not None, f"{self.lock} does not contain pip"
        return found[1]


@frozen
class _InstallerTable:
    """Content of `installers.toml`."""

    installers: tuple[LockedInstaller, ...]


@cache
def locked_installers() -> tuple[LockedInstaller, ...]:
    """Return the installers of the table."""
    return read_toml(_TABLE, _InstallerTable, schema=1).installers


def installer_versions(selection: str) -> Mapping[str, str]:
    """Return name -> version of the installers of a selection.

    Raises:
        RequestError: the selection is unknown.
    """
    if selection not in SELECTIONS:
        raise RequestError(
            f"Unknown installers: {selection}.", hint=f"Give {' or '.join(SELECTIONS)}."
        )
    versions = {name: installed_version(name) for name in _RUNNING}
    if selection == ALL:
        for item in locked_installers():
            versions[item.name] = item.version
    return versions


def configured_installers(
    runner: Runner,
    folder: Path,
    selection: str = NEWEST,
    environments: Path | None = None,
    config: Mapping[str, str] | None = None,
) -> tuple[Installer, ...]:
    """Return installers with the user's pip configuration.

    Args:
        folder: directory for caches of files.
        selection: NEWEST or ALL.
        environments: the user's cache, which keeps the environments of installers; None
            uses `folder`.
        config: the user's pip configuration; None reads it.

    Raises:
        MachineError: an installer cannot be installed.
    """
    # Staged indexes and the hosts in the user's NO_PROXY are reached directly. As in
    # urllib.request, whose import takes longer than all else, the name in lower case
    # comes first.
    code = (
        "from os import environ; print(environ.get('no_proxy', environ.get('NO_PROXY',"
        " '')))"
    )
    direct = ",".join(
        filter(
            None,
            (
                LOOPBACK,
                runner.run((sys.executable, "-I", "-S", "-c", code)).stdout.strip(),
            ),
        )
    )
    config = pip_config(runner) if config is None else config
    uv = Uv(find_uv_bin(), config, cache=folder / "uv", direct=direct)
    # Without the option --python, pip saves one process for each command.
    pip = Pip(no_index=uv.no_index, direct=direct, environment=Path(sys.prefix))
    installers: list[Installer] = [pip, uv]
    if selection == ALL:
        for item in locked_installers():
            oldest = Pip(
                no_index=uv.no_index,
                direct=direct,
                environment=installer_environment(
                    item, environments or folder, uv, runner
                ),
                name=item.name,
                version=item.version,
                pythons=item.pythons,
            )
            installers.append(oldest)
    return tuple(installers)


def installer_environment(
    item: LockedInstaller, cache: Path, uv: Uv, runner: Runner
) -> Path:
    """Return the environment of an installer, installed once and shared by all runs.

    Args:
        cache: folder of all caches.
        uv: program that installs it, from the user's package index.

    Raises:
        MachineError: it cannot be installed, for example without a network.
    """
    return locked_environment(
        cache / STORE,
        item.name,
        item.lock,
        uv,
        runner,
        what=f"the installer {item.name}",
    )
