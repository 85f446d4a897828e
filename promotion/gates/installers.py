"""The commands with which pip and uv install a set: pure functions, so that they can be read and tested."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from promotion.gates.pip_config import UvOptions

_PLATFORM = "manylinux_2_28_x86_64"
_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64", "linux_x86_64")
_CLEAN = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET"), "")
_LOOPBACK = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
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


class Pip:
    """The pip that comes with the interpreter."""

    name = "pip"

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment with pip in it."""
        return Command(argv=(str(python), "-m", "venv", str(folder)), env=_CLEAN)

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        return Command(argv=(*_pip(python), *_staged_only(requirements, index)), env=_STAGED_PIP)

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
        return Command(argv=(*_pip(Path(sys.executable)), *words), env=_STAGED_PIP)


_STAGED_PIP = {**_CLEAN, **_LOOPBACK, "PIP_CONFIG_FILE": os.devnull}


def _pip(python: Path) -> tuple[str, ...]:
    return (str(python), "-m", "pip", "--disable-pip-version-check")


def _staged_only(requirements: Path, index: str) -> tuple[str, ...]:
    alone = ("--isolated", f"--index-url={index}", "--no-deps", "--require-hashes", "--only-binary=:all:")
    return ("install", *alone, "--no-input", "--no-compile", "--no-cache-dir", f"--requirement={requirements}")


class Uv:
    """uv, told to use the indexes that pip is configured with.

    Args:
        program: path of uv.
        options: the user's pip configuration, translated.
    """

    name = "uv"

    def __init__(self, program: str, options: UvOptions) -> None:
        self._program = program
        self._options = options

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        words = ("venv", "--no-config", "--no-project", "--no-python-downloads", f"--python={python}", str(folder))
        return Command(argv=(self._program, *words), env={**_CLEAN, **_NO_UV_SETTINGS})

    def install_staged(self, python: Path, requirements: Path, index: str) -> Command:
        """See `Installer`."""
        return self._staged(requirements, index, f"--python={python}")

    def install_files(self, python: Path, requirements: Path, folders: Iterable[Path]) -> Command:
        """Install hash-locked requirements from wheels in some folders, without dependencies and without a cache."""
        alone = ("--no-config", "--no-cache", "--no-index", *(f"--find-links={folder}" for folder in folders))
        argv = (self._program, "pip", "install", f"--python={python}", *alone, "--no-deps", "--require-hashes")
        return Command(argv=(*argv, f"--requirement={requirements}"), env={**_CLEAN, **_NO_UV_SETTINGS})

    def install_rest(self, python: Path, requirements: Path, *, locked: bool) -> Command:
        """See `Installer`."""
        lock = ("--require-hashes", "--no-deps") if locked else ()
        words = (f"--python={python}", "--only-binary=:all:", *lock, *self._options.arguments)
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

    def _staged(self, requirements: Path, index: str, *where: str) -> Command:
        alone = ("--no-config", "--no-cache", f"--default-index={index}", "--no-deps", "--require-hashes")
        argv = (self._program, "pip", "install", *where, *alone, "--only-binary=:all:", f"--requirement={requirements}")
        return Command(argv=argv, env={**_CLEAN, **_NO_UV_SETTINGS, **_LOOPBACK})
