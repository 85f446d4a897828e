"""The container of a build from source: its mounts, and the tools in its image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ci_build.containers.container import ContainerSpec, Mount, make_spec
from ci_build.containers.engine import Engine
from ci_build.wheelset.source import tools
from ci_build.wheelset.source.build_py import BuildPaths, SourceLayout, source_of
from core.errors import MachineError
from core.model import BuildRequest
from core.process import Runner
from core.source_request import Checkout, Compiler, Container, SourceRequest

_CLANG = re.compile(r"/usr/lib/llvm-(\d+)/bin/clang")
WORK = "builds/out"
"""Folder of built wheels, below the folder for build results."""
TOOLS_SCRIPT = Mount(tools.SCRIPT, "/check-tools.sh")
"""Mount with which `find_tools` runs."""


def build_mounts(
    source: SourceRequest,
    checkouts: Sequence[Checkout],
    layout: SourceLayout,
    rocm: Path,
    built: Path,
    work: Path,
) -> tuple[Mount, ...]:
    """Return the mounts of the build.

    The ROCm is read-only. Source trees are writable, since build.py writes its options
    and Bazel creates links there.
    """
    paths = layout.paths
    mounts = [
        Mount(rocm, paths.rocm),
        Mount(work, paths.out, writable=True),
        Mount(built / "bazel", paths.cache, writable=True),
    ]
    mounts += [
        Mount(
            Path(layout.folder(checkout)), paths.sources[checkout.name], writable=True
        )
        for checkout in checkouts
    ]
    if source.cache_folder:
        mounts.append(Mount(Path(source.cache), paths.disk_cache, writable=True))
    if source.bazelrc:
        # The files that a bazelrc names lie in its folder, and keep their paths.
        folder = Path(source.bazelrc).parent
        mounts.append(Mount(folder, str(folder)))
    return tuple(mounts)


def create_folders(
    source: SourceRequest, layout: SourceLayout, built: Path, work: Path
) -> None:
    """Create the folders that the build writes to.

    A container engine would create missing folders as root.
    """
    folders = [work, built / "bazel", Path(layout.checkouts)]
    if source.cache_folder:
        folders.append(Path(source.cache))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)


def build_container(
    engine: Engine, image: str, container: Container, mounts: Sequence[Mount]
) -> ContainerSpec:
    """Return the container of the build's commands."""
    return replace(
        make_spec(engine, image, mounts=mounts),
        args=container.args,
    )


def rocm_container(engine: Engine, image: str, folder: Path) -> ContainerSpec:
    """Return the container that copies the ROCm of an image to a folder; see `DnfRocm`."""
    return replace(
        make_spec(engine, image, mounts=[Mount(folder, "/out", writable=True)]),
        network="none",
    )


def tools_argv(request: BuildRequest, paths: BuildPaths) -> tuple[str, ...]:
    """Return the command that reports the tools of an image, in a container with `TOOLS_SCRIPT`."""
    source = source_of(request)
    pythons = (paths.python(python) for python in request.python_versions)
    gcc = (paths.gcc,) if source.compiler is Compiler.GCC else ()
    return (
        "/bin/sh",
        TOOLS_SCRIPT.target,
        source.clang or "/usr/lib",
        paths.bazel,
        *pythons,
        *gcc,
    )


def find_tools(
    request: BuildRequest, paths: BuildPaths, image: str, inside: Runner
) -> BuildPaths:
    """Return the paths with the image's clang, after checking every tool of a build.

    Args:
        inside: runner in a container with `TOOLS_SCRIPT`.

    Raises:
        MachineError: tools are missing, do not run, or have another version than the
            sources need.
    """
    report = tools.report_tools(inside, tools_argv(request, paths))
    missing = [*report.missing(), *_wrong_versions(request, paths, report)]
    if missing:
        raise MachineError(
            f"The builder image {image} lacks {'; '.join(missing)}.",
            hint=(
                "Omit --builder-image, or give another one or other --python-versions. "
                "docker/manylinux_2_28.Dockerfile installs every tool."
            ),
        )
    clang = source_of(request).clang or next(
        path for path in report.versions if _CLANG.fullmatch(path)
    )
    return replace(paths, clang=clang)


def _wrong_versions(
    request: BuildRequest, paths: BuildPaths, report: tools.ToolReport
) -> Iterator[str]:
    """Yield a part of a sentence for each tool with another version than the sources need."""
    if printed := report.versions.get(paths.bazel):
        version = tools.bazel_version(printed)
        sources = tools.needed_bazel(request)
        if not tools.bazel_serves(version, sources):
            yield (
                f"Bazel {sources} or a later {sources.partition('.')[0]}.x"
                f" ({paths.bazel} is Bazel {version})"
            )
    for python in request.python_versions:
        printed = report.versions.get(paths.python(python), f"Python {python}.")
        if not f"{printed}.".startswith(f"Python {python}."):
            yield f"Python {python} ({paths.python(python)} is {printed})"
