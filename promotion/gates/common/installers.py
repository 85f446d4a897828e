"""Commands with which pip and uv install and resolve a set; this module builds commands but never runs them.

`Pip` and `Uv` have the same methods; each returns the command for a step. The user's pip configuration, which uv does
not read, is translated for uv.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.pylock import Pylock, PylockValidationError
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from core.process import Runner
from promotion.gates.common.requirements import sha256_of_wheels

_PLATFORM = "manylinux_2_28_x86_64"
_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64", "linux_x86_64")
_PLATFORM_OPTIONS = tuple(f"--platform={platform}" for platform in _PLATFORMS)
"""Options for every compatible platform, since pip does not derive the older platforms."""
_LOCKED = ("--require-hashes", "--no-deps")
_UNSET = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET"), "")
LOOPBACK = "127.0.0.1"
"""Address of staged indexes, which are never reached through a proxy."""
_UNSET_UV = dict.fromkeys(
    (
        *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"),
        *("UV_OFFLINE", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE_NEWER", "UV_PYTHON", "UV_TARGET"),
    ),
    "",
)
_PRECEDENCE = ("global", "install", ":env:")
"""Sections of pip's configuration that apply to `pip install`; later sections override earlier sections."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Arguments of one process and its changes to the environment (see `Runner.run`)."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def parse_config(text: str) -> Mapping[str, str]:
    """Parse the output of `pip config list`, with lines such as `global.index-url='https://…'`, to key -> value."""
    rows = [line.partition("=") for line in text.splitlines()]
    config = {name.strip(): str(ast.literal_eval(literal)) for name, _, literal in rows if literal}
    return {
        name.removeprefix(f"{section}."): value
        for section in _PRECEDENCE
        for name, value in config.items()
        if name.rpartition(".")[0] == section
    }


class Pip:
    """The pip of the running interpreter, which installs into environments without pip.

    Args:
        no_index: whether the user's configuration disables indexes.
        direct: hosts that are reached without a proxy, separated by commas.
    """

    name = "pip"
    caches = False
    """True if files of staged indexes are cached in a directory of the caller."""

    def __init__(self, *, no_index: bool = False, direct: str = LOOPBACK) -> None:
        self._no_index = no_index
        self._direct = _bypass_proxy(direct)
        self._alone = {**_UNSET, **self._direct, "PIP_CONFIG_FILE": os.devnull}

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        return Command(argv=(str(python), "-m", "venv", "--without-pip", str(folder)), env=_UNSET)

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """Install hash-locked requirements from this index alone, without dependencies."""
        return Command(argv=(*_pip(python), *_staged_only(requirements, index)), env=self._alone)

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """Install further requirements from the user's indexes; with `locked`, by hash and without dependencies."""
        args = ("install", "--no-input", "--no-compile", "--only-binary=:all:", *(_LOCKED if locked else ()))
        return Command(argv=(*_pip(python), *args, f"--requirement={requirements}"), env=_UNSET)

    def check(self, python: Path) -> Command:
        """Verify that the installed distributions are compatible."""
        return Command(argv=(*_pip(python), "check"), env=_UNSET)

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """Install like `install_staged`, but into a plain directory, for a Python version that this machine lacks."""
        where = (f"--target={folder}", f"--python-version={version}", *_PLATFORM_OPTIONS)
        return Command(argv=(sys.executable, *_PIP, *_staged_only(requirements, index), *where), env=self._alone)

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """Resolve requirements from the user's indexes and a given index, without installing; see `chosen`."""
        # The given index is used even if the user disabled indexes.
        which = "--index-url" if self._no_index else "--extra-index-url"
        args = (*_DRY, "--report=-", f"{which}={index}", f"--requirement={requirements}")
        enable = {"PIP_NO_INDEX": "0"} if self._no_index else {}
        return Command(argv=(*_pip(python), *args), env={**_UNSET, **enable, **self._direct})

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """Resolve requirements from one index and one directory of wheels alone, without installing."""
        alone = ("--isolated", "--no-cache-dir", f"--index-url={index}", f"--find-links={folder}")
        return Command(argv=(*_pip(python), *_DRY, *alone, f"--requirement={requirements}"), env=self._alone)

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Parse the output of `resolve` to project -> sha256 of the wheels that would be installed.

        pip writes an installation report (pip's documentation, "Installation Report", version 1).

        Raises:
            ValueError: the output has an unknown format.
        """
        try:
            rows = {row["metadata"]["name"]: row["download_info"] for row in json.loads(stdout)["install"]}
            hashes = {name: info["archive_info"]["hashes"]["sha256"] for name, info in rows.items()}
            return {canonicalize_name(name): frozenset({digest}) for name, digest in hashes.items()}
        except (KeyError, TypeError) as error:
            raise ValueError(f"Cannot parse pip's installation report: {error!r}") from error


_PIP = ("-m", "pip", "--disable-pip-version-check")
_DRY = ("install", "--dry-run", "--ignore-installed", "--quiet", "--no-input", "--only-binary=:all:")


def download(python: Path, version: str, requirements: Path, folder: Path) -> Command:
    """Return the command that downloads hash-locked requirements for any Python version from the user's index."""
    lock = (*_LOCKED, "--only-binary=:all:", f"--requirement={requirements}")
    args = ("download", "--no-input", f"--dest={folder}", f"--python-version={version}", *_PLATFORM_OPTIONS, *lock)
    return Command(argv=(*_pip(python), *args), env=_UNSET)


def _bypass_proxy(hosts: str) -> Mapping[str, str]:
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _pip(python: Path) -> tuple[str, ...]:
    return (sys.executable, *_PIP, f"--python={python}")


def _staged_only(requirements: Path, index: str) -> tuple[str, ...]:
    alone = ("--isolated", f"--index-url={index}", *_LOCKED, "--only-binary=:all:")
    return ("install", *alone, "--no-input", "--no-compile", "--no-cache-dir", f"--requirement={requirements}")


class Uv:
    """The program uv, configured to use pip's indexes and to choose the best version of all indexes, like pip.

    Args:
        program: path of uv.
        config: the user's pip configuration, see `parse_config`.
        cache: directory for files from staged indexes, which several environments can share; None disables it.
        direct: hosts that are reached without a proxy, separated by commas.

    Attributes:
        no_index: whether the user's configuration disables indexes.
        arguments, environment: pip's configuration, translated for uv. URLs of indexes may contain credentials and are
            passed in the environment, which other users cannot read.
    """

    name = "uv"

    def __init__(
        self, program: str, config: Mapping[str, str], *, cache: Path | None = None, direct: str = LOOPBACK
    ) -> None:
        self._program, self.caches, self._direct = program, cache is not None, _bypass_proxy(direct)
        self._cache_arguments = ("--no-cache",) if cache is None else (f"--cache-dir={cache}",)
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
        self.arguments = ("--index-strategy=unsafe-best-match", *(f"--allow-insecure-host={host}" for host in hosts))

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        args = ("venv", "--no-config", "--no-project", "--no-python-downloads", f"--python={python}", str(folder))
        return Command(argv=(self._program, *args), env={**_UNSET, **_UNSET_UV})

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Pip`."""
        return self._staged(requirements, index, f"--python={python}")

    def install_files(self, python: Path, requirements: Path, folders: Iterable[Path], cache: Path) -> Command:
        """Install hash-locked requirements from directories of wheels, without dependencies.

        Unpacked files stay in the cache; environments of other Pythons link to these files.
        """
        alone = ("--no-config", f"--cache-dir={cache}", "--no-index", *(f"--find-links={folder}" for folder in folders))
        argv = (self._program, "pip", "install", f"--python={python}", *alone, *_LOCKED)
        return Command(argv=(*argv, f"--requirement={requirements}"), env={**_UNSET, **_UNSET_UV})

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """See `Pip`."""
        args = ("--only-binary=:all:", *(_LOCKED if locked else ()), *self.arguments)
        offline = ("--no-index",) if self.no_index else ()
        argv = (self._program, "pip", "install", f"--python={python}", *args, *offline)
        env = {**_UNSET, **self.environment}
        return Command(argv=(*argv, f"--requirement={requirements}"), env=env)

    def check(self, python: Path) -> Command:
        """See `Pip`."""
        return Command(argv=(self._program, "pip", "check", f"--python={python}"), env=_UNSET)

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """See `Pip`."""
        platform = f"--python-platform=x86_64-{_PLATFORM.removesuffix('_x86_64')}"
        args = (f"--python={sys.executable}", f"--target={folder}", f"--python-version={version}", platform)
        return self._staged(requirements, index, *args)

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Pip`; the index has the priority of a user's `--index`."""
        argv = (*self._compile(python), *self._cache_arguments, *self.arguments, str(requirements))
        indexes = {"UV_INDEX": " ".join((index, *self.environment.get("UV_INDEX", "").split()))}
        if self.no_index:
            indexes = {"UV_INDEX": "", "UV_DEFAULT_INDEX": index}
        return Command(argv=argv, env={**_UNSET, **self.environment, **indexes, **self._direct})

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """See `Pip`."""
        alone = ("--no-config", *self._cache_arguments, f"--default-index={index}", f"--find-links={folder}")
        argv = (*self._compile(python), *alone, str(requirements))
        return Command(argv=argv, env={**_UNSET, **_UNSET_UV, **self._direct})

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Parse a lock file (PEP 751), which lists all wheels of a version that fit this Python and platform."""
        try:
            lock = Pylock.from_dict(tomllib.loads(stdout))
        except PylockValidationError as error:
            raise ValueError(f"Cannot parse uv's lock file: {error}") from error
        return {package.name: sha256_of_wheels(package) for package in lock.packages}

    def _compile(self, python: Path) -> tuple[str, ...]:
        args = ("pip", "compile", f"--python={python}", "--format=pylock.toml", "--quiet", "--no-header")
        return (self._program, *args, "--only-binary=:all:")

    def _staged(self, requirements: Path, index: str, *where: str) -> Command:
        alone = ("--no-config", *self._cache_arguments, f"--default-index={index}", *_LOCKED)
        argv = (self._program, "pip", "install", *where, *alone, "--only-binary=:all:", f"--requirement={requirements}")
        return Command(argv=argv, env={**_UNSET, **_UNSET_UV, **self._direct})


Installer = Pip | Uv


def configured_uv(runner: Runner, *, cache: Path | None = None, direct: str = LOOPBACK) -> Uv:
    """Return uv with the user's pip configuration; see `Uv`."""
    return Uv(find_uv_bin(), pip_config(runner), cache=cache, direct=direct)


def pip_config(runner: Runner) -> Mapping[str, str]:
    """Return the user's pip configuration; see `parse_config`."""
    return parse_config(runner.run((sys.executable, *_PIP, "config", "list")).stdout)


def configured_installers(runner: Runner, cache: Path | None = None) -> tuple[Installer, ...]:
    """Return pip and uv with the user's pip configuration."""
    # Staged indexes and the hosts in the user's NO_PROXY are reached directly.
    code = "import urllib.request; print(urllib.request.getproxies_environment().get('no', ''))"
    direct = ",".join(filter(None, (LOOPBACK, runner.run((sys.executable, "-I", "-c", code)).stdout.strip())))
    uv = configured_uv(runner, cache=cache, direct=direct)
    return Pip(no_index=uv.no_index, direct=direct), uv
