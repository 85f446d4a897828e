"""ROCm releases: their compilers and wheels, and the ROCm of JAX's published wheels."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from core.errors import RequestError
from core.frozen import frozen
from core.model import GfxTarget, RocmVersion
from core.records import read_toml
from core.rocm_servers import package_server
from core.targets import lists, processors_of
from core.versions import native_release

AMD_CLANG = re.compile(r"AMD clang version (\S+)")
"""Start of the name of ROCm's clang in .comment."""
_RELEASE = re.compile(r"\broc-(\d+(?:\.\d+)+)")
_COMMIT = re.compile(r"\bllvm-project(?:\.git)? ([0-9a-f]{40})\b")
_EXTRA = re.compile(
    r"""(?P<project>[a-z0-9-]+)==[^;]+; extra == ["'](?P<extra>device-\w+)["']"""
)
_POST = re.compile(r"\.post\d+$")


@frozen
class RocmWheels:
    """AMD's wheels of ROCm.

    Attributes:
        packages: projects that run the programs of a GPU, with a field {gpu}.
        devices: GPUs that have a wheel.
    """

    packages: tuple[str, ...]
    devices: tuple[str, ...]


@frozen
class RocmReleases:
    """Content of `rocm_releases.toml`.

    Attributes:
        published_major: ROCm major in the names of the published wheels.
        compilers: ROCm release -> commit of its llvm-project.
        development: ROCm release -> development versions with the same commit.
        published: JAX release -> proven ROCm of its published wheels.
        contradictory: JAX release -> contradiction between the marks of its published
            wheels.
        wheels: AMD's wheels of ROCm itself.
    """

    published_major: int
    compilers: Mapping[str, str]
    development: Mapping[str, tuple[str, ...]]
    published: Mapping[str, str]
    contradictory: Mapping[str, str]
    wheels: RocmWheels


@functools.cache
def load_releases() -> RocmReleases:
    """Read `rocm_releases.toml`, once per process."""
    return read_toml(Path(__file__).with_suffix(".toml"), RocmReleases)


def rocm_of_compiler(comment: str) -> tuple[str, ...]:
    """Return the ROCm versions whose clang calls itself `comment`, the release first.

    Empty if unknown.

    A development version has the number of the release that follows it: 7.15.0 stands
    for 7.15.0a20260627.
    """
    if match := _RELEASE.search(comment):
        return (match[1],)
    match = _COMMIT.search(comment)
    table = load_releases()
    for release, commit in table.compilers.items():
        if match and match[1] == commit:
            return (release, *table.development.get(release, ()))
    return ()


def rocm_extras(
    rocm: RocmVersion, targets: Sequence[GfxTarget] | None
) -> Mapping[str, tuple[str, ...]]:
    """Return extra -> required wheels of ROCm, for each GPU of a wheel of JAX.

    The extras are named like those of AMD's project rocm: device-gfx942. Empty for a
    ROCm that AMD does not publish as wheels for all families.

    Args:
        targets: targets of the wheel; None for all targets that XLA supports.
    """
    wheels = load_releases().wheels
    server = package_server(str(rocm))
    if server is None or server.families:
        return {}
    gpus = lists()["compiler-supported"]
    if targets is not None:
        gpus = processors_of(targets)
    extras = {}
    for gpu in gpus:
        if gpu in wheels.devices:
            names = [package.format(gpu=gpu) for package in wheels.packages]
            extras[f"device-{gpu}"] = tuple(f"{name}=={rocm}" for name in names)
    return extras


def declared_extras(requirements: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Return extra -> required projects of ROCm, according to Requires-Dist of wheels."""
    extras: dict[str, dict[str, None]] = {}
    for requirement in requirements:
        if match := _EXTRA.fullmatch(requirement):
            extras.setdefault(match["extra"], {})[match["project"]] = None
    return {extra: tuple(projects) for extra, projects in extras.items()}


def base_version(text: str) -> Version:
    """Return a version without its pre-release part: 7.10.0 for 7.10.0a20251120."""
    return Version(Version(text).base_version)


def published_rocm(jax_version: str) -> str:
    """Return the proven ROCm of the published wheels of a JAX release, such as 0.9.1.post6.

    Raises:
        RequestError: the marks of the wheels contradict each other, or the release is
            not in the table.
    """
    table = load_releases()
    release = native_release(_POST.sub("", jax_version))
    if release in table.published:
        return table.published[release]
    if problem := table.contradictory.get(release):
        raise RequestError(
            f"The published wheels of jax {jax_version} contradict each other about"
            f" their ROCm: {problem}.",
            hint=(
                "Take another release, or give the ROCm of the compiler with"
                " --rocm-version. docs/published-releases.md has the evidence."
            ),
        )
    raise RequestError(
        f"The ROCm of the published wheels of jax {jax_version} is not known.",
        hint=(
            "Give --rocm-version; `ci_build inspect` prints the ROCm that compiled a"
            " wheel."
        ),
    )
