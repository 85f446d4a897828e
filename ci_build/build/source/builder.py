"""The container of a build from source: its mounts, and the tools in its image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from ci_build.build.plan import SourceLayout
from ci_build.build.source.build_py import BuildPaths, source_of
from ci_build.containers.container import ContainerSpec, Mount, make_spec
from ci_build.containers.engine import Engine
from core.errors import MachineError
from core.model import BuildRequest
from core.process import Runner
from core.source_request import Checkout, Compiler, Container, SourceRequest

_CLANG = re.compile(r"/usr/lib/llvm-(\d+)/bin/clang")
WORK, DISK_CACHE = "builds/out", "disk-cache"
"""Folders below the folder for build results: of built wheels, and of the copy of a read-only disk cache."""
_LOOK_INTO = ("/usr/lib", "/usr/local/bin", "/opt/python", "/opt/rh")


def build_mounts(
    source: SourceRequest,
    checkouts: Sequence[Checkout],
    layout: SourceLayout,
    rocm: Path,
    built: Path,
    work: Path,
    *,
    disk_cache: Path | None = None,
) -> tuple[Mount, ...]:
    """Return the mounts of the build.

    The ROCm is read-only. Source trees are writable, since build.py writes its options and Bazel creates links there.
    """
    paths = layout.paths
    mounts = [
        Mount(rocm, paths.rocm),
        Mount(work, paths.out, writable=True),
        Mount(built / "bazel", paths.cache, writable=True),
    ]
    mounts += [
        Mount(Path(layout.folder(checkout)), paths.sources[checkout.name], writable=True) for checkout in checkouts
    ]
    if disk_cache is not None:
        mounts.append(Mount(disk_cache, paths.disk_cache, writable=True))
    files = zip(astuple(source.credentials), astuple(paths.credentials), strict=True)
    mounts += [Mount(Path(path), target) for path, target in files if path]
    return tuple(mounts)


def create_folders(layout: SourceLayout, built: Path, work: Path, disk_cache: Path | None) -> None:
    """Create the folders that the build writes to; a container engine would create missing folders as root."""
    for folder in (work, built / "bazel", disk_cache or work, Path(layout.checkouts)):
        folder.mkdir(parents=True, exist_ok=True)


def build_container(engine: Engine, image: str, container: Container, mounts: Sequence[Mount]) -> ContainerSpec:
    """Return the container of the build's commands."""
    return replace(
        make_spec(engine, image, mounts=mounts),
        network=container.network,
        memory=container.memory,
        shm_size=container.shm_size,
    )


FIND_TOOLS = ("find", *_LOOK_INTO, "-maxdepth", "6", "-name", "[bcgp]*", "!", "-type", "d")
"""Command that lists the programs of the builder image; it runs without the mounts of the build."""


def find_tools(request: BuildRequest, paths: BuildPaths, image: str, inside: Runner) -> BuildPaths:
    """Return the paths with the image's clang, after checking that the image has every tool.

    Raises:
        MachineError: tools are missing.
    """
    done = inside.run(FIND_TOOLS, check=False)
    there = set(done.stdout.splitlines())
    source = source_of(request)
    clangs = sorted((int(match[1]), path) for path in there if (match := _CLANG.fullmatch(path)))
    clang = source.clang or (clangs[-1][1] if clangs else "")
    needed = [paths.bazel, *(paths.python(python) for python in request.python_versions)]
    missing = [path for path in needed if path not in there]
    if not clang:
        missing.append("a clang below /usr/lib/llvm-*")
    if source.compiler is Compiler.GCC and paths.gcc not in there:
        missing.append(paths.gcc)
    if missing:
        raise MachineError(
            f"The builder image {image} lacks {', '.join(missing)}.",
            hint="Give another --builder-image or other --python-versions.",
        )
    return replace(paths, clang=clang)


def spec_values(spec: ContainerSpec) -> dict[str, Any]:
    """Return a container specification as JSON values."""
    body = asdict(spec)
    body["mounts"] = [{**mount, "source": str(mount["source"])} for mount in body["mounts"]]
    body["env_files"] = [str(path) for path in body["env_files"]]
    return body


def load_spec(body: Mapping[str, Any]) -> ContainerSpec:
    """Return a container specification from JSON values; KeyError or TypeError if another version wrote them."""
    mounts = tuple(Mount(**{**mount, "source": Path(mount["source"])}) for mount in body["mounts"])
    lists = {name: tuple(value) for name, value in body.items() if isinstance(value, list)}
    files = tuple(Path(path) for path in body["env_files"])
    return ContainerSpec(**{**body, **lists, "mounts": mounts, "env_files": files})
