"""Interface of the kernels: the only module that the release pipeline imports from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core import targets
from core.frozen import frozen
from core.model import BuildRequest, GfxTarget
from kernels.aiter_sources import check_wish as check_source
from kernels.assemble import (
    KernelWheel,
    make_wheel,
    pack,
    prepare,
    toolchain_for,
)
from kernels.build import KernelBuild, KernelBuildResult, sizes
from kernels.build_context import FOLDER, BuildContext, context_in
from kernels.graph import Capacity
from kernels.kernel_recipe import (
    check_jax,
    chosen_modules,
    refuse_code_alone,
    repair_plan,
    wheel_version,
)
from kernels.module_catalog import load_catalog
from kernels.modules import processors
from kernels.remote_steps import KIND, compile_step
from kernels.toolchains import Toolchain
from wheelkit.repair.repair_plan import RepairPlan

__all__ = [
    "FOLDER",
    "KIND",
    "Capacity",
    "KernelBuild",
    "KernelWheel",
    "Toolchain",
    "check_source",
    "compile_step",
    "context_in",
    "make_wheel",
    "pack",
    "prepare",
    "sizes",
    "toolchain_for",
    "wheel_version",
]


@frozen
class WheelPlan:
    """Plan of a wheel in a set.

    Attributes:
        modules: names of the modules to build.
        repair: plan that repairs the packed wheel.
    """

    modules: tuple[str, ...]
    repair: RepairPlan


def check_request(request: BuildRequest) -> None:
    """Check a request for kernels before anything is downloaded.

    Raises:
        RequestError: JAX is too old, a module is unknown, or the source does not exist.
    """
    assert request.kernels is not None
    check_jax(request.jax_version)
    load_catalog().chosen(
        (*request.kernels.modules, *request.kernels.require) or None,
        request.kernels.toolchain,
    )
    check_source(request.kernels.source)


def plan_wheel(request: BuildRequest) -> WheelPlan:
    """Return the plan of the wheel of a set, without downloads.

    Raises:
        RequestError: the build would refuse the request.
    """
    assert request.kernels is not None
    check_jax(request.jax_version)
    modules = chosen_modules(_requested(request), request.kernels)
    refuse_code_alone(modules)
    return WheelPlan(
        modules=tuple(module.name for module in modules),
        repair=repair_plan(request, wheel_version(request)),
    )


def update_sources(wish: str, context: BuildContext) -> list[str]:
    """Lock the files of a source that modules use; see `source_update.update`."""
    # Start-up time: only this command needs it.
    from kernels.source_update import update

    return update(wish, context)


def support_table(
    wanted: Sequence[GfxTarget], names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return the support of each target by each module: yes, portable or unsupported."""
    catalog = load_catalog()
    rows = []
    for module in catalog.chosen(names) if names else catalog.modules.values():
        support = {
            name: catalog.support(module, name).value for name in processors(wanted)
        }
        row = {
            "module": module.name,
            "kind": module.kind.value,
            "toolchains": list(module.toolchains),
            "about": module.about,
            "targets": support,
        }
        rows.append(row)
    return rows


def plan_values(request: BuildRequest, version: str) -> dict[str, Any]:
    """Return the plan of a kernel build as JSON values, without downloads.

    Raises:
        RequestError: the build would refuse the request.
    """
    assert request.kernels is not None
    wanted = _requested(request)
    chosen = chosen_modules(wanted, request.kernels)
    refuse_code_alone(chosen)
    all_targets = targets.expand(targets.ALL)
    return {
        "version": version,
        "toolchain": request.kernels.toolchain,
        "modules": support_table(
            all_targets if request.targets is None else request.targets,
            request.kernels.modules,
        ),
        "attention": request.kernels.attention,
    }


def receipt(wheel: KernelWheel) -> dict[str, Any]:
    """Return the result of a kernel build as JSON values."""
    built: KernelBuildResult = wheel.built
    source = None
    if built.source is not None:
        source = {"filename": built.source.filename, "sha256": built.source.sha256}
    return {
        "wheel": str(wheel.path),
        "sha256": wheel.sha256,
        "size": wheel.path.stat().st_size,
        "targets": list(built.wanted),
        "modules": sorted({native.module for native in built.natives}),
        "missing": list(built.missing),
        "skipped": list(built.skipped),
        "steps": {"made": built.forecast.steps, "found": built.forecast.found},
        "source": source,
    }


def _requested(request: BuildRequest) -> tuple[str, ...]:
    """Return the requested processors."""
    if request.targets is None:
        return processors(targets.expand(targets.ALL))
    return processors(request.targets)
