"""Builds of the kernel wheel alone.

Checks of the request, compilers, and reports as JSON values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from core import targets
from core.errors import RequestError
from core.model import BuildRequest, GfxTarget, KernelRequest
from core.process import HostRunner, render
from kernels.kernel_recipe import check_jax, chosen_modules, refuse_code_alone
from kernels.module_catalog import load_catalog
from kernels.modules import processors

if TYPE_CHECKING:
    from ci_build.containers.engine import Engine
    from core.report import Reporter
    from core.tasks import Tasks
    from kernels.assemble import CompilerLocation
    from kernels.build import KernelBuild, KernelBuildResult
    from kernels.graph import Capacity, Forecast


def check_request(request: BuildRequest) -> None:
    """Check a request for kernels before anything is downloaded.

    Raises:
        RequestError: JAX is too old, a module is unknown, or the source does not exist.
    """
    assert request.kernels is not None
    catalog = load_catalog()
    check_jax(catalog, request.jax_version)
    catalog.chosen(
        (*request.kernels.modules, *request.kernels.require) or None,
        request.kernels.toolchain,
    )
    check_source(request.kernels)


def check_source(request: KernelRequest) -> None:
    """Check that the source of the kernels exists, before anything is downloaded.

    Raises:
        RequestError: the source is neither a path nor a version.
    """
    # Start-up time: this module loads the decompressors.
    from kernels.aiter_sources import check_wish

    for source in load_catalog().sources.values():
        check_wish(request.source, source)


def capacity(jobs: int | None, memory_mb: int | None) -> Capacity:
    """Return the jobs and the memory that a build may use; the machine decides the defaults."""
    from kernels.graph import Capacity  # Start-up time: only a build needs it.

    default = Capacity()
    return Capacity(jobs=jobs or default.jobs, memory_mb=memory_mb or default.memory_mb)


def find_compilers(
    request: KernelRequest, cache: Path, runner: HostRunner, inputs: Path | None = None
) -> CompilerLocation:
    """Return the location of the compilers.

    This machine, with ccache or sccache if present, or a container.

    Args:
        inputs: further folder that compilers in a container read.

    Raises:
        NoContainerEngineError: the machine has no container engine.
        RequestError: the container engine does not have the image.
    """
    # Start-up time: only a build needs it.
    from kernels.assemble import THIS_MACHINE, CompilerLocation

    if request.toolchain == "pypi":
        return THIS_MACHINE
    if request.toolchain == "rocm":
        return CompilerLocation(launcher=which("sccache") or which("ccache") or "")
    # Start-up time: only this toolchain needs containers.
    from ci_build.containers.engine import find_engine

    engine = find_engine(None, runner)
    image = runner.run(_image_argv(engine, request.image), check=False)
    if image.returncode:
        raise RequestError(
            f"{engine.name} has no image {request.image}.",
            hint="Pull or build it first.",
        )
    (cache / "kernels").mkdir(parents=True, exist_ok=True)
    wrap = _container_argv(request, cache, engine, image.stdout.strip(), inputs)
    return CompilerLocation(wrap=wrap, image=image.stdout.strip())


def container_lines(request: KernelRequest, cache: Path) -> Iterator[str]:
    """Yield the lines of a dry run about the container of the compilers.

    None without a container.
    """
    if request.toolchain == "container":
        # Start-up time: only this toolchain needs containers.
        from ci_build.containers.engine import planned_engine

        engine = planned_engine("")
        yield (
            f"compile in containers of {request.image}, which must be on this machine;"
            " COMMAND stands for a compiler"
        )
        yield f"  $ {render(_image_argv(engine, request.image))}"
        yield (
            f"  $ {render((*_container_argv(request, cache, engine, request.image), 'COMMAND'))}"
        )


def _image_argv(engine: Engine, image: str) -> tuple[str, ...]:
    return (engine.program, "image", "inspect", "--format={{.Id}}", image)


def _container_argv(
    request: KernelRequest,
    cache: Path,
    engine: Engine,
    image: str,
    inputs: Path | None = None,
) -> tuple[str, ...]:
    """Return the command that runs a compiler in a container.

    The compiler's own command follows it.
    """
    # Start-up time: only this toolchain needs containers.
    from ci_build.containers.container import Mount, container_argv, make_spec
    from kernels.compiler_steps import SRC
    from kernels.rocmchain import INSIDE
    from kernels.step_process import TIMED

    folder = cache / "kernels"
    rocm = Path(request.rocm or "/opt/rocm").resolve()
    mounts = [
        Mount(folder, str(folder), writable=True),
        Mount(rocm, str(INSIDE)),
        Mount(SRC, str(SRC)),
    ]
    if request.source and Path(request.source).is_dir():
        source = Path(request.source).resolve()
        mounts.append(Mount(source, str(source)))
    if inputs is not None:
        mounts.append(Mount(inputs, str(inputs)))
    return container_argv(
        replace(make_spec(engine, image, mounts=mounts), network="none"), TIMED
    )


def parse_part(
    request: KernelRequest, shard: str | None, units: str
) -> tuple[int, int] | None:
    """Return the part (i, n) of the device code from `--shard=i/n`; None without --shard.

    Raises:
        RequestError: the toolchain cannot compile parts, or a value is invalid.
    """
    if request.toolchain == "pypi" and (shard or units):
        raise RequestError(
            "--shard and --units need --toolchain=rocm.", hint="Give --toolchain=rocm."
        )
    try:
        re.compile(units)
    except re.error as error:
        raise RequestError(
            f"--units is not a regular expression: {error}.",
            hint="Write it like '_n(64|128)_'.",
        ) from error
    if not shard:
        return None
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", shard)
    if match is None or int(match[1]) > int(match[2]):
        raise RequestError(
            f"--shard is invalid: {shard!r}.",
            hint="Write it like 2/8 for the second of eight parts.",
        )
    return int(match[1]), int(match[2])


def table(
    wanted: Sequence[GfxTarget], names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return the support of each target by each module: yes, portable or unsupported."""
    catalog = load_catalog()
    return [
        {
            "module": module.name,
            "kind": module.kind.value,
            "toolchains": list(module.toolchains),
            "about": module.about,
            "targets": {
                name: catalog.support(module, name).value for name in processors(wanted)
            },
        }
        for module in (catalog.chosen(names) if names else catalog.modules.values())
    ]


def planned(request: BuildRequest, version: str) -> dict[str, Any]:
    """Return the plan of a kernel build as JSON values, without downloads.

    Raises:
        RequestError: the build would refuse the request.
    """
    from kernels import estimate  # Start-up time: few commands forecast.

    assert request.kernels is not None
    catalog = load_catalog()
    requested = (
        targets.expand(targets.ALL) if request.targets is None else request.targets
    )
    chosen = chosen_modules(catalog, processors(requested), request.kernels)
    refuse_code_alone(chosen)
    most = estimate.bound(chosen, processors(requested))
    return {
        "version": version,
        "toolchain": request.kernels.toolchain,
        "modules": table(requested, request.kernels.modules),
        "at_most": {"steps": most.steps, "cpu_seconds": round(most.seconds, 1)},
        "has_to_be_named": (
            not request.kernels.modules and most.seconds > estimate.HOURS_UNASKED * 3600
        ),
    }


def compile_part(
    job: KernelBuild,
    part: tuple[int, int] | None,
    units: str,
    runner: HostRunner,
    reporter: Reporter,
    room: Capacity,
    tasks: Tasks | None = None,
    *,
    only_say: bool,
) -> dict[str, Any]:
    """Compile a part of the kernels' device code, or forecast its cost; no wheel is packed.

    Args:
        part: result of `parse_part`.
        units: regular expression that selects units by name; empty selects all.
        tasks: machines that compile; None for this machine.
        only_say: forecast without compiling.
    """
    from kernels.build import said  # Start-up time: only a build needs it.

    if only_say:
        job.fetch(runner, reporter)
        remaining = job.forecast(room, part, units)
        reporter.line(said(remaining))
    else:
        remaining = job.run_shard(part or (1, 1), runner, reporter, room, units, tasks)
        reporter.line(
            f"{remaining.steps} steps run, {remaining.found} reused from"
            f" {job.store.root}"
        )
    return {"store": str(job.store.root), **forecast(remaining)}


def forecast(found: Forecast) -> dict[str, Any]:
    """Return a forecast or a build's cost as JSON values, with times in seconds."""
    return {
        "steps": found.steps,
        "found": found.found,
        "cpu_seconds": round(found.seconds, 1),
        "wall_seconds": round(found.wall_seconds, 1),
        "jobs": found.limits.jobs,
    }


def receipt(
    path: Path, sha256: str, size: int, built: KernelBuildResult
) -> dict[str, Any]:
    """Return the result of a kernel build as JSON values."""
    return {
        "wheel": str(path),
        "sha256": sha256,
        "size": size,
        "targets": list(built.wanted),
        "modules": sorted({native.module for native in built.natives}),
        "missing": list(built.missing),
        "skipped": list(built.skipped),
        "steps": {"made": built.forecast.steps, "found": built.forecast.found},
        "forecast": forecast(built.forecast),
        "source": (
            None
            if built.source is None
            else {"filename": built.source.filename, "sha256": built.source.sha256}
        ),
    }
