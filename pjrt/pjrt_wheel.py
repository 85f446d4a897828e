"""The pjrt wheel, `jax-rocm7-pjrt`: XLA's PJRT plugin for AMD GPUs and its loader for jax.

One wheel for every Python.

The wheel has no extra that installs ROCm: AMD publishes the `rocm` wheels in a separate
index for each GPU family, so the index of this wheel could not meet such a requirement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from core import versions
from core.model import BuildRequest
from wheelkit import recipe_base
from wheelkit.repair.repair_plan import RepairPlan


def members(major: int) -> tuple[str, ...]:
    """Return the paths of every native library of the wheel."""
    return (
        f"{versions.module_name('pjrt', major).replace('.', '/')}/xla_rocm_plugin.so",
    )


def repair_plan(
    request: BuildRequest, version: str, sources: Mapping[str, str] | None = None
) -> RepairPlan:
    """Return the repair plan of XLA's library: loader, exact targets, documented RUNPATH, metadata.

    Args:
        version: version of the wheel, from `versions.set_version`.
        sources: commits and digests of a build from source, by name.

    Raises:
        RequestError: `core/rocm_layouts.toml` does not list the libraries of the ROCm
            release.
    """
    module = versions.module_name("pjrt", request.rocm_version.major)
    libraries = members(request.rocm_version.major)
    plan = recipe_base.repair_plan(
        "pjrt",
        request,
        version,
        folder=module.replace(".", "/"),
        members=libraries,
        device_members=libraries,
        about="XLA's PJRT plugin",
        payload=Path(__file__).with_name("payload"),
        sources=sources,
    )
    return replace(
        plan, entry_points={"jax_plugins": {module.rpartition(".")[2]: module}}
    )
