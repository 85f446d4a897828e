"""A request with kernels -> the repaired `jax_aiter` wheel, from whatever toolchain it names."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci_build.errors import RequestError
from ci_build.model import BuildRequest, GfxTarget, KernelRequest, Progress
from ci_build.payload.published import LineRunner
from ci_build.wheel.repair import Repaired, repair
from kernels import build, recipe
from kernels.toolchains import Toolchain, obtain_pypi

FOLDER = "kernels"
"""In the cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """The wheel before its repair.

    Attributes:
        path: of the wheel as it was packed.
        sha256: of it.
    """

    path: Path
    sha256: str
    built: build.Built


def toolchain_for(request: KernelRequest, cache: Path, runner: LineRunner, progress: Progress) -> Toolchain:
    """The toolchain that a request names.

    Raises:
        RequestError: there is none of that name.
    """
    pypi = obtain_pypi(cache, runner, progress)
    if request.toolchain == "pypi":
        return pypi
    raise RequestError(f"There is no kernel toolchain {request.toolchain!r}.", hint="Known is pypi.")


def prepare(
    request: BuildRequest, targets: Sequence[GfxTarget], *, cache: Path, runner: LineRunner, progress: Progress
) -> build.KernelBuild:
    """The kernels of a request, with a toolchain that is there.

    Args:
        targets: those of the request, or for `all` those that the set holds.
        cache: the cache folder of the whole program.
    """
    assert request.kernels is not None
    own = cache / FOLDER
    toolchain = toolchain_for(request.kernels, own, runner, progress)
    return build.KernelBuild(request.kernels, targets, toolchain, cache=own, strip=request.strip)


def pack(
    job: build.KernelBuild,
    version: str,
    folder: Path,
    *,
    runner: LineRunner,
    progress: Progress,
    capacity: build.Capacity | None = None,
) -> Packed:
    """Build what is missing, and pack the wheel into a folder."""
    from ci_build.payload.published import file_sha256

    built = job.run(runner, progress, capacity or build.Capacity())
    path = build.pack(built, version, job.catalog, folder)
    return Packed(path=path, sha256=file_sha256(path), built=built)


def make_wheel(
    request: BuildRequest,
    version: str,
    out: Path,
    *,
    cache: Path,
    runner: LineRunner,
    progress: Progress,
    capacity: build.Capacity | None = None,
) -> tuple[Repaired, build.Built]:
    """The wheel alone, without a set, repaired, in folder `out`.

    Raises:
        RequestError: the request names no targets.
    """
    out.mkdir(parents=True, exist_ok=True)
    job = prepare(request, request.targets or (), cache=cache, runner=runner, progress=progress)
    with tempfile.TemporaryDirectory(prefix=".kernels-", dir=out) as name:
        packed = pack(job, version, Path(name), runner=runner, progress=progress, capacity=capacity)
        plan = replace(
            recipe.repair_plan(request, version, job.catalog),
            members=tuple(native.path for native in packed.built.natives if not native.target),
        )
        return repair(packed.path, plan, out, progress=progress), packed.built
