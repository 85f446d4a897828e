"""The pjrt wheel, `jax-rocm7-pjrt`: XLA's PJRT plugin for AMD GPUs and the loader that jax finds; for every Python.

It offers no extra that would install ROCm: AMD's `rocm` wheels are on an index of their own for each GPU family, so
no requirement in here could be met from the index that this wheel comes from.
"""

from __future__ import annotations

from pathlib import Path

from ci_build import layouts, targets, versions, wheel_facts
from ci_build.model import BuildRequest
from ci_build.wheel.repair_plan import RepairPlan


def package(major: int) -> str:
    """The package's folder inside the wheel, for a ROCm major."""
    return versions.module_name("pjrt", major).replace(".", "/")


def members(major: int) -> tuple[str, ...]:
    """Every native library of the wheel."""
    return (f"{package(major)}/xla_rocm_plugin.so",)


def device_members(major: int) -> tuple[str, ...]:
    """Native libraries that must have code for every gfx target; no other may have any."""
    return members(major)


def repair_plan(request: BuildRequest, version: str) -> RepairPlan:
    """What to make of XLA's library: our loader around it, exact targets, the documented run path, true metadata.

    Args:
        request: what was asked for.
        version: from `versions.wheel_version`.

    Raises:
        RequestError: nobody has listed the libraries of that ROCm.
    """
    rocm, folder = request.rocm_version, package(request.rocm_version.major)
    module = versions.module_name("pjrt", rocm.major)
    return RepairPlan(
        project=versions.package_name("pjrt", rocm.major),
        version=version,
        targets=request.targets,
        covers=targets.covers(),
        rocm_version=wheel_facts.rocm_release(rocm),
        strip=request.strip,
        runpath={f"{folder}/*.so": layouts.runpath("pjrt", request.targets)},
        hip_soname=layouts.hip_soname(rocm),
        members=members(rocm.major),
        device_members=device_members(rocm.major),
        summary=f"JAX on AMD GPUs: XLA's PJRT plugin ({wheel_facts.content(request)})",
        requires_python=wheel_facts.requires_python(request.jax_version),
        requires_dist=versions.pins("pjrt", version, major=rocm.major),
        license_text=wheel_facts.license_text(),
        entry_points={"jax_plugins": {module.rpartition(".")[2]: module}},
        files=wheel_facts.payload_files(Path(__file__).with_name("payload"), folder, version),
        build_info=wheel_facts.build_info("pjrt", request, version),
        build_info_path=f"{folder}/build_info.json",
        allowed_sonames=layouts.allowed_sonames(rocm),
    )
