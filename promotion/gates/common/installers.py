"""The commands with which pip and uv install and resolve a set: pure functions, so that they can be read and tested."""

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
_CLEAN = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET"), "")
LOOPBACK = "127.0.0.1"
"""Where staged indexes are served: no proxy can reach that."""
_NO_UV_SETTINGS = dict.fromkeys(
    (
        *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"),
        *("UV_OFFLINE", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE_NEWER", "UV_PYTHON", "UV_TARGET"),
    ),
    "",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One process: argv, and changes to the environment as `Runner.run` takes them."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class Installer(Protocol):
    """What the install gate asks of pip and of uv alike."""

    @property
    def name(self) -> str:
        """Of the program."""

    @property
    def caches(self) -> bool:
        """Whether it keeps what it fetched from a staged index, in a folder that nobody else fills."""

    def create(self, python: Path, folder: Path) -> Command:
        """Make an empty environment."""

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """Install hash-locked requirements from one index and from nowhere else, without dependencies."""

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """Install further requirements from the user's ordinary index; locked ones by hash and without dependencies."""

    def check(self, python: Path) -> Command:
        """Verify that everything installed fits together."""

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """As `install_staged`, for a Python version that is not on this machine: into a plain folder."""

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """Choose distributions as a user's installation would, from the user's indexes and this one; `chosen` reads it.

        Nothing is installed.
        """

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """Choose from one index and one folder with wheels, and from nowhere else. Nothing is installed."""

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """What `resolve` printed: project -> sha256 of the wheels that would be installed.

        Raises:
            ValueError: it is not understood.
        """


class Pip:
    """The pip beside this program, which works on other environments; they need none of their own.

    Args:
        no_index: the user's configuration has pip ask no index.
        direct: hosts that are reached without a proxy, with commas.
    """

    name = "pip"
    caches = False

    def __init__(self, *, no_index: bool = False, direct: str = LOOPBACK) -> None:
        self._no_index = no_index
        self._direct = _no_proxy(direct)
        self._alone = {**_CLEAN, **self._direct, "PIP_CONFIG_FILE": os.devnull}

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        return Command(argv=(str(python), "-m", "venv", "--without-pip", str(folder)), env=_CLEAN)

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        return Command(argv=(*_pip(python), *_staged_only(requirements, index)), env=self._alone)

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """See `Installer`."""
        lock = ("--require-hashes", "--no-deps") if locked else ()
        words = ("install", "--no-input", "--no-compile", "--only-binary=:all:", *lock, f"--requirement={requirements}")
        return Command(argv=(*_pip(python), *words), env=_CLEAN)

    def check(self, python: Path) -> Command:
        """See `Installer`."""
        return Command(argv=(*_pip(python), "check"), env=_CLEAN)

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """See `Installer`; pip expands no manylinux platform by itself."""
        platforms = tuple(f"--platform={platform}" for platform in _PLATFORMS)
        words = (*_staged_only(requirements, index), f"--target={folder}", f"--python-version={version}", *platforms)
        return Command(argv=(sys.executable, *_PIP, *words), env=self._alone)

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`; who asks no index has to ask this one."""
        which = "--index-url" if self._no_index else "--extra-index-url"
        words = (*_DRY, "--report=-", f"{which}={index}", f"--requirement={requirements}")
        asks = {"PIP_NO_INDEX": "0"} if self._no_index else {}
        return Command(argv=(*_pip(python), *words), env={**_CLEAN, **asks, **self._direct})

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """See `Installer`."""
        alone = ("--isolated", "--no-cache-dir", f"--index-url={index}", f"--find-links={folder}")
        return Command(argv=(*_pip(python), *_DRY, *alone, f"--requirement={requirements}"), env=self._alone)

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Read an installation report (pip's documentation, "Installation Report", version 1)."""
        try:
            return {
                canonicalize_name(item["metadata"]["name"]): frozenset(
                    {item["download_info"]["archive_info"]["hashes"]["sha256"]}
                )
                for item in json.loads(stdout)["install"]
            }
        except (KeyError, TypeError) as error:
            raise ValueError(f"pip's report is not understood: {error!r}") from error


_PIP = ("-m", "pip", "--disable-pip-version-check")
_DRY = ("install", "--dry-run", "--ignore-installed", "--quiet", "--no-input", "--only-binary=:all:")


def download(python: Path, version: str, requirements: Path, folder: Path) -> Command:
    """Fetch hash-locked requirements for a Python version, present or not, from the user's index into a folder."""
    platforms = tuple(f"--platform={platform}" for platform in _PLATFORMS)
    lock = ("--require-hashes", "--no-deps", "--only-binary=:all:", f"--requirement={requirements}")
    words = ("download", "--no-input", f"--dest={folder}", f"--python-version={version}", *platforms, *lock)
    return Command(argv=(*_pip(python), *words), env=_CLEAN)


def _no_proxy(hosts: str) -> Mapping[str, str]:
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _pip(python: Path) -> tuple[str, ...]:
    return (sys.executable, *_PIP, f"--python={python}")


def _staged_only(requirements: Path, index: str) -> tuple[str, ...]:
    alone = ("--isolated", f"--index-url={index}", "--no-deps", "--require-hashes", "--only-binary=:all:")
    return ("install", *alone, "--no-input", "--no-compile", "--no-cache-dir", f"--requirement={requirements}")


class Uv:
    """uv, told to use the indexes that pip is configured with.

    Args:
        program: path of uv.
        options: the user's pip configuration, translated.
        cache: a folder of the caller's for what comes from staged indexes, from which several environments can share
            files; None keeps nothing.
        direct: hosts that are reached without a proxy, with commas.
    """

    name = "uv"

    def __init__(self, program: str, options: UvOptions, *, cache: Path | None = None, direct: str = LOOPBACK) -> None:
        self._program = program
        self._options = options
        self._cache = cache
        self._direct = _no_proxy(direct)

    @property
    def caches(self) -> bool:
        """See `Installer`."""
        return self._cache is not None

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        words = ("venv", "--no-config", "--no-project", "--no-python-downloads", f"--python={python}", str(folder))
        return Command(argv=(self._program, *words), env={**_CLEAN, **_NO_UV_SETTINGS})

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        return self._staged(requirements, index, f"--python={python}")

    def install_files(self, python: Path, requirements: Path, folders: Iterable[Path], cache: Path) -> Command:
        """Install hash-locked requirements from wheels in some folders, without dependencies.

        What is unpacked stays in the cache folder, from where environments of other Pythons get it by hard links.
        """
        alone = ("--no-config", f"--cache-dir={cache}", "--no-index", *(f"--find-links={folder}" for folder in folders))
        argv = (self._program, "pip", "install", f"--python={python}", *alone, "--no-deps", "--require-hashes")
        return Command(argv=(*argv, f"--requirement={requirements}"), env={**_CLEAN, **_NO_UV_SETTINGS})

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """See `Installer`."""
        lock = ("--require-hashes", "--no-deps") if locked else ()
        offline = ("--no-index",) if self._options.no_index else ()
        words = (f"--python={python}", "--only-binary=:all:", *lock, *offline, *self._options.arguments)
        argv = (self._program, "pip", "install", *words, f"--requirement={requirements}")
        return Command(argv=argv, env={**_CLEAN, **self._options.environment})

    def check(self, python: Path) -> Command:
        """See `Installer`."""
        return Command(argv=(self._program, "pip", "check", f"--python={python}"), env=_CLEAN)

    def unpack(self, version: str, folder: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        platform = f"--python-platform=x86_64-{_PLATFORM.removesuffix('_x86_64')}"
        words = (f"--python={sys.executable}", f"--target={folder}", f"--python-version={version}", platform)
        return self._staged(requirements, index, *words)

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`; the index comes first, as with a user's `--index`."""
        argv = (*self._compile(python), *self._kept(), *self._options.arguments, str(requirements))
        asked = {"UV_INDEX": " ".join((index, *self._options.environment.get("UV_INDEX", "").split()))}
        if self._options.no_index:
            asked = {"UV_INDEX": "", "UV_DEFAULT_INDEX": index}
        return Command(argv=argv, env={**_CLEAN, **self._options.environment, **asked, **self._direct})

    def resolve_alone(self, python: Path, requirements: Path, index: str, folder: Path) -> Command:
        """See `Installer`."""
        alone = ("--no-config", *self._kept(), f"--default-index={index}", f"--find-links={folder}")
        argv = (*self._compile(python), *alone, str(requirements))
        return Command(argv=argv, env={**_CLEAN, **_NO_UV_SETTINGS, **self._direct})

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Read a lock (PEP 751); of a version, it lists all wheels that fit this Python and platform."""
        try:
            lock = Pylock.from_dict(tomllib.loads(stdout))
        except PylockValidationError as error:
            raise ValueError(f"uv's lock is not understood: {error}") from error
        return {
            package.name: frozenset(
                wheel.hashes["sha256"] for wheel in package.wheels or () if "sha256" in wheel.hashes
            )
            for package in lock.packages
        }

    def _compile(self, python: Path) -> tuple[str, ...]:
        words = ("pip", "compile", f"--python={python}", "--format=pylock.toml", "--quiet", "--no-header")
        return (self._program, *words, "--only-binary=:all:")

    def _kept(self) -> tuple[str, ...]:
        return ("--no-cache",) if self._cache is None else (f"--cache-dir={self._cache}",)

    def _staged(self, requirements: Path, index: str, *where: str) -> Command:
        alone = ("--no-config", *self._kept(), f"--default-index={index}", "--no-deps", "--require-hashes")
        argv = (self._program, "pip", "install", *where, *alone, "--only-binary=:all:", f"--requirement={requirements}")
        return Command(argv=argv, env={**_CLEAN, **_NO_UV_SETTINGS, **self._direct})


def configured_installers(runner: Runner, cache: Path | None = None) -> tuple[Installer, ...]:
    """pip, and uv with the user's pip configuration.

    Args:
        cache: a folder of the caller's, see `Uv`.
    """
    config = runner.run((sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list")).stdout
    options, direct = uv_options(parse_config(config)), _reached_directly(runner)
    pip = Pip(no_index=options.no_index, direct=direct)
    return pip, Uv(find_uv_bin(), options, cache=cache, direct=direct)


def _reached_directly(runner: Runner) -> str:
    """Hosts for which no proxy is asked: this machine, and those of the user's NO_PROXY."""
    code = "import urllib.request; print(urllib.request.getproxies_environment().get('no', ''))"
    hosts = runner.run((sys.executable, "-I", "-c", code)).stdout.strip()
    return f"{LOOPBACK},{hosts}" if hosts else LOOPBACK
