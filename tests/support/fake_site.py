"""A site-packages directory with the product's payload and the native files of a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from core.targets import lists
from tests.support.files import write_files
from wheelkit.elf.writer import Export, shared_library

ROOT = Path(__file__).parents[2]
HIP = "libamdhip64.so.7"
PJRT_NEEDED = (
    "librocprofiler-sdk.so.1",
    "librccl.so.1",
    "libhipblaslt.so.1",
    "libhipfft.so.0",
    "libMIOpen.so.1",
    "librocblas.so.5",
    "librocm_smi64.so.1",
    HIP,
)
PLUGIN_NEEDED = (
    "libhipblas.so.3",
    "libhipsolver.so.1",
    "librocsolver.so.0",
    "libhipsparse.so.4",
    "libMIOpen.so.1",
)


def dist_info(
    site: Path, name: str, version: str, *requires: str, extras: Iterable[str] = ()
) -> None:
    """Write the metadata of a package, and remove those of its other versions."""
    stem = name.replace("-", "_")
    for other in site.glob(f"{stem}-*.dist-info"):
        shutil.rmtree(other)
    lines = [f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    text = "\n".join(["Metadata-Version: 2.4", *lines, ""])
    write_files(site, {f"{stem}-{version}.dist-info/METADATA": text})


def build_info(
    needed: Iterable[str] = (),
    targets: Iterable[str] = ("gfx942", "gfx950"),
    **changes: Any,
) -> dict[str, Any]:
    """Return build_info.json with one library that needs `needed` and has code for `targets`."""
    needed = list(needed)
    return {
        "version": "0.10.2+rocm7.2.0",
        "jax_version": "0.10.2",
        "rocm_version": "7.2.0",
        "requires_jaxlib": ">=0.10.2,<0.10.3",
        "covers": {"gfx11-generic": ["gfx1100", "gfx1103"]},
        "xla_targets": ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1103"],
        "families": ["gfx94X_dcgpu", "gfx950_dcgpu"],
        "rocm_sonames": needed,
        "runpath": "$ORIGIN/../../_rocm_sdk_core/lib:/opt/rocm/lib",
        "rocm_index": "https://repo.amd.com/rocm/whl-multi-arch/",
        "members": [
            {
                "path": "x.so",
                "targets": list(targets),
                "needed": [*needed, "libc.so.6"],
            }
        ],
        **changes,
    }


def install(
    site: Path,
    part: str,
    major: int,
    info: Mapping[str, Any],
    extras: Iterable[str] = (),
) -> Path:
    """Install the payload of one wheel into a directory of packages.

    Args:
        part: pjrt or plugin.
        extras: names of the package's extras.

    Returns:
        The directory of the package.
    """
    package = site / (
        f"jax_plugins/xla_rocm{major}" if part == "pjrt" else f"jax_rocm{major}_plugin"
    )
    package.mkdir(parents=True, exist_ok=True)
    shared = ROOT / "pjrt/payload/build_info.py"
    for source in (shared, *(ROOT / part / "payload").glob("*.py")):
        (package / source.name).write_bytes(source.read_bytes())
    version = info["version"]
    (package / "version.py").write_text(f"__version__ = {version!r}\n")
    library = package / ("xla_rocm_plugin.so" if part == "pjrt" else "native.so")
    members = [
        {**member, "path": str(library.relative_to(site))} for member in info["members"]
    ]
    (package / "build_info.json").write_text(json.dumps({**info, "members": members}))
    requires = [f"jaxlib{info['requires_jaxlib']}"]
    if part == "plugin":
        requires.append(f"jax-rocm{major}-pjrt=={version}")
    name = f"jax-rocm{major}-{part}"
    dist_info(site, name, version, *requires, extras=extras)
    library.touch()
    return package


def loader_site(
    site: Path,
    rocm: Path,
    files: Mapping[str, str],
    *,
    major: int = 7,
    needed: Iterable[str] = (HIP,),
) -> None:
    """Install both wheels with files for all XLA targets, and a ROCm that they need.

    Args:
        needed: ROCm libraries that XLA's plugin needs.
    """
    xla = {"xla_targets": list(lists()["compiler-supported"])}
    install(site, "pjrt", major, build_info(needed, **xla))
    for name in ("jax", "jaxlib"):
        dist_info(site, name, "0.10.2")
    install(site, "plugin", major, build_info(PLUGIN_NEEDED, targets=(), **xla))
    write_files(site, files)
    (rocm / "lib").mkdir(parents=True)
    for name in {*needed, *PLUGIN_NEEDED}:
        library = shared_library(name, [Export(name="hipGetDeviceCount", code=b"\xc3")])
        (rocm / "lib" / name).write_bytes(library)


def kfd_tree(folder: Path, *gpus: Mapping[str, int]) -> Path:
    """Write a KFD topology: node 0 is a CPU, each further node a GPU with its properties."""
    for number, facts in enumerate([{"cpu_cores_count": 64}, *gpus]):
        node = folder / str(number)
        node.mkdir(parents=True)
        everything = {"simd_count": 0 if not number else 304, **facts}
        (node / "properties").write_text(
            "".join(f"{key} {value}\n" for key, value in everything.items())
        )
    return folder
