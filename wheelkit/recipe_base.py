"""Common parts of the pjrt and plugin recipes.

Build information, supported Pythons, payload files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from core import rocm_layouts as layouts
from core import targets, versions
from core.digests import sha256_of
from core.model import BuildRequest, RocmVersion, to_json
from core.rocm_releases import load_releases, rocm_extras
from core.rocm_servers import load_servers, package_server
from wheelkit.repair.platform_tags import platform_of
from wheelkit.repair.repair_plan import RepairPlan

RECIPE = "recipe"
"""Field of `build_info.json` with the `recipe_digest`."""
_FORMAT = 3
"""Version of what recipes write for the same payload and tables.

A change of texts or fields needs another number.
"""
_LICENSE = Path(__file__).parents[1] / "LICENSE"
_OLDEST_PYTHON = ((Version("0.11"), ">=3.12"), (Version("0"), ">=3.11"))
"""First JAX release of a range -> Requires-Python of the range; newest range first."""


def repair_plan(
    kind: versions.Kind,
    request: BuildRequest,
    version: str,
    *,
    folder: str,
    members: tuple[str, ...],
    device_members: tuple[str, ...],
    about: str,
    payload: Sequence[Path],
    sources: Mapping[str, str] | None = None,
) -> RepairPlan:
    """Return the repair plan of a wheel.

    Exact targets, documented RUNPATH, exact pins, correct metadata.

    Args:
        version: version of the wheel, from `versions.wheel_version`.
        members: every native library of the wheel.
        device_members: native libraries that must have code for every gfx target.
        payload: Python files of the wheel.
        sources: source name -> commit or digest, for a wheel built from source.

    Raises:
        RequestError: the sonames of this ROCm version are unknown.
    """
    rocm = request.rocm_version
    return RepairPlan(
        project=versions.package_name(kind, rocm.major),
        version=version,
        platform=platform_of(request.platform_tag),
        targets=request.targets,
        rocm_version=Version(
            str(rocm)
        ).base_version,  # drops the pre-release part: 7.10.0a20251120 -> 7.10.0
        strip=request.strip,
        runpath={f"{folder}/*.so": layouts.runpath(kind, request.targets)},
        hip_soname=layouts.hip_soname(rocm),
        members=members,
        device_members=device_members,
        summary=f"JAX on AMD GPUs: {about} ({content(request)})",
        requires_python=requires_python(request.jax_version),
        requires_dist=versions.pins(kind, version, major=rocm.major),
        extras=rocm_extras(rocm, request.targets),
        license_text=license_text(),
        files=payload_files(payload, folder, version),
        build_info=build_info(kind, request, version, sources)
        | {RECIPE: recipe_digest(payload)},
        build_info_path=f"{folder}/build_info.json",
        allowed_sonames=layouts.allowed_sonames(rocm),
    )


def build_info(
    kind: versions.Kind,
    request: BuildRequest,
    version: str,
    sources: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the fields of `build_info.json` that the request determines.

    `repair_plan` adds `recipe`, the repair adds `compression` and `members`, and the
    build driver adds `inputs` and `tools`. The loader in `pjrt/payload` reads the file;
    `build_info.py` in the wheel documents the fields.
    """
    return {
        "version": version,
        "jax_version": Version(request.jax_version).base_version,
        "rocm_version": str(request.rocm_version),
        "requires_jaxlib": versions.jaxlib_requirement(version).removeprefix("jaxlib"),
        "requested_targets": (
            None
            if request.targets is None
            else [str(target) for target in request.targets]
        ),
        "covers": {
            name: list(processors) for name, processors in targets.covers().items()
        },
        "xla_targets": list(targets.lists()["compiler-supported"]),
        "families": list(layouts.family_packages(request.targets)),
        "rocm_sonames": sorted(layouts.allowed_sonames(request.rocm_version)),
        "runpath": layouts.runpath(kind, request.targets),
        "rocm_index": _rocm_index(request.rocm_version),
        "stripped": request.strip,
        **({"sources": dict(sources)} if sources else {}),
    }


def _rocm_index(rocm: RocmVersion) -> str:
    """Return the index of ROCm's Python packages, which the loader recommends.

    A ROCm without an index for all families has newer releases of its major in one.
    """
    server = package_server(str(rocm))
    if server is None or server.families:
        server = load_servers()["stable-packages-before-10"]
    return server.url


def recipe_digest(payload: Sequence[Path]) -> str:
    """Return the SHA-256 of what determines the texts of a wheel besides its request.

    Payload, licence and tables.

    The gate `inspection` compares wheels with the same digest with what their recipe
    writes.
    """
    files = {file.name: sha256_of(file.read_bytes()) for file in payload}
    licence = sha256_of(license_text())
    parts = [
        _FORMAT,
        files,
        licence,
        to_json(targets.load_table()),
        to_json(layouts.load_layouts()),
        to_json(load_releases().wheels),
        to_json(load_servers()),
    ]
    return sha256_of(json.dumps(parts, sort_keys=True).encode())


def requires_python(jax_version: str) -> str:
    """Return the Requires-Python of a JAX release's wheels."""
    release = Version(Version(jax_version).base_version)
    return next(python for first, python in _OLDEST_PYTHON if release >= first)


def content(request: BuildRequest, *, rocm: bool = True) -> str:
    """Return the targets as text for the Summary, after the ROCm version if needed."""
    held = (
        "all targets of the build"
        if request.targets is None
        else ", ".join(map(str, request.targets))
    )
    return f"ROCm {request.rocm_version}; {held}" if rocm else held


def payload_files(
    payload: Sequence[Path], package: str, version: str
) -> dict[str, bytes]:
    """Return the Python files of a wheel.

    Returns:
        Path inside the wheel -> content. `version.py`, which jaxlib reads, is
        generated; inspections compare the version in it with METADATA.
    """
    stamp = (
        '"""The version of this wheel."""\n\n_release_version: str ='
        f" {version!r}\n__version__ = _release_version\n"
    )
    sources = {f"{package}/{file.name}": file.read_bytes() for file in payload}
    return sources | {f"{package}/version.py": stamp.encode()}


def license_text() -> bytes:
    """Return the licence of this project, which is also that of JAX and XLA: Apache 2.0."""
    return _LICENSE.read_bytes()
