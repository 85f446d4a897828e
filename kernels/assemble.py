"""A request with kernels -> the repaired `jax_aiter` wheel, from whatever toolchain it names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.digests import file_sha256
from core.errors import RequestError
from core.model import BuildRequest, GfxTarget, KernelRequest, Progress
from core.process import Runner
from core.store import step_key, tool_versions
from kernels import build, packing, recipe
from kernels.modules import Catalog
from kernels.rocmchain import with_rocm
from kernels.store import Cost, KernelStore
from kernels.toolchains import Toolchain, obtain_pypi
from wheelkit.repair.plan import RepairPlan

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
    request: KernelRequest, cache: Path, runner: Runner, progress: Progress, place: Place = HERE
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
    rocm = Path(request.rocm or "/opt/rocm").absolute()
    return with_rocm(pypi, rocm, request.toolchain, cache, launcher=place.launcher, wrap=place.wrap, image=place.image)


def prepare(
    request: BuildRequest,
    targets: Sequence[GfxTarget],
    *,
    cache: Path,
    runner: Runner,
    progress: Progress,
    place: Place = HERE,
) -> build.KernelBuild:
    """The kernels of a request, with a toolchain that is there.

    Args:
        targets: those of the request, or for `all` those that the set holds.
        cache: the cache folder of the whole program.
    """
    assert request.kernels is not None
    # Commands run in another folder than this one.
    own = cache.absolute() / FOLDER
    toolchain = toolchain_for(request.kernels, own, runner, progress, place)
    return build.KernelBuild(request.kernels, targets, toolchain, cache=own, strip=request.strip)


def pack(
    job: build.KernelBuild,
    version: str,
    folder: Path,
    *,
    runner: Runner,
    progress: Progress,
    capacity: build.Capacity | None = None,
) -> Packed:
    """Build what is missing, and pack the wheel into a folder."""
    built = job.run(runner, progress, capacity or build.Capacity())
    path = packing.pack(built, version, job.catalog, folder)
    return Packed(path=path, sha256=file_sha256(path), built=built)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A repaired wheel.

    Attributes:
        size: bytes.
    """

    path: Path
    sha256: str
    size: int
    built: build.Built


def make_wheel(
    request: BuildRequest,
    version: str,
    out: Path,
    *,
    cache: Path,
    runner: Runner,
    progress: Progress,
    capacity: build.Capacity | None = None,
    place: Place = HERE,
) -> Finished:
    """The wheel alone, without a set, repaired, in folder `out`; one that was made before is taken as it is.

    Raises:
        RequestError: the request names no targets.
    """
    job = prepare(request, request.targets or (), cache=cache, runner=runner, progress=progress, place=place)
    built = job.run(runner, progress, capacity or build.Capacity())
    plan = recipe.with_members(recipe.repair_plan(request, version, job.catalog), job.catalog, built.natives)
    key = _key(built, plan)
    finished = KernelStore(cache / FOLDER / "wheels")
    if finished.find(key) is None:
        _repair(built, version, job.catalog, plan, finished, key, progress)
    made = finished.find(key)
    assert made is not None
    out.mkdir(parents=True, exist_ok=True)
    path = out / made.path.name
    if not path.is_file() or file_sha256(path) != made.sha256:
        draft = out / f".{made.path.name}.{os.getpid()}"
        try:
            shutil.copyfile(made.path, draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return Finished(path=path, sha256=made.sha256, size=path.stat().st_size, built=built)


def _key(built: build.Built, plan: RepairPlan) -> str:
    """Of everything that decides the bytes of the repaired wheel."""
    natives = [(native.path, native.sha256) for native in built.natives]
    return step_key(
        natives=natives, missing=built.missing, wanted=built.wanted, instances=built.instances, plan=plan,
        tools=tool_versions(),
    )  # fmt: skip


def _repair(
    built: build.Built,
    version: str,
    catalog: Catalog,
    plan: RepairPlan,
    finished: KernelStore,
    key: str,
    progress: Progress,
) -> None:
    """Pack and repair the wheel, and keep it under its key."""
    from wheelkit.repair.repair import repair

    with finished.scratch() as name:
        packed, made = Path(name) / "packed", Path(name) / "made"
        packed.mkdir()
        made.mkdir()
        done = repair(packing.pack(built, version, catalog, packed), plan, made, progress=progress)
        cost = Cost(seconds=0.0, memory_mb=1)
        finished.keep(key, made, done.path.name, label=done.path.name, cost=cost)
