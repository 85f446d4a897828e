"""A request with kernels -> the repaired `jax_aiter` wheel, from whatever toolchain it names."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci_build.errors import RequestError
from ci_build.model import BuildRequest, GfxTarget, KernelRequest, Progress
from ci_build.payload.published import LineRunner
from ci_build.wheel.repair import Repaired, repair
from kernels import build, packing, recipe
from kernels.rocmchain import with_rocm
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the compilers of a ROCm run.

    Attributes:
        launcher: path of ccache or sccache; empty for none.
        wrap: command that runs another one in a container; empty for this machine.
        image: digest of the container's image.
    """

    launcher: str = ""
    wrap: tuple[str, ...] = ()
    image: str = ""


HERE = Place()


def toolchain_for(
    request: KernelRequest, cache: Path, runner: LineRunner, progress: Progress, place: Place = HERE
) -> Toolchain:
    """The toolchain that a request names.

    Raises:
        RequestError: nobody said in which container.
        InputError: there is no ROCm where it should be.
    """
    pypi = obtain_pypi(cache, runner, progress)
    if request.toolchain == "pypi":
        return pypi
    if request.toolchain == "container" and not place.wrap:
        raise RequestError("The container toolchain needs an image.", hint="Name it with --kernel-image.")
    rocm = Path(request.rocm or "/opt/rocm")
    return with_rocm(pypi, rocm, request.toolchain, cache, launcher=place.launcher, wrap=place.wrap, image=place.image)


def prepare(
    request: BuildRequest,
    targets: Sequence[GfxTarget],
    *,
    cache: Path,
    runner: LineRunner,
    progress: Progress,
    place: Place = HERE,
) -> build.KernelBuild:
    """The kernels of a request, with a toolchain that is there.

    Args:
        targets: those of the request, or for `all` those that the set holds.
        cache: the cache folder of the whole program.
    """
    assert request.kernels is not None
    own = cache / FOLDER
    toolchain = toolchain_for(request.kernels, own, runner, progress, place)
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
    path = packing.pack(built, version, job.catalog, folder)
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
    place: Place = HERE,
) -> tuple[Repaired, build.Built]:
    """The wheel alone, without a set, repaired, in folder `out`.

    Raises:
        RequestError: the request names no targets.
    """
    out.mkdir(parents=True, exist_ok=True)
    job = prepare(request, request.targets or (), cache=cache, runner=runner, progress=progress, place=place)
    with tempfile.TemporaryDirectory(prefix=".kernels-", dir=out) as name:
        packed = pack(job, version, Path(name), runner=runner, progress=progress, capacity=capacity)
        plan = recipe.repair_plan(request, version, job.catalog)
        plan = recipe.with_members(plan, job.catalog, packed.built.natives)
        return repair(packed.path, plan, out, progress=progress), packed.built
