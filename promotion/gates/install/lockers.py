"""Commands with which poetry and pdm lock a project that requires a set, and install from the lock.

Both read a pyproject.toml in which the set's projects may come from one index only, and all others from the user's
indexes. Thus no other index can provide a project of the set.
"""

from __future__ import annotations

import json
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from promotion.gates.common.installers import LOOPBACK, UNSET, Command, bypass_proxy


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedProject:
    """A project that requires a set.

    Attributes:
        python: the Python version for which it is locked.
        own: project of the set -> version, from the index.
        others: other required projects -> version, from the user's indexes.
        index: URL of the index with the set.
    """

    python: str
    own: Mapping[str, str]
    others: Mapping[str, str]
    index: str


class Locker(ABC):
    """A program that locks the requirements of a project by hash.

    Args:
        environment: environment that contains the program.
        config: the user's pip configuration, see `parse_config`.
        direct: hosts that are reached without a proxy, separated by commas.
        name: name in evidence.
        version: version of the program.
        pythons: Python versions that it supports.

    Attributes:
        unusable: reason why the user's configuration cannot be translated; empty if it can.
        lock_file: name of its lock file.
    """

    caches = False
    lock_file = ""

    def __init__(
        self,
        environment: Path,
        config: Mapping[str, str],
        *,
        name: str,
        version: str,
        pythons: tuple[str, ...],
        direct: str = LOOPBACK,
    ) -> None:
        self.name, self.version, self.pythons = name, version, pythons
        self._program = environment / "bin" / type(self).__name__.lower()
        # Start-up time: only these programs need pip's default index. Without it, poetry reads PyPI through an
        # interface of PyPI's own, which mirrors lack.
        from pip._internal.models.index import PyPI

        default, protocols = config.get("index-url", PyPI.simple_url), ("http://", "https://")
        self.unusable = ""
        if config.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            self.unusable = f"pip's configuration disables indexes, which {name} needs"
        elif not default.startswith(protocols):
            self.unusable = f"pip's configuration names the index {default}, which {name} cannot read"
        # Neither program reads an index in a folder.
        more = (url for url in config.get("extra-index-url", "").split() if url.startswith(protocols))
        self._indexes = (default, *more)
        self._env = {**UNSET, **bypass_proxy(direct)}
        if "cert" in config:
            self._env |= dict.fromkeys(("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), config["cert"])

    def pyproject(self, project: LockedProject) -> str:
        """Return the text of the project's pyproject.toml."""
        required = [f"{name}=={version}" for name, version in {**project.own, **project.others}.items()]
        major, minor = map(int, project.python.split("."))
        table = {
            "name": "installation-test",
            "version": "0",
            "requires-python": f">={project.python},<{major}.{minor + 1}",
            "dependencies": required,
        }
        return "".join(f"{line}\n" for line in ("[project]", *_pairs(table), *self._own_lines(project)))

    @abstractmethod
    def lock(self, environment: Path, folder: Path) -> Command:
        """Return the command that locks the project of its working directory.

        Args:
            environment: environment into which `install` installs the project.
            folder: a directory for the program's configuration and caches.
        """

    @abstractmethod
    def install(self, environment: Path, folder: Path) -> Command:
        """Return the command that installs the locked requirements; see `lock`."""

    def locked(self, text: str) -> Mapping[str, Mapping[str, frozenset[str]]]:
        """Parse a lock file to project -> version -> sha256 of its files.

        Raises:
            ValueError: the file has an unknown format.
        """
        found: dict[str, dict[str, frozenset[str]]] = {}
        try:
            for package in tomllib.loads(text)["package"]:
                hashes = frozenset(file["hash"].removeprefix("sha256:") for file in package["files"])
                versions = found.setdefault(canonicalize_name(package["name"]), {})
                versions[package["version"]] = versions.get(package["version"], frozenset()) | hashes
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"Cannot parse {self.lock_file}: {error!r}") from error
        return found

    @abstractmethod
    def _own_lines(self, project: LockedProject) -> Iterator[str]:
        """Yield the lines about indexes."""

    def _command(self, *args: str, environment: Path, env: Mapping[str, str]) -> Command:
        return Command(argv=(str(self._program), *args), env={**self._env, "VIRTUAL_ENV": str(environment), **env})


class Poetry(Locker):
    """Poetry; the source of the set is `explicit`, so only the projects that name it come from it."""

    lock_file = "poetry.lock"

    def lock(self, environment: Path, folder: Path) -> Command:
        """See `Locker`."""
        return self._poetry("lock", environment=environment, folder=folder)

    def install(self, environment: Path, folder: Path) -> Command:
        """See `Locker`."""
        return self._poetry("install", "--no-root", environment=environment, folder=folder)

    def _poetry(self, *args: str, environment: Path, folder: Path) -> Command:
        names = ("CONFIG", "CACHE", "DATA")
        folders = {f"POETRY_{name}_DIR": str(folder / name.lower()) for name in names}
        env = {**folders, "POETRY_KEYRING_ENABLED": "false"}
        return self._command(*args, "--no-interaction", environment=environment, env=env)

    def _own_lines(self, project: LockedProject) -> Iterator[str]:
        yield from ("[tool.poetry]", "package-mode = false")
        for number, url in enumerate(self._indexes):
            priority = "supplemental" if number else "primary"
            yield from ("[[tool.poetry.source]]", *_pairs({"name": f"user-{number}", "url": url, "priority": priority}))
        yield from ("[[tool.poetry.source]]", *_pairs({"name": "set", "url": project.index, "priority": "explicit"}))
        yield "[tool.poetry.dependencies]"
        yield from (f'{name} = {{ source = "set" }}' for name in project.own)


class Pdm(Locker):
    """PDM; the source of the set lists the set's projects, so these come from no other source."""

    lock_file = "pdm.lock"

    def lock(self, environment: Path, folder: Path) -> Command:
        """See `Locker`."""
        return self._pdm("lock", environment=environment, folder=folder)

    def install(self, environment: Path, folder: Path) -> Command:
        """See `Locker`."""
        return self._pdm("sync", "--no-self", environment=environment, folder=folder)

    def _pdm(self, *args: str, environment: Path, folder: Path) -> Command:
        env = {
            "PDM_CONFIG_FILE": str(folder / "config.toml"),
            "PDM_CACHE_DIR": str(folder / "cache"),
            "PDM_LOG_DIR": str(folder / "log"),
            "PDM_CHECK_UPDATE": "false",
            "PDM_NON_INTERACTIVE": "1",
            "PDM_IGNORE_SAVED_PYTHON": "1",
            # The user's variables may select another environment.
            **dict.fromkeys(("PDM_PYTHON", "PDM_IGNORE_ACTIVE_VENV", "PDM_PYPI_URL"), ""),
        }
        return self._command(*args, environment=environment, env=env)

    def _own_lines(self, project: LockedProject) -> Iterator[str]:
        yield from ("[tool.pdm]", "distribution = false")
        for number, url in enumerate(self._indexes):
            name = f"user-{number}" if number else "pypi"  # replaces the default index
            yield from ("[[tool.pdm.source]]", *_pairs({"name": name, "url": url}))
        yield "[[tool.pdm.source]]"
        yield from _pairs({"name": "set", "url": project.index, "include_packages": [*project.own]})


def _pairs(table: Mapping[str, object]) -> Iterator[str]:
    """Yield lines of TOML; strings and lists of strings are written as in JSON."""
    yield from (f"{name} = {json.dumps(value)}" for name, value in table.items())
