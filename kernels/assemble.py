"""The repaired `jax_aiter` wheel of a request, with the toolchain that the request names."""

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
from core.steps import step_key, tool_versions
from kernels import build, packing, recipe
from kernels.modules import Catalog
from kernels.rocmchain import with_rocm
from kernels.store import Cost, KernelStore
from kernels.toolchains import Toolchain, obtain_pypi
from wheelkit.repair.plan import RepairPlan

FOLDER = "kernels"
"""Folder in the cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedKernels:
    """The wheel before its repair.

    Attributes:
        path: path of the packed wheel.
        sha256: digest of the packed wheel.
    """

    path: Path
    sha256: str
    built: build.KernelBuildResult


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerLocation:
    """Location of a ROCm compiler.

    Attributes:
        launcher: path of ccache or sccache; empty for none.
        wrap: command that runs another one in a container; empty for this machine.
        image: digest of the container's image.
    """

    launcher: str = ""
    wrap: tuple[str, ...] = ()
    image: str = ""


THIS_MACHINE = CompilerLocation()


def toolchain_for(
    request: KernelRequest, cache: Path, runner: Runner, progress: Progress, place: CompilerLocation = THIS_MACHINE
) -> Toolchain:
    """Return the toolchain that a request names.

    Raises:
        RequestError: the container toolchain has no image.
        InputError: the ROCm does not exist.
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
    place: CompilerLocation = THIS_MACHINE,
) -> build.KernelBuild:
    """Return the kernel build of a request, with its toolchain obtained.

    Args:
        targets: targets of the request, or for `all` those of the set.
        cache: the cache folder of the whole program.
    """
    assert request.kernels is not None
    # Commands run in another folder, so the path is absolute.
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
) -> PackedKernels:
    """Build the missing steps and pack the wheel into a folder."""
    built = job.run(runner, progress, capacity or build.Capacity())
    path = packing.pack(built, version, job.catalog, folder)
    return PackedKernels(path=path, sha256=file_sha256(path), built=built)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A repaired wheel.

    Attributes:
        size: bytes.
    """

    path: Path
    sha256: str
    size: int
    built: build.KernelBuildResult


def make_wheel(
    request: BuildRequest,
    version: str,
    out: Path,
    *,
    cache: Path,
    runner: Runner,
    progress: Progress,
    capacity: build.Capacity | None = None,
    place: CompilerLocation = THIS_MACHINE,
) -> Finished:
    """Make the repaired wheel alone, without a set, in folder `out`, or reuse an earlier result.

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


def _key(built: build.KernelBuildResult, plan: RepairPlan) -> str:
    """Return the digest of everything that decides the bytes of the repaired wheel."""
    natives = [(native.path, native.sha256) for native in built.natives]
    return step_key(
        natives=natives, missing=built.missing, wanted=built.wanted, instances=built.instances, plan=plan,
        tools=tool_versions(),
    )  # fmt: skip


def _repair(
    built: build.KernelBuildResult,
    version: str,
    catalog: Catalog,
    plan: RepairPlan,
    finished: KernelStore,
    key: str,
    progress: Progress,
) -> None:
    """Pack, repair and store the wheel."""
    from wheelkit.repair.repair import repair

    with finished.scratch() as name:
        packed, made = Path(name) / "packed", Path(name) / "made"
        packed.mkdir()
        made.mkdir()
        done = repair(packing.pack(built, version, catalog, packed), plan, made, progress=progress)
        cost = Cost(seconds=0.0, memory_mb=1)
        finished.keep(key, made, done.path.name, label=done.path.name, cost=cost)
