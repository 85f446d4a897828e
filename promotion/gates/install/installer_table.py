"""The table of installers, the selection of some of them, and their environments.

The newest pip and uv are those of the running interpreter. The others are in `installers.toml`; each is installed by
hash into an environment, which is kept in the user's cache.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from core.errors import RequestError
from core.process import Runner
from promotion.gates.common.installers import LOOPBACK, Installer, Pip, pip_config
from promotion.gates.common.locked_environment import locked_environment
from promotion.gates.common.uv_installer import Uv
from promotion.gates.install.lockers import Locker, Pdm, Poetry

NEWEST, ALL = "newest", "all"
"""Names of selections."""
STORE = "installers"
"""Folder of the cache with the environments of installers."""
_TABLE = Path(__file__).with_name("installers.toml")
_LOCKS = Path(__file__).parents[3] / "build" / "installers"
_RUNNING = ("pip", "uv")
"""Installers of the running interpreter, which are the newest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedInstaller:
    """An installer of the table; see `installers.toml`."""

    name: str
    requirement: str
    pythons: tuple[str, ...]

    @property
    def project(self) -> str:
        """Return the name of its project on the package index, such as pip."""
        return canonicalize_name(Requirement(self.requirement).name)

    @property
    def lock(self) -> Path:
        """Return its lock file."""
        return _LOCKS / f"{self.name}.lock"

    @property
    def version(self) -> str:
        """Return its version according to the lock file."""
        found = re.search(rf"^{re.escape(self.project)}(?:\[.*\])?==(\S+)", self.lock.read_text(), re.MULTILINE)
        if found is None:
            raise AssertionError(f"{self.lock} does not contain {self.project}")
        return found[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallerSelection:
    """Installers to test with.

    Attributes:
        name: NEWEST, ALL, or the names of some installers, which are partial.
        running: names of the installers of the running interpreter.
        locked: installers of the table.
    """

    name: str
    running: tuple[str, ...]
    locked: tuple[LockedInstaller, ...]

    @property
    def partial(self) -> bool:
        """Report whether only some installers of the table are selected, or not all of the newest ones."""
        return self.name not in (NEWEST, ALL)

    @property
    def versions(self) -> Mapping[str, str]:
        """Return name -> version of the installers."""
        running = {name: installed_version(name) for name in self.running}
        return running | {item.name: item.version for item in self.locked}


@cache
def locked_installers() -> tuple[LockedInstaller, ...]:
    """Return the installers of the table."""
    rows = tomllib.loads(_TABLE.read_text())["installers"]
    return tuple(LockedInstaller(**{**row, "pythons": tuple(row["pythons"])}) for row in rows)


def select_installers(text: str) -> InstallerSelection:
    """Return the installers that a text names: `newest`, `all`, or names separated by commas.

    Raises:
        RequestError: an installer is unknown, or none is named.
    """
    table = locked_installers()
    if text in (NEWEST, ALL):
        return InstallerSelection(name=text, running=_RUNNING, locked=table if text == ALL else ())
    names = [*dict.fromkeys(filter(None, (word.strip() for word in text.split(","))))]
    known = (*_RUNNING, *(item.name for item in table))
    if unknown := sorted(set(names) - set(known)) or ([text] if not names else []):
        raise RequestError(
            f"Unknown installers: {', '.join(unknown)}.", hint=f"Give {NEWEST}, {ALL}, or some of {', '.join(known)}."
        )
    return InstallerSelection(
        name=",".join(names),
        running=tuple(name for name in _RUNNING if name in names),
        locked=tuple(item for item in table if item.name in names),
    )


def configured_installers(
    runner: Runner,
    folder: Path,
    selection: InstallerSelection | None = None,
    environments: Path | None = None,
    config: Mapping[str, str] | None = None,
) -> tuple[Installer | Locker, ...]:
    """Return installers with the user's pip configuration.

    Args:
        folder: directory for caches of files.
        selection: the installers; None means the newest ones.
        environments: the user's cache, which keeps the environments of installers; None uses `folder`.
        config: the user's pip configuration; None reads it.

    Raises:
        MachineError: an installer cannot be installed.
    """
    selection = selection or select_installers(NEWEST)
    # Staged indexes and the hosts in the user's NO_PROXY are reached directly. As in urllib.request, whose import takes
    # longer than all else, the name in lower case comes first.
    code = "from os import environ; print(environ.get('no_proxy', environ.get('NO_PROXY', '')))"
    direct = ",".join(filter(None, (LOOPBACK, runner.run((sys.executable, "-I", "-S", "-c", code)).stdout.strip())))
    config = pip_config(runner) if config is None else config
    uv = Uv(find_uv_bin(), config, cache=folder / "uv", direct=direct)
    # Without the option --python, pip saves one process for each command.
    pip = Pip(no_index=uv.no_index, direct=direct, environment=Path(sys.prefix))
    running: Mapping[str, Installer] = {"pip": pip, "uv": uv}
    installers: list[Installer | Locker] = [running[name] for name in selection.running]
    for item in selection.locked:
        environment = installer_environment(item, environments or folder, uv, runner)
        name, version, pythons = item.name, item.version, item.pythons
        match item.project:
            case "pip":
                installers.append(
                    Pip(
                        no_index=uv.no_index,
                        direct=direct,
                        environment=environment,
                        name=name,
                        version=version,
                        pythons=pythons,
                    )
                )
            case "uv":
                program = str(environment / "bin" / "uv")
                installers.append(
                    Uv(program, config, cache=folder / name, direct=direct, name=name, version=version, pythons=pythons)
                )
            case project:
                kind = {"poetry": Poetry, "pdm": Pdm}[project]
                installers.append(kind(environment, config, direct=direct, name=name, version=version, pythons=pythons))
    return tuple(installers)


def installer_environment(item: LockedInstaller, cache: Path, uv: Uv, runner: Runner) -> Path:
    """Return the environment of an installer, which is installed on its first use and then shared by all runs.

    Args:
        cache: folder of all caches.
        uv: program that installs it, from the user's package index.

    Raises:
        MachineError: it cannot be installed, for example without a network.
    """
    return locked_environment(cache / STORE, item.name, item.lock, uv, runner, what=f"the installer {item.name}")
