"""Assembly of the repaired `jax_aiter` wheel of a request."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from core.atomic import write_whole
from core.digests import sha256_of
from core.errors import RequestError
from core.frozen import frozen
from core.model import BuildRequest, GfxTarget, KernelRequest
from core.steps import step_key, tool_versions
from core.tasks import Tasks
from kernels import kernel_recipe as recipe
from kernels.build import KernelBuild, KernelBuildResult
from kernels.build_context import BuildContext
from kernels.compiled_store import KernelStore
from kernels.graph import Capacity
from kernels.packing import build_wheel, write_files
from kernels.rocmchain import with_rocm
from kernels.toolchains import Toolchain, obtain_pypi
from wheelkit.repair.repair_plan import RepairPlan


@frozen
class KernelWheel:
    """Wheel of a kernel build, before or after its repair.

    Attributes:
        repair: plan of the repair, which names the wheel's libraries.
    """

    path: Path
    sha256: str
    built: KernelBuildResult
    repair: RepairPlan


def toolchain_for(
    request: KernelRequest,
    context: BuildContext,
) -> Toolchain:
    """Return the toolchain that a request names.

    Raises:
        RequestError: the ROCm does not exist.
        InputError: the ROCm cannot compile the kernels.
    """
    rocm = Path(request.rocm).absolute()
    if request.toolchain == "rocm" and not rocm.is_dir():
        raise RequestError(
            f"--kernel-rocm is not a folder: {rocm}.",
            hint="Give the folder of a ROCm, such as /opt/rocm.",
        )
    pypi = obtain_pypi(context)
    if request.toolchain == "pypi":
        return pypi
    return with_rocm(pypi, rocm)


def prepare(
    request: BuildRequest,
    targets: Sequence[GfxTarget],
    context: BuildContext,
) -> KernelBuild:
    """Return the kernel build of a request, with its toolchain obtained.

    Args:
        targets: gfx targets of the request; for `all`, the targets of the wheel set.
    """
    assert request.kernels is not None
    toolchain = toolchain_for(request.kernels, context)
    return KernelBuild(
        request.kernels,
        targets,
        toolchain,
        context,
        strip=request.strip,
    )


def pack(
    job: KernelBuild,
    request: BuildRequest,
    folder: Path,
    tasks: Tasks | None = None,
) -> KernelWheel:
    """Build the missing steps and pack the wheel into a folder.

    Args:
        tasks: machines that compile; None for this machine.
    """
    built = job.run(Capacity(), tasks)
    version = recipe.wheel_version(request)
    write_files(built, version, folder / "files")
    path = build_wheel(folder / "files", version, folder, job.context.runner)
    plan = recipe.repair_plan(request, version, built.natives)
    return KernelWheel(path=path, sha256=sha256_of(path), built=built, repair=plan)


def make_wheel(
    job: KernelBuild,
    request: BuildRequest,
    version: str,
    out: Path,
    capacity: Capacity,
    tasks: Tasks | None = None,
) -> KernelWheel:
    """Build the repaired wheel without a set in folder `out`, or reuse an earlier result.

    Args:
        tasks: machines that compile; None for this machine.
    """
    # Imported here, because the import costs 0.1 s of CPU and dry runs do not need it.
    from wheelkit.repair.wheel_repair import repair

    built = job.run(capacity, tasks)
    plan = recipe.repair_plan(request, version, built.natives)
    # The key covers everything that the bytes of the repaired wheel depend on.
    key = step_key(
        natives=[(native.path, native.sha256) for native in built.natives],
        missing=built.missing,
        wanted=built.wanted,
        instances=built.request.instances,
        attention=built.request.attention,
        plan=plan,
        tools=tool_versions() | {"setuptools": metadata.version("setuptools")},
    )
    finished = KernelStore(job.context.cache / "wheels")
    if finished.find(key) is None:
        with finished.scratch() as folder:
            fresh = folder / "made"
            fresh.mkdir()
            write_files(built, version, folder / "files")
            packed = build_wheel(folder / "files", version, folder, job.context.runner)
            done = repair(packed, plan, fresh, progress=job.context.progress)
            finished.keep(key, fresh, done.path.name)
    cached = finished.find(key)
    assert cached is not None
    out.mkdir(parents=True, exist_ok=True)
    path = out / cached.path.name
    if not path.is_file() or sha256_of(path) != cached.sha256:
        write_whole(path, cached.path.read_bytes())
    return KernelWheel(path=path, sha256=cached.sha256, built=built, repair=plan)
