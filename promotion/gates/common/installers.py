"""Commands with which pip installs and resolves a set, and the user's pip configuration.

The installers of this folder build commands but never run them, except to read that
configuration.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import field
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from core.errors import RequestError
from core.frozen import frozen
from core.process import Runner

_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(40, 4, -1)),
    "manylinux2014_x86_64",
    "linux_x86_64",
)
_PLATFORM_OPTIONS = tuple(f"--platform={platform}" for platform in _PLATFORMS)
"""Options for every compatible platform, since pip does not derive the older platforms."""
LOCKED = ("--require-hashes", "--no-deps")
"""Options with which pip and uv install hash-locked requirements."""
UNSET = dict.fromkeys(
    ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET"),
    "",
)
"""Variables of the user that installers must not see."""
LOOPBACK = "127.0.0.1"
"""Address of staged indexes, which are never reached through a proxy."""
_PRECEDENCE = ("global", "install", ":env:")
"""Sections of pip's configuration that apply to `pip install`.

Later sections override earlier sections.
"""
_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ProxyError|Failed to establish a new"
    r" connection|name resolution"
    r"|dns error|tcp connect error|client error \(Connect\)|ConnectError|ConnectTimeout"
    r"|server error \(5|Server Error|operation timed out|Read timed out|connection"
    r" closed before|[Cc]onnection reset"
    r"|Network is unreachable|tunnel error|invalid peer"
    r" certificate|CERTIFICATE_VERIFY_FAILED"
)
_RUNNER = "lib/python*/site-packages/pip/__pip-runner__.py"
"""Program of an unpacked pip that runs with any interpreter, as the option --python of pip does."""


@frozen
class Command:
    """Arguments of one process and its changes to the environment (see `Runner.run`)."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def parse_config(text: str) -> Mapping[str, str]:
    """Parse the output of `pip config list` to key -> value."""
    settings = {}
    for section in _PRECEDENCE:
        for line in text.splitlines():
            name, _, literal = line.partition("=")
            start, _, key = name.strip().rpartition(".")
            if literal and start == section:
                settings[key] = str(ast.literal_eval(literal))
    return settings


class Pip:
    """A pip, which installs into environments without pip.

    Args:
        no_index: whether the user's configuration disables indexes.
        direct: hosts that are reached without a proxy, separated by commas.
        environment: environment that contains the pip; None runs the running
            interpreter's with its option --python.
        name: name in evidence, such as `pip` for the newest pip, or `pip 22.3`.
        version: version of the pip; None means that of the running interpreter.
        pythons: Python versions that it supports; None means all.

    Attributes:
        caches: whether files of staged indexes are cached in a directory of the caller.
    """

    caches = False

    def __init__(
        self,
        *,
        no_index: bool = False,
        direct: str = LOOPBACK,
        environment: Path | None = None,
        name: str = "pip",
        version: str | None = None,
        pythons: tuple[str, ...] | None = None,
    ) -> None:
        self.name = name
        self.pythons = pythons
        self.version = version or installed_version("pip")
        self._runner = next(environment.glob(_RUNNER), None) if environment else None
        self._no_index = no_index
        self._direct = bypass_proxy(direct)
        self._alone = {**UNSET, **self._direct, "PIP_CONFIG_FILE": os.devnull}

    def create(self, python: Path, folder: Path) -> Command:
        """Make a virtual environment without pip."""
        return Command(
            argv=(str(python), "-m", "venv", "--without-pip", str(folder)), env=UNSET
        )

    def install_staged(
        self, python: Path, requirements: Path, index: str, *, locked: bool = True
    ) -> Command:
        """Install requirements from this index alone.

        With `locked`, by hash and without dependencies.
        """
        args = (
            "install",
            "--isolated",
            f"--index-url={index}",
            *(LOCKED if locked else ()),
            "--only-binary=:all:",
            "--no-input",
            "--no-compile",
            "--no-cache-dir",
            f"--requirement={requirements}",
        )
        return Command(argv=(*self._pip(python), *args), env=self._alone)

    def install_rest(
        self, python: Path, requirements: Path, *, locked: bool
    ) -> Command:
        """Install further requirements from the user's indexes.

        With `locked`, by hash and without dependencies.
        """
        args = (
            "install",
            "--no-input",
            "--no-compile",
            "--only-binary=:all:",
            *(LOCKED if locked else ()),
        )
        return Command(
            argv=(*self._pip(python), *args, f"--requirement={requirements}"), env=UNSET
        )

    def check(self, python: Path) -> Command:
        """Verify that the installed distributions are compatible."""
        return Command(argv=(*self._pip(python), "check"), env=UNSET)

    def resolve(self, python: Path, requirements: Path, index: str) -> Command:
        """Resolve requirements from the user's indexes and a given index, without installing.

        See `chosen`.
        """
        # The given index is used even if the user disabled indexes.
        which = "--index-url" if self._no_index else "--extra-index-url"
        args = (
            *_DRY,
            "--report=-",
            f"{which}={index}",
            f"--requirement={requirements}",
        )
        enable = {"PIP_NO_INDEX": "0"} if self._no_index else {}
        return Command(
            argv=(*self._pip(python), *args), env={**UNSET, **enable, **self._direct}
        )

    def resolve_alone(
        self, python: Path, requirements: Path, index: str, folder: Path
    ) -> Command:
        """Resolve requirements from one index and one directory, without installing."""
        alone = (
            "--isolated",
            "--no-cache-dir",
            f"--index-url={index}",
            f"--find-links={folder}",
        )
        return Command(
            argv=(*self._pip(python), *_DRY, *alone, f"--requirement={requirements}"),
            env=self._alone,
        )

    def chosen(self, stdout: str) -> Mapping[str, frozenset[str]]:
        """Parse the output of `resolve` to project -> sha256 of the wheels to install.

        Source: pip's documentation, "Installation Report", version 1.

        Raises:
            ValueError: the output has an unknown format.
        """
        try:
            digests: dict[str, frozenset[str]] = {}
            for row in json.loads(stdout)["install"]:
                name = canonicalize_name(row["metadata"]["name"])
                digest = _digest(row["download_info"]["archive_info"])
                digests[name] = frozenset({digest})
            return digests
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"Cannot parse pip's installation report: {error!r}"
            ) from error

    def _pip(self, python: Path) -> tuple[str, ...]:
        """Return the command of this pip, which installs for an interpreter."""
        if self._runner is None:
            return (sys.executable, *_PIP, f"--python={python}")
        return (str(python), str(self._runner), "--disable-pip-version-check")


_PIP = ("-m", "pip", "--disable-pip-version-check")
_DRY = (
    "install",
    "--dry-run",
    "--ignore-installed",
    "--quiet",
    "--no-input",
    "--only-binary=:all:",
)


def download(version: str, folder: Path, *what: str) -> Command:
    """Return the command that downloads wheels for one Python from the user's index.

    Args:
        what: requirements, and options that name or restrict them.
    """
    options = ("--no-input", "--only-binary=:all:", *_PLATFORM_OPTIONS)
    where = (f"--dest={folder}", f"--python-version={version}")
    return Command(
        argv=(sys.executable, *_PIP, "download", *options, *where, *what), env=UNSET
    )


def bypass_proxy(hosts: str) -> Mapping[str, str]:
    """Return variables that let programs reach these hosts without a proxy."""
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _digest(archive: Mapping[str, Any]) -> str:
    """Return the sha256 of a file in an installation report.

    Pip before 23.1 writes the older key `hash`.
    """
    return str(
        archive["hashes"]["sha256"] if "hashes" in archive else archive["hash"]
    ).removeprefix("sha256=")


def is_connection_failure(text: str) -> bool:
    """Return whether the output of pip or uv reports that a server did not answer."""
    return _UNREACHABLE.search(on_one_line(text)) is not None


def on_one_line(text: str) -> str:
    """Return the output of a program without line breaks."""
    return " ".join(text.split())


def offline_variables(wheelhouse: Path) -> Mapping[str, str]:
    """Return variables with which pip and uv take packages from one folder only.

    Args:
        wheelhouse: an unpacked bundle, or another folder with wheels.

    Raises:
        RequestError: the folder has no wheels.
    """
    folder = wheelhouse / "wheels" if (wheelhouse / "wheels").is_dir() else wheelhouse
    if not any(folder.glob("*.whl")):
        raise RequestError(
            f"--wheelhouse has no wheels: {wheelhouse}.",
            hint="Make it with `ci_build set bundle --platform`.",
        )
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder.absolute()),
        "PIP_CONFIG_FILE": os.devnull,
    }


def pip_config(runner: Runner) -> Mapping[str, str]:
    """Return the user's pip configuration; see `parse_config`."""
    return parse_config(runner.run((sys.executable, *_PIP, "config", "list")).stdout)
