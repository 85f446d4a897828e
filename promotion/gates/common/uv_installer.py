"""Commands with which uv installs and resolves a set, and environments from lock files.

uv uses pip's configuration.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import version as installed_version
from pathlib import Path

from packaging.pylock import Pylock, PylockValidationError
from uv import find_uv_bin

from core.digests import sha256_of
from core.errors import MachineError, ProcessError
from core.process import Runner
from core.store import ContentStore
from promotion.gates.common.installers import (
    LOCKED,
    LOOPBACK,
    UNSET,
    Command,
    Pip,
    bypass_proxy,
    pip_config,
)
from promotion.gates.common.set_requirements import sha256_of_wheels

_UNSET_UV = dict.fromkeys(
    (
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        "UV_NO_INDEX",
        "UV_OFFLINE",
        "UV_CONSTRAINT",
        "UV_OVERRIDE",
        "UV_EXCLUDE_NEWER",
        "UV_PYTHON",
        "UV_TARGET",
    ),
    "",
)


class Uv:
    """The program uv, configured to use pip's indexes and choose versions like pip.

    Args:
        program: path of uv.
        config: the user's pip configuration, see `parse_config`.
        cache: directory for files from staged indexes, which several environments can
            share; None disables it.
        direct: hosts that are reached without a proxy, separated by commas.

    Attributes:
        no_index: whether the user's configuration disables indexes.
        arguments, environment: pip's configuration, translated for uv. URLs of indexes
            may contain credentials and are passed in the environment, which other users
            cannot read.
    """

    def __init__(
        self,
        program: str,
        config: Mapping[str, str],
        *,
        cache: Path | None = None,
        direct: str = LOOPBACK,
    ) -> None:
        self.name = "uv"
        self.version = installed_version("uv")
        self.pythons: tuple[str, ...] | None = None
        self._program = program
        self.caches = cache is not None
        self._direct = bypass_proxy(direct)
        self._cache_arguments = (
            ("--no-cache",) if cache is None else (f"--cache-dir={cache}",)
        )
        self.no_index = config.get("no-index", "").lower() in ("1", "true", "yes", "on")
        environment = {
            "SSL_CERT_FILE": config.get("cert", ""),
            "SSL_CLIENT_CERT": config.get("client-cert", ""),
            "ALL_PROXY": config.get("proxy", ""),
            "UV_DEFAULT_INDEX": "" if self.no_index else config.get("index-url", ""),
            "UV_INDEX": " ".join(config.get("extra-index-url", "").split()),
            "UV_FIND_LINKS": ",".join(config.get("find-links", "").split()),
        }
        self.environment = {name: value for name, value in environment.items() if value}
        hosts = config.get("trusted-host", "").split()
        self.arguments = (
            "--index-strategy=unsafe-best-match",
            *(f"--allow-insecure-host={host}" for host in hosts),
        )

    def create(self, python: Path, folder: Path) -> Command:
        """See `Pip`."""
        args = (
            "venv",
            "--no-config",
            "--no-project",
            "--no-python-downloads",
            f"--python={python}",
            str(folder),
        )
        return Command(argv=(self._program, *args), env={**UNSET, **_UNSET_UV})

    def install_staged(
        self, python: Path, requirements: Path, index: str, *, locked: bool = True
    ) -> Command:
        """See `Pip`."""
        argv = (
            self._program,
            "pip",
            "install",
            f"--python={python}",
            "--no-config",
            *self._cache_arguments,
            f"--default-index={index}",
            *(LOCKED if locked else ()),
            "--only-binary=:all:",
            f"--requirement={requirements}",
        )
        return Command(argv=argv, env={**UNSET, **_UNSET_UV, **self._direct})

    def install_files(
        self, python: Path, requirements: Path, folders: Iterable[Path], cache: Path
    ) -> Command:
        """Install hash-locked requirements from directories of wheels, without dependencies.

        Unpacked files stay in the cache; environments of other Pythons link to these
        files.
        """
        alone = (
            "--no-config",
            f"--cache-dir={cache}",
            "--no-index",
            *(f"--find-links={folder}" for folder in folders),
        )
        argv = (self._program, "pip", "install", f"--python={python}", *alone, *LOCKED)
        return Command(
            argv=(*argv, f"--requirement={requirements}"), env={**UNSET, **_UNSET_UV}
        )

    def install_rest(
        self, python: Path, requirements: Path, *, locked: bool
    ) -> Command:
        """See `Pip`."""
        args = ("--only-binary=:all:", *(LOCKED if locked else ()), *self.arguments)
        offline = ("--no-index",) if self.no_index else ()
        argv = (self._program, "pip", "install", f"--python={python}", *args, *offline)
        env = {**UNSET, **self.environment}
        return Command(argv=(*argv, f"--requirement={requirements}"), env=env)

    def check(self, python: Path) -> Command:
        """See `Pip`."""
        return Command(
            argv=(self._program, "pip", "check", f"--python={python}"), env=UNSET
        )

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Pip`; the index has the priority of a user's `--index`."""
        argv = (
            *self._compile(python),
            *self._cache_arguments,
            *self.arguments,
            str(requirements),
        )
        indexes = {
            "UV_INDEX": " ".join((index, *self.environment.get("UV_INDEX", "").split()))
        }
        if self.no_index:
            indexes = {"UV_INDEX": "", "UV_DEFAULT_INDEX": index}
        return Command(
            argv=argv, env={**UNSET, **self.environment, **indexes, **self._direct}
        )

    def resolve_alone(
        self, python: Path, requirements: Path, index: str, folder: Path
    ) -> Command:
        """See `Pip`."""
        alone = (
            "--no-config",
            *self._cache_arguments,
            f"--default-index={index}",
            f"--find-links={folder}",
        )
        argv = (*self._compile(python), *alone, str(requirements))
        return Command(argv=argv, env={**UNSET, **_UNSET_UV, **self._direct})

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Parse a lock file (PEP 751), which lists all compatible wheels of a version."""
        try:
            lock = Pylock.from_dict(tomllib.loads(stdout))
        except PylockValidationError as error:
            raise ValueError(f"Cannot parse uv's lock file: {error}") from error
        return {package.name: sha256_of_wheels(package) for package in lock.packages}

    def _compile(self, python: Path) -> tuple[str, ...]:
        args = (
            "pip",
            "compile",
            f"--python={python}",
            "--format=pylock.toml",
            "--quiet",
            "--no-header",
        )
        return (self._program, *args, "--only-binary=:all:")


Installer = Pip | Uv
"""A program that installs sets, which returns the command for each step."""


def configured_uv(runner: Runner, config: Mapping[str, str] | None = None) -> Uv:
    """Return uv with the user's pip configuration, which is read unless it is given."""
    return Uv(find_uv_bin(), pip_config(runner) if config is None else config)


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
