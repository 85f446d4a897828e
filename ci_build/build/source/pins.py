"""`sources.toml`: the pinned commits of JAX releases, and the interfaces of their builds."""

from __future__ import annotations

import enum
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from core.errors import RequestError
from core.source_request import Compiler

COMMIT = re.compile(r"[0-9a-f]{40}")


class BuildRepository(enum.StrEnum):
    """The repository whose build.py builds the ROCm wheels."""

    JAX = "jax"
    ROCM_JAX = "rocm-jax"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """Build interface of a range of JAX releases.

    Attributes:
        since: first release with this interface.
        folder: folder that contains build/build.py, relative to the tree; empty for the tree itself.
        xla_repository: key of `repositories` for `--xla=head`.
        bazelrc: additional bazelrc in the tree, or empty.
        options: Bazel options of every ROCm wheel.
        clang_options: Bazel options instead of `options` if the user names a host clang; empty if the build always uses
            the clang of the build environment.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePins:
    """The commits of one JAX release, 40 hexadecimal digits each.

    Attributes:
        jax, xla: commits to compile.
        rocm_jax: commit of rocm-jax, which builds the ROCm wheels; empty if jax builds them.
        epoch: commit time in seconds since 1970.
    """

    jax: str
    xla: str
    rocm_jax: str
    epoch: int


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))


def releases() -> tuple[str, ...]:
    """Return the JAX releases with pinned sources, oldest first."""
    return tuple(sorted(_table()["pins"], key=Version))


def interface_for(jax_version: str) -> Interface:
    """Return the interface of a JAX release, including pre-releases and post-releases.

    Raises:
        RequestError: the release is older than every interface.
    """
    release = Version(Version(jax_version).base_version)
    rows = [row for row in _table()["interfaces"] if Version(row["since"]) <= release]
    if not rows:
        oldest = min((row["since"] for row in _table()["interfaces"]), key=Version)
        raise RequestError(
            f"jax {jax_version} is too old to be built from source.", hint=f"Build jax {oldest} or newer."
        )
    row = max(rows, key=lambda row: Version(row["since"]))
    return Interface(
        **{
            **row,
            "kind": BuildRepository(row["kind"]),
            "options": tuple(row["options"]),
            "clang_options": tuple(row.get("clang_options", ())),
            "compilers": tuple(Compiler(name) for name in row["compilers"]),
        }
    )


def pins_for(jax_version: str) -> SourcePins | None:
    """Return the pinned commits of a JAX release, or None."""
    row = _table()["pins"].get(Version(jax_version).base_version)
    if row is None or Version(jax_version).is_prerelease:
        return None
    return SourcePins(jax=row["jax"], xla=row["xla"], rocm_jax=row.get("rocm-jax", ""), epoch=row["epoch"])


def repository_url(name: str, mirror: str = "") -> str:
    """Return the URL of a repository.

    Args:
        name: a key of `repositories`.
        mirror: URL or folder that replaces the server.
    """
    server = mirror or _table()["repositories"]["server"]
    return f"{server.rstrip('/')}/{_table()['repositories'][name]}"
