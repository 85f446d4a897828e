"""Recipes of the wheels `jax-rocm7-pjrt` and `jax-rocm7-plugin`.

The pjrt wheel has XLA's PJRT plugin for AMD GPUs and its loader for jax, and serves every
Python. A plugin wheel has jaxlib's extension modules for one Python.

If AMD publishes their ROCm as wheels, both have an extra for each GPU, such as
device-gfx942, which requires these wheels in exactly the ROCm of the build.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from core import versions
from core.frozen import frozen
from core.model import BuildRequest
from wheelkit import recipe_base
from wheelkit.repair.repair_plan import RepairPlan

_ROOT = Path(__file__).parents[1]


@frozen
class _Recipe:
    """Contents of a wheel.

    Attributes:
        about: contents in words, for the Summary.
        device: libraries that must have code for every gfx target.
        host: libraries without device code.
        payload: Python files.
    """

    about: str
    device: tuple[str, ...]
    host: tuple[str, ...]
    payload: tuple[Path, ...]


_PJRT_PAYLOAD = tuple(sorted((_ROOT / "pjrt/payload").glob("*.py")))
_RECIPES: Mapping[versions.Kind, _Recipe] = {
    "pjrt": _Recipe(
        about="XLA's PJRT plugin",
        device=("xla_rocm_plugin",),
        host=(),
        payload=_PJRT_PAYLOAD,
    ),
    "plugin": _Recipe(
        about="jaxlib's extension modules",
        device=("_linalg", "_prng", "_solver"),
        host=("_hybrid", "_rnn", "_sparse", "_triton", "rocm_plugin_extension"),
        payload=(
            _ROOT / "plugin/payload/__init__.py",
            _ROOT / "pjrt/payload/build_info.py",
        ),
    ),
}


def members(kind: versions.Kind, major: int) -> tuple[str, ...]:
    """Return the paths of every native library of a wheel."""
    recipe = _RECIPES[kind]
    return _paths(kind, major, (*recipe.device, *recipe.host))


def device_members(kind: versions.Kind, major: int) -> tuple[str, ...]:
    """Return the paths of the libraries that must have code for every gfx target."""
    return _paths(kind, major, _RECIPES[kind].device)


def _paths(kind: versions.Kind, major: int, names: tuple[str, ...]) -> tuple[str, ...]:
    folder = _folder(kind, major)
    return tuple(f"{folder}/{name}.so" for name in sorted(names))


def _folder(kind: versions.Kind, major: int) -> str:
    return versions.module_name(kind, major).replace(".", "/")


def repair_plan(
    kind: versions.Kind,
    request: BuildRequest,
    version: str,
    sources: Mapping[str, str] | None = None,
) -> RepairPlan:
    """Return the repair plan of a wheel: payload, exact targets, RUNPATH, pins, metadata.

    Args:
        version: version of the wheel, from `versions.set_version`.
        sources: commits and digests of a build from source, by name.

    Raises:
        RequestError: `core/rocm_layouts.toml` does not list the libraries of the ROCm
            release.
    """
    major = request.rocm_version.major
    plan = recipe_base.repair_plan(
        kind,
        request,
        version,
        folder=_folder(kind, major),
        members=members(kind, major),
        device_members=device_members(kind, major),
        about=_RECIPES[kind].about,
        payload=_RECIPES[kind].payload,
        sources=sources,
    )
    if kind == "plugin":
        return plan
    module = versions.module_name(kind, major)
    name = module.rpartition(".")[2]
    return replace(plan, entry_points={"jax_plugins": {name: module}})
