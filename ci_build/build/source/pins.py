"""`sources.toml`: which commits are built for a JAX release, and how that release's build is spoken to."""

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


class Kind(enum.StrEnum):
    """Whose build.py makes the ROCm wheels."""

    JAX = "jax"
    ROCM_JAX = "rocm-jax"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """How the build of some JAX releases is spoken to.

    Attributes:
        since: first release that it is for.
        folder: where build/build.py lies in the tree, relative; empty for the tree itself.
        xla_repository: key of `repositories` whose HEAD `--xla=head` means.
        bazelrc: file of the tree that Bazel is to read beside its own, or empty.
        options: what its ROCm wheels are always built with.
        compilers: host compilers that it takes.
        rbe_platform: label of the platform of remote executors.
        bazel: the Bazel that the sources are made for.
    """

    since: str
    kind: Kind
    folder: str
    xla_repository: str
    bazelrc: str
    options: tuple[str, ...]
    compilers: tuple[Compiler, ...]
    rbe_platform: str
    bazel: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    """The commits of one JAX release, 40 hexadecimal digits each.

    Attributes:
        jax, xla: what is compiled.
        rocm_jax: of the tree with the build; empty where jax has it itself.
        epoch: when the commit that is built was made, in seconds since 1970.
    """

    jax: str
    xla: str
    rocm_jax: str
    epoch: int


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))


def releases() -> tuple[str, ...]:
    """The JAX releases with pinned sources, oldest first."""
    return tuple(sorted(_table()["pins"], key=Version))


def interface_for(jax_version: str) -> Interface:
    """The interface of a JAX release, pre-releases and post-releases included.

    Raises:
        RequestError: older than every interface.
    """
    release = Version(Version(jax_version).base_version)
    rows = [row for row in _table()["interfaces"] if Version(row["since"]) <= release]
    if not rows:
        oldest = min((row["since"] for row in _table()["interfaces"]), key=Version)
        raise RequestError(
            f"jax {jax_version} is older than every build that is known here.", hint=f"Build jax {oldest} or newer."
        )
    row = max(rows, key=lambda row: Version(row["since"]))
    return Interface(
        **{
            **row,
            "kind": Kind(row["kind"]),
            "options": tuple(row["options"]),
            "compilers": tuple(Compiler(name) for name in row["compilers"]),
        }
    )


def pins_for(jax_version: str) -> Pins | None:
    """The pinned commits of a JAX release; None where there are none."""
    row = _table()["pins"].get(Version(jax_version).base_version)
    if row is None or Version(jax_version).is_prerelease:
        return None
    return Pins(jax=row["jax"], xla=row["xla"], rocm_jax=row.get("rocm-jax", ""), epoch=row["epoch"])


def repository_url(name: str, mirror: str = "") -> str:
    """Where a repository is fetched from.

    Args:
        name: a key of `repositories`.
        mirror: URL or folder to put in front of the repository's path instead of the usual server.
    """
    server = mirror or _table()["repositories"]["server"]
    return f"{server.rstrip('/')}/{_table()['repositories'][name]}"
