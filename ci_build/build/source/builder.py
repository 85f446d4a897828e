"""The container that a build from source runs in: its mounts, and the tools that its image has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from ci_build.build.plan import SourceLayout
from ci_build.build.source.build_py import Places, source_of
from ci_build.containers.container import ContainerSpec, Mount
from core.errors import MachineError
from core.model import BuildRequest
from core.process import Runner
from core.source_request import Compiler

_CLANG = re.compile(r"/usr/lib/llvm-(\d+)/bin/clang")
_LOOK_INTO = ("/usr/lib", "/usr/local/bin", "/opt/python", "/opt/rh")


def make_mounts(
    request: BuildRequest, layout: SourceLayout, rocm: Path, built: Path, work: Path, *, disk_cache: Path | None = None
) -> tuple[Mount, ...]:
    """What the build sees of this machine; the folders that it writes to are made.

    The ROCm cannot be written to. A source tree can: build.py keeps its options and Bazel its links in there.
    """
    source, places = source_of(request), layout.places
    # Folders that a daemon of root's would make belong to root.
    for folder in (work, built / "bazel", disk_cache or work, Path(layout.checkouts)):
        folder.mkdir(parents=True, exist_ok=True)
    mounts = [
        Mount(rocm.resolve(), places.rocm),
        Mount(work, places.out, writable=True),
        Mount(built / "bazel", places.cache, writable=True),
    ]
    mounts += [
        Mount(Path(layout.folder(checkout)), places.sources[checkout.name], writable=True)
        for checkout in source.sources
    ]
    if disk_cache is not None:
        mounts.append(Mount(disk_cache, places.disk_cache, writable=True))
    files = zip(astuple(source.credentials), astuple(places.credentials), strict=True)
    mounts += [Mount(Path(path), target) for path, target in files if path]
    return tuple(mounts)


def find_tools(request: BuildRequest, places: Places, image: str, inside: Runner) -> Places:
    """Where the image has its clang, and that it has all that the build needs.

    Args:
        image: its name, for people.
        inside: runs commands in it.

    Raises:
        MachineError: everything that is missing.
    """
    done = inside.run(("find", *_LOOK_INTO, "-maxdepth", "6", "-name", "[bcgp]*", "!", "-type", "d"), check=False)
    there = set(done.stdout.splitlines())
    source = source_of(request)
    clangs = sorted((int(found[1]), path) for path in there if (found := _CLANG.fullmatch(path)))
    clang = source.clang or (clangs[-1][1] if clangs else "")
    needed = [places.bazel, *(places.python(python) for python in request.python_versions)]
    missing = [path for path in needed if path not in there]
    if not clang:
        missing.append("a clang below /usr/lib/llvm-*")
    if source.compiler is Compiler.GCC and places.gcc not in there:
        missing.append(places.gcc)
    if missing:
        raise MachineError(
            f"The builder image {image} lacks {', '.join(missing)}.",
            hint="Name another one with --builder-image, or other --python-versions.",
        )
    return replace(places, clang=clang)


def spec_values(spec: ContainerSpec) -> dict[str, Any]:
    """A specification as JSON values."""
    body = asdict(spec)
    body["mounts"] = [{**mount, "source": str(mount["source"])} for mount in body["mounts"]]
    body["env_files"] = [str(path) for path in body["env_files"]]
    return body


def load_spec(body: Mapping[str, Any]) -> ContainerSpec:
    """The specification of such values; KeyError or TypeError when they are of another version."""
    mounts = tuple(Mount(**{**mount, "source": Path(mount["source"])}) for mount in body["mounts"])
    lists = {name: tuple(value) for name, value in body.items() if isinstance(value, list)}
    files = tuple(Path(path) for path in body["env_files"])
    return ContainerSpec(**{**body, **lists, "mounts": mounts, "env_files": files})
