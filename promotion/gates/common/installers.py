"""Commands with which pip and uv install and resolve a set; building them has no side effects."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from packaging.pylock import Pylock, PylockValidationError
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from core.process import Runner
from promotion.gates.common.pip_config import UvOptions, parse_config, uv_options

_PLATFORM = "manylinux_2_28_x86_64"
_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64", "linux_x86_64")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Arguments of one process and its changes to the environment (see `Runner.run`)."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class Installer(Protocol):
    """Commands of an installer, the same for pip and uv."""

    @property
    def name(self) -> str:
        """Return the name of the program."""

    @property
    def caches(self) -> bool:
        """Report whether files of a staged index are cached in a directory of the caller."""

    def create(self, python: Path, folder: Path) -> Command:
        """Create an empty environment."""

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """Install hash-locked requirements from this index alone, without dependencies."""

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """Install further requirements from the user's indexes; with `locked`, by hash and without dependencies."""

    def check(self, python: Path) -> Command:
        """Verify that the installed distributions are compatible."""

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """Install as `install_staged` into a plain directory, for a Python version that this machine lacks."""

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """Resolve requirements from the user's indexes and this one, without installing; see `chosen`."""

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """Resolve requirements from one index and one directory of wheels alone, without installing."""

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Parse the output of `resolve`: project -> sha256 of the wheels that would be installed.

        Raises:
            ValueError: the output has an unknown form.
        """


class Pip:
    """The pip of the running interpreter, applied to other environments, which need no pip.

    Args:
        no_index: whether the user's configuration disables indexes.
        direct: hosts that are reached without a proxy, separated by commas.
    """

    name = "pip"
    caches = False

    def __init__(self, *, no_index: bool = False, direct: str = LOOPBACK) -> None:
        self._no_index = no_index
        self._direct = _bypass_proxy(direct)
        self._alone = {**_UNSET, **self._direct, "PIP_CONFIG_FILE": os.devnull}

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        return Command(argv=(str(python), "-m", "venv", "--without-pip", str(folder)), env=_UNSET)

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        return Command(argv=(*_pip(python), *_staged_only(requirements, index)), env=self._alone)

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """See `Installer`."""
        lock = ("--require-hashes", "--no-deps") if locked else ()
        args = (
            "install",
            "--no-input",
            "--no-compile",
            "--only-binary=:all:",
            *lock,
            f"--requirement={requirements}",
        )
        return Command(argv=(*_pip(python), *args), env=_UNSET)

    def check(self, python: Path) -> Command:
        """See `Installer`."""
        return Command(argv=(*_pip(python), "check"), env=_UNSET)

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """See `Installer`; every manylinux platform is named, since pip does not expand them."""
        platforms = tuple(f"--platform={platform}" for platform in _PLATFORMS)
        args = (
            *_staged_only(requirements, index),
            f"--target={folder}",
            f"--python-version={version}",
            *platforms,
        )
        return Command(argv=(sys.executable, *_PIP, *args), env=self._alone)

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`; where indexes are disabled, this one is enabled."""
        which = "--index-url" if self._no_index else "--extra-index-url"
        args = (*_DRY, "--report=-", f"{which}={index}", f"--requirement={requirements}")
        enable = {"PIP_NO_INDEX": "0"} if self._no_index else {}
        return Command(argv=(*_pip(python), *args), env={**_UNSET, **enable, **self._direct})

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """See `Installer`."""
        alone = ("--isolated", "--no-cache-dir", f"--index-url={index}", f"--find-links={folder}")
        return Command(argv=(*_pip(python), *_DRY, *alone, f"--requirement={requirements}"), env=self._alone)

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Parse an installation report (pip's documentation, "Installation Report", version 1)."""
        try:
            return {
                canonicalize_name(item["metadata"]["name"]): frozenset(
                    {item["download_info"]["archive_info"]["hashes"]["sha256"]}
                )
                for item in json.loads(stdout)["install"]
            }
        except (KeyError, TypeError) as error:
            raise ValueError(f"Cannot parse pip's installation report: {error!r}") from error


_PIP = ("-m", "pip", "--disable-pip-version-check")
_DRY = ("install", "--dry-run", "--ignore-installed", "--quiet", "--no-input", "--only-binary=:all:")


def download(python: Path, version: str, requirements: Path, folder: Path) -> Command:
    """Return the command that downloads hash-locked requirements for any Python version from the user's index."""
    platforms = tuple(f"--platform={platform}" for platform in _PLATFORMS)
    lock = ("--require-hashes", "--no-deps", "--only-binary=:all:", f"--requirement={requirements}")
    args = ("download", "--no-input", f"--dest={folder}", f"--python-version={version}", *platforms, *lock)
    return Command(argv=(*_pip(python), *args), env=_UNSET)


def _bypass_proxy(hosts: str) -> Mapping[str, str]:
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _pip(python: Path) -> tuple[str, ...]:
    return (sys.executable, *_PIP, f"--python={python}")


def _staged_only(requirements: Path, index: str) -> tuple[str, ...]:
    alone = ("--isolated", f"--index-url={index}", "--no-deps", "--require-hashes", "--only-binary=:all:")
    return ("install", *alone, "--no-input", "--no-compile", "--no-cache-dir", f"--requirement={requirements}")


class Uv:
    """The program uv, configured with the indexes of pip.

    Args:
        program: path of uv.
        options: the user's pip configuration, translated.
        cache: directory for files from staged indexes, which several environments can share; None disables it.
        direct: hosts that are reached without a proxy, separated by commas.
    """

    name = "uv"

    def __init__(self, program: str, options: UvOptions, *, cache: Path | None = None, direct: str = LOOPBACK) -> None:
        self._program = program
        self._options = options
        self._cache = cache
        self._direct = _bypass_proxy(direct)

    @property
    def caches(self) -> bool:
        """See `Installer`."""
        return self._cache is not None

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        args = ("venv", "--no-config", "--no-project", "--no-python-downloads", f"--python={python}", str(folder))
        return Command(argv=(self._program, *args), env={**_UNSET, **_UNSET_UV})

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        return self._staged(requirements, index, f"--python={python}")

    def install_files(self, python: Path, requirements: Path, folders: Iterable[Path], cache: Path) -> Command:
        """Install hash-locked requirements from directories of wheels, without dependencies.

        Unpacked files stay in the cache, from where environments of other Pythons link them.
        """
        alone = ("--no-config", f"--cache-dir={cache}", "--no-index", *(f"--find-links={folder}" for folder in folders))
        argv = (self._program, "pip", "install", f"--python={python}", *alone, "--no-deps", "--require-hashes")
        return Command(argv=(*argv, f"--requirement={requirements}"), env={**_UNSET, **_UNSET_UV})

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """See `Installer`."""
        lock = ("--require-hashes", "--no-deps") if locked else ()
        offline = ("--no-index",) if self._options.no_index else ()
        args = (f"--python={python}", "--only-binary=:all:", *lock, *offline, *self._options.arguments)
        argv = (self._program, "pip", "install", *args, f"--requirement={requirements}")
        return Command(argv=argv, env={**_UNSET, **self._options.environment})

    def check(self, python: Path) -> Command:
        """See `Installer`."""
        return Command(argv=(self._program, "pip", "check", f"--python={python}"), env=_UNSET)

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        platform = f"--python-platform=x86_64-{_PLATFORM.removesuffix('_x86_64')}"
        args = (f"--python={sys.executable}", f"--target={folder}", f"--python-version={version}", platform)
        return self._staged(requirements, index, *args)

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`; the index has the priority of a user's `--index`."""
        argv = (*self._compile(python), *self._cache_arguments(), *self._options.arguments, str(requirements))
        indexes = {"UV_INDEX": " ".join((index, *self._options.environment.get("UV_INDEX", "").split()))}
        if self._options.no_index:
            indexes = {"UV_INDEX": "", "UV_DEFAULT_INDEX": index}
        return Command(argv=argv, env={**_UNSET, **self._options.environment, **indexes, **self._direct})

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """See `Installer`."""
        alone = ("--no-config", *self._cache_arguments(), f"--default-index={index}", f"--find-links={folder}")
        argv = (*self._compile(python), *alone, str(requirements))
        return Command(argv=argv, env={**_UNSET, **_UNSET_UV, **self._direct})

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Parse a lock file (PEP 751), which lists all wheels of a version that fit this Python and platform."""
        try:
            lock = Pylock.from_dict(tomllib.loads(stdout))
        except PylockValidationError as error:
            raise ValueError(f"Cannot parse uv's lock file: {error}") from error
        return {
            package.name: frozenset(
                wheel.hashes["sha256"] for wheel in package.wheels or () if "sha256" in wheel.hashes
            )
            for package in lock.packages
        }

    def _compile(self, python: Path) -> tuple[str, ...]:
        args = ("pip", "compile", f"--python={python}", "--format=pylock.toml", "--quiet", "--no-header")
        return (self._program, *args, "--only-binary=:all:")

    def _cache_arguments(self) -> tuple[str, ...]:
        return ("--no-cache",) if self._cache is None else (f"--cache-dir={self._cache}",)

    def _staged(self, requirements: Path, index: str, *where: str) -> Command:
        alone = ("--no-config", *self._cache_arguments(), f"--default-index={index}", "--no-deps", "--require-hashes")
        argv = (self._program, "pip", "install", *where, *alone, "--only-binary=:all:", f"--requirement={requirements}")
        return Command(argv=argv, env={**_UNSET, **_UNSET_UV, **self._direct})


def configured_installers(runner: Runner, cache: Path | None = None) -> tuple[Installer, ...]:
    """Return pip, and uv with the user's pip configuration.

    Args:
        cache: see `Uv`.
    """
    config = runner.run((sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list")).stdout
    options, direct = uv_options(parse_config(config)), _direct_hosts(runner)
    pip = Pip(no_index=options.no_index, direct=direct)
    return pip, Uv(find_uv_bin(), options, cache=cache, direct=direct)


def _direct_hosts(runner: Runner) -> str:
    """Return the hosts that are reached without a proxy: this machine and the user's NO_PROXY."""
    code = "import urllib.request; print(urllib.request.getproxies_environment().get('no', ''))"
    hosts = runner.run((sys.executable, "-I", "-c", code)).stdout.strip()
    return f"{LOOPBACK},{hosts}" if hosts else LOOPBACK
