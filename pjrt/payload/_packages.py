"""The jax packages of a Python, read from their files, and the commands that install them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _versions

INDEX = "INDEX"
"""Stands in commands for the index that a wheel came from, which is unknown."""
INTO_SYSTEM = "--break-system-packages"
"""Option of pip for further packages of a user who has installed the wheels with it."""
FRESH = "~/jax-rocm"
"""Proposed virtual environment if packages cannot be installed into the examined Python."""
_DIST_INFO = re.compile(
    r"(jax|jaxlib|jax_rocm[0-9]+_(?:pjrt|plugin)|rocm|rocm_sdk_\w+)-([^-]+)\.dist-info"
)
_NATIVE = re.compile(r"jax-rocm([0-9]+)-(pjrt|plugin)")
_REQUIREMENT = re.compile(
    r"^Requires-Dist: ([A-Za-z0-9._-]+?)\s*\(?([<>=!~][^;)\n]*)\)?\s*$", re.MULTILINE
)
"""A requirement without a marker, with its specifier."""


@dataclass(frozen=True)
class Python:
    """The Python whose packages are examined.

    Attributes:
        version: full version, such as 3.12.1.
        implementation: name of the implementation, such as cpython.
        free_threaded: whether it is built without the GIL, which needs other wheels.
        virtual: whether it belongs to a virtual environment.
        managed: whether pip refuses to install into it (PEP 668).
        pip: whether pip is installed.
        path: folders that it imports from.
    """

    version: str
    implementation: str
    free_threaded: bool
    executable: str
    virtual: bool
    managed: bool
    pip: bool
    path: tuple[str, ...]

    @property
    def closed(self) -> bool:
        """Whether pip refuses to modify this Python of the operating system (PEP 668)."""
        return self.managed and not self.virtual

    def command(self, *words: str) -> str:
        """Return a command of pip, or of uv if pip is missing, for this Python."""
        if self.closed and words[0] == "uninstall":
            words = (words[0], INTO_SYSTEM, *words[1:])
        elif self.closed and words[1] != INTO_SYSTEM:
            venv = f"{shlex.quote(self.executable)} -m venv {FRESH}"
            return f"{venv} && {FRESH}/bin/python -m pip {shlex.join(words)}"
        if not self.pip:
            python = ("--python", self.executable)
            return shlex.join(("uv", "pip", words[0], *python, *words[1:]))
        return shlex.join((self.executable, "-m", "pip", *words))


def this_python() -> Python:
    """Return the Python that runs this module."""
    marker = Path(os.__file__).with_name("EXTERNALLY-MANAGED")
    return Python(
        version=".".join(map(str, sys.version_info[:3])),
        implementation=sys.implementation.name,
        free_threaded="t" in sys.abiflags,
        executable=sys.executable,
        virtual=sys.prefix != sys.base_prefix,
        managed=marker.exists(),
        pip=importlib.util.find_spec("pip") is not None,
        path=tuple(filter(_is_folder, dict.fromkeys(sys.path))),
    )


def _is_folder(entry: str) -> bool:
    with suppress(OSError):
        return Path(entry).is_dir()
    return False


@dataclass(frozen=True)
class Package:
    """An installed package.

    Attributes:
        name: normalised name (PEP 503).
        version: empty if its metadata are missing, as in frozen programs.
        site: folder that it is installed in.
    """

    name: str
    version: str
    site: Path

    @property
    def major(self) -> int:
        """The ROCm major of a pjrt or plugin package; 0 for others."""
        match = _NATIVE.fullmatch(self.name)
        return int(match[1]) if match else 0

    @property
    def info(self) -> dict[str, Any]:
        """The build information of a wheel of this project; empty for other wheels."""
        with suppress(OSError, ValueError):
            file = self.site / _folder(self.name) / "build_info.json"
            body = json.loads(file.read_text(encoding="utf-8"))
            return body if isinstance(body, dict) else {}
        return {}

    @property
    def _headers(self) -> str:
        """The headers of METADATA; empty if the file cannot be read."""
        name = self.name.replace("-", "_")
        file = self.site / f"{name}-{self.version}.dist-info/METADATA"
        with suppress(OSError):
            text = file.read_text(encoding="utf-8", errors="replace")
            return text.partition("\n\n")[0]
        return ""

    @property
    def requirements(self) -> list[tuple[str, str]]:
        """Names and specifiers of the required packages."""
        return _REQUIREMENT.findall(self._headers)

    @property
    def extras(self) -> set[str]:
        """Names of the extras, such as device-gfx942, which installs ROCm for this GPU."""
        return {*re.findall(r"(?m)^Provides-Extra: (\S+)$", self._headers)}

    def missing_files(self) -> list[str]:
        """Return the recorded libraries that do not exist."""
        paths = [member["path"] for member in self.info.get("members", ())]
        return [path for path in paths if not (self.site / path).is_file()]


def look(path: Sequence[str]) -> dict[str, Package]:
    """Return the installed packages by name; the first folder of `path` wins."""
    found: dict[str, Package] = {}
    for entry in path:
        for place in sorted(Path(entry).glob("*.dist-info")):
            if match := _DIST_INFO.fullmatch(place.name):
                name = match[1].replace("_", "-")
                found.setdefault(name, Package(name, match[2], place.parent))
    return found


def find_folder(name: str, path: Sequence[str]) -> Package | None:
    """Return a package without metadata by its folder; None if there is none."""
    for entry in path:
        if Path(entry, _folder(name)).is_dir():
            return Package(name, "", Path(entry))
    return None


def _folder(name: str) -> str:
    match = _NATIVE.fullmatch(name)
    if match is None:
        return name
    if match[2] == "pjrt":
        return f"jax_plugins/xla_rocm{match[1]}"
    return f"jax_rocm{match[1]}_plugin"


def fitting(info: Mapping[str, Any], major: int) -> dict[str, str]:
    """Return name -> specifier of the packages that fit a wheel.

    Args:
        info: its build information.
        major: its ROCm major.
    """
    exact = f"=={info['jax_version']}"
    jaxlib = str(info["requires_jaxlib"])
    # jax refuses a jaxlib that is newer than itself, such as 0.12.0.1.
    if _versions.accepts(jaxlib, info["jax_version"]):
        jaxlib = exact
    packages = {"jax": exact, "jaxlib": jaxlib}
    for part in ("pjrt", "plugin"):
        packages[f"jax-rocm{major}-{part}"] = f"=={info['version']}"
    return packages


def install_words(
    wanted: Mapping[str, str], installed: Mapping[str, Package], index: str
) -> tuple[str, ...]:
    """Return the words after `pip install` for the packages that do not fit, or for all.

    Args:
        wanted: name -> specifier.
        index: URL of the index that the wheels came from, or `INDEX`.
    """
    words = []
    for name, specifier in wanted.items():
        package = installed.get(name)
        if package is None or not _versions.accepts(specifier, package.version):
            words.append(name + specifier)
    words = words or [name + specifier for name, specifier in wanted.items()]
    # Only the wheels' own index has versions with a local label.
    if index != INDEX or any("+" in word for word in words):
        return ("--extra-index-url", index, *words)
    return tuple(words)
