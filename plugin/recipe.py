"""The plugin wheel, `jax-rocm7-plugin`: jaxlib's extension modules for AMD GPUs; one wheel for each Python.

Like the pjrt wheel that it pins, it offers no extra that would install ROCm.
"""

from __future__ import annotations

from pathlib import Path

from ci_build import layouts, targets, versions, wheel_facts
from ci_build.model import BuildRequest
from ci_build.wheel.repair_plan import RepairPlan

_DEVICE = ("_linalg", "_prng", "_solver")
_HOST = ("_hybrid", "_rnn", "_sparse", "_triton", "rocm_plugin_extension")


def package(major: int) -> str:
    """The package's folder inside the wheel, for a ROCm major."""
    return versions.module_name("plugin", major)


def members(major: int) -> tuple[str, ...]:
    """Every native library of the wheel."""
    return tuple(f"{package(major)}/{name}.so" for name in sorted(_DEVICE + _HOST))


def device_members(major: int) -> tuple[str, ...]:
    """Extension modules that must have code for every gfx target; the others call ROCm's libraries or XLA."""
    return tuple(f"{package(major)}/{name}.so" for name in _DEVICE)


def repair_plan(request: BuildRequest, version: str) -> RepairPlan:
    """What to make of the extension modules: exact targets, the documented run path, exact pins, true metadata.

    Args:
        request: what was asked for.
        version: from `versions.wheel_version`.

    Raises:
        RequestError: nobody has listed the libraries of that ROCm.
    """
    rocm, folder = request.rocm_version, package(request.rocm_version.major)
    return RepairPlan(
        project=versions.package_name("plugin", rocm.major),
        version=version,
        targets=request.targets,
        covers=targets.covers(),
        rocm_version=wheel_facts.rocm_release(rocm),
        strip=request.strip,
        runpath={f"{folder}/*.so": layouts.runpath("plugin", request.targets)},
        hip_soname=layouts.hip_soname(rocm),
        members=members(rocm.major),
        device_members=device_members(rocm.major),
        summary=f"JAX on AMD GPUs: jaxlib's extension modules ({wheel_facts.content(request)})",
        requires_python=wheel_facts.requires_python(request.jax_version),
        requires_dist=versions.pins("plugin", version, major=rocm.major),
        license_text=wheel_facts.license_text(),
        files=wheel_facts.payload_files(Path(__file__).with_name("payload"), folder, version),
        build_info=wheel_facts.build_info("plugin", request, version),
        build_info_path=f"{folder}/build_info.json",
        allowed_sonames=layouts.allowed_sonames(rocm),
    )
