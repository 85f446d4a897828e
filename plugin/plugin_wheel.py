"""The plugin wheel, `jax-rocm7-plugin`: jaxlib's extension modules for AMD GPUs.

One wheel for each Python.

Like the pjrt wheel that it requires, the plugin wheel has no extra that installs ROCm.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from core import versions
from core.model import BuildRequest
from wheelkit import recipe_base
from wheelkit.repair.repair_plan import RepairPlan

_DEVICE = ("_linalg", "_prng", "_solver")
_HOST = ("_hybrid", "_rnn", "_sparse", "_triton", "rocm_plugin_extension")


def members(major: int) -> tuple[str, ...]:
    """Return the paths of every native library of the wheel."""
    return tuple(
        f"{versions.module_name('plugin', major)}/{name}.so"
        for name in sorted(_DEVICE + _HOST)
    )


def device_members(major: int) -> tuple[str, ...]:
    """Return the libraries that must have code for every gfx target.

    The other libraries have no device code.
    """
    return tuple(
        f"{versions.module_name('plugin', major)}/{name}.so" for name in _DEVICE
    )


def repair_plan(
    request: BuildRequest, version: str, sources: Mapping[str, str] | None = None
) -> RepairPlan:
    """Return the repair plan of the extension modules.

    Exact targets, documented RUNPATH, exact pins, metadata.

    Args:
        version: version of the wheel, from `versions.set_version`.
        sources: commits and digests of a build from source, by name.

    Raises:
        RequestError: `core/rocm_layouts.toml` does not list the libraries of the ROCm
            release.
    """
    major = request.rocm_version.major
    return recipe_base.repair_plan(
        "plugin",
        request,
        version,
        folder=versions.module_name("plugin", major),
        members=members(major),
        device_members=device_members(major),
        about="jaxlib's extension modules",
        payload=Path(__file__).with_name("payload"),
        sources=sources,
    )
