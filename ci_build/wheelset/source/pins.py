"""The pinned commits of JAX releases, and the interfaces of their builds."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from packaging.version import Version

from core.errors import RequestError
from core.frozen import frozen
from core.records import read_toml
from core.source_request import Compiler

COMMIT = re.compile(r"[0-9a-f]{40}")
PINS = Path(__file__).with_name("pins.toml")


class BuildRepository(enum.StrEnum):
    """The repository whose build.py builds the ROCm wheels."""

    JAX = "jax"
    ROCM_JAX = "rocm-jax"


@frozen
class Interface:
    """Build interface of a range of JAX releases.

    Attributes:
        since: first release with this interface.
        folder: folder that contains build/build.py, relative to the tree; empty for the
            tree itself.
        xla_repository: key of `repositories` for `--xla=head`.
        bazelrc: additional bazelrc in the tree, or empty.
        options: Bazel options of every ROCm wheel.
        clang_options: options instead of them if the user names a host clang; empty if
            the build never downloads one.
        compilers: supported host compilers.
        rbe_platform: label of the platform of remote executors.
        bazel: Bazel version of the sources.
    """

    since: str
    kind: BuildRepository
    folder: str
    xla_repository: str
    bazelrc: str
    options: tuple[str, ...]
    compilers: tuple[Compiler, ...]
    rbe_platform: str
    bazel: str
    clang_options: tuple[str, ...] = ()

    def downloads_clang(self, given: str) -> bool:
        """Return whether Bazel downloads the host clang of ROCm wheels.

        `given` is the user's clang, or empty.
        """
        return bool(self.clang_options) and not given

    def rocm_options(self, given: str) -> tuple[str, ...]:
        """Return the Bazel options of every ROCm wheel; `given` is the user's clang, or empty."""
        return self.clang_options if given and self.clang_options else self.options


@frozen
class SourcePins:
    """The commits of one JAX release, 40 hexadecimal digits each.

    Attributes:
        jax, xla: commits to compile; `xla` is empty if only the fetched jax names it.
        rocm_jax: commit of rocm-jax, which builds the ROCm wheels; empty if jax builds
            them.
        epoch: commit time in seconds since 1970; 0 if only the fetched jax names it.
    """

    jax: str
    xla: str = ""
    epoch: int = 0
    rocm_jax: str = ""


@frozen
class PinTable:
    """Content of `pins.toml`.

    Attributes:
        tags: release of jax -> commit of its tag.
        unsupported: release -> reason why its ROCm wheels cannot be built from source.
        pins: release -> pinned commits.
        amd: release -> commit of ROCm/jax that AMD's published wheels were built from.
    """

    tags: Mapping[str, str]
    unsupported: Mapping[str, str]
    pins: Mapping[str, SourcePins]
    amd: Mapping[str, str] = field(default_factory=dict)


@frozen
class _Sources:
    """Content of `sources.toml`."""

    repositories: Mapping[str, str]
    interfaces: tuple[Interface, ...]


def load_pins(path: Path = PINS) -> PinTable:
    """Read `pins.toml` or a file that replaces it.

    Raises:
        FormatError: the file cannot be read, or is not a table of pins.
    """
    return read_toml(path, PinTable, hint="Give a copy of pins.toml.")


@functools.cache
def _pins() -> PinTable:
    return load_pins()


@functools.cache
def _sources() -> _Sources:
    return read_toml(Path(__file__).with_name("sources.toml"), _Sources)


def first_release() -> str:
    """Return the oldest release with an interface."""
    return min((row.since for row in _sources().interfaces), key=Version)


def releases() -> tuple[str, ...]:
    """Return the JAX releases with pinned sources, oldest first."""
    return tuple(sorted(_pins().pins, key=Version))


def tagged() -> tuple[str, ...]:
    """Return all JAX releases since the first interface, oldest first."""
    return tuple(sorted(_pins().tags, key=Version))


def unsupported(jax_version: str) -> str:
    """Return the reason why a JAX release cannot be built from source, or an empty string."""
    return _pins().unsupported.get(Version(jax_version).base_version, "")


def interface_for(jax_version: str) -> Interface:
    """Return the interface of a JAX release, including pre-releases and post-releases.

    Raises:
        RequestError: the release is older than every interface.
    """
    release = Version(Version(jax_version).base_version)
    rows = [row for row in _sources().interfaces if Version(row.since) <= release]
    if not rows:
        raise RequestError(
            f"jax {jax_version} is too old to be built from source.",
            hint=f"Build jax {first_release()} or newer.",
        )
    return max(rows, key=lambda row: Version(row.since))


def pins_for(jax_version: str) -> SourcePins | None:
    """Return the pinned commits of a JAX release, or None."""
    if Version(jax_version).is_prerelease:
        return None
    return _pins().pins.get(Version(jax_version).base_version)


def amd_commit(jax_version: str) -> str:
    """Return the commit of ROCm/jax of a JAX release; empty if it is not known."""
    return _pins().amd.get(Version(jax_version).base_version, "")


def amd_releases() -> tuple[str, ...]:
    """Return the JAX releases with a known commit of ROCm/jax, oldest first."""
    return tuple(sorted(_pins().amd, key=Version))


def repository_url(name: str, mirror: str = "") -> str:
    """Return the URL of a repository.

    Args:
        name: a key of `repositories`.
        mirror: URL or folder that replaces the server.
    """
    repositories = _sources().repositories
    server = mirror or repositories["server"]
    return f"{server.rstrip('/')}/{repositories[name]}"
