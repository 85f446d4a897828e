"""Wheels without code that stand in for others: their metadata, and ROCm's layout."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from core import rocm_layouts
from core.digests import sha256_of
from core.model import RocmPackage, RocmVersion, WheelSet
from promotion.index.pages import pages
from promotion.index.rocm_packages import extras_of, rocm_row
from wheelkit.elf.writer import shared_library

_TAG = "py3-none-linux_x86_64"
"""Tag of AMD's wheels of ROCm for a set that records none."""


def write_wheel(
    path: Path,
    project: str,
    version: str,
    *,
    requires: Iterable[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a wheel; the tag is that of its file name."""
    name, _, tag = path.stem.split("-", 2)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
    texts = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n{needs}"
        ),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: jax-rocm-release\nRoot-Is-Purelib:"
            f" true\nTag: {tag}\n"
        ),
    }
    members = {**(files or {}), **{name: text.encode() for name, text in texts.items()}}
    record = "".join(f"{name},,\n" for name in (*members, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)


def write_rocm_index(folder: Path, wheel_set: WheelSet) -> None:
    """Write a package index with a stand-in for each wheel of a set's ROCm.

    They have the recorded names, or those of AMD if the set records none.
    """
    packages = [*wheel_set.rocm_packages]
    version = wheel_set.rocm_version
    needs = () if packages else extras_of(wheel_set.wheels).values()
    for project in dict.fromkeys(chain.from_iterable(needs)):
        name = f"{project.replace('-', '_')}-{version}-{_TAG}.whl"
        package = RocmPackage(
            project=project, filename=name, version=version, url="", sha256=""
        )
        packages.append(package)
    (folder / "wheels").mkdir(parents=True)
    rows = []
    for one in packages:
        path = folder / "wheels" / one.filename
        device = one.project.startswith("rocm-sdk-device-")
        requires = [f"rocm-sdk-libraries=={one.version}"] if device else []
        files = _layout(one.project, RocmVersion(text=version))
        write_wheel(path, one.project, one.version, requires=requires, files=files)
        url = f"../../wheels/{quote(one.filename)}"
        rows.append(rocm_row(replace(one, url=url, sha256=sha256_of(path), size=0)))
    for page in pages("simple/", rows):
        path = folder / page.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page.data)


def _layout(project: str, rocm: RocmVersion) -> Mapping[str, bytes]:
    """Return the files of a wheel of ROCm, whose libraries are empty.

    Source: TheRock, build_tools/packaging/python/templates.
    """
    name = project.replace("-", "_")
    if project.startswith("rocm-sdk-device-"):
        gpu = project.rpartition("-")[2]
        return {f"_rocm_sdk_libraries/.kpack/{gpu}.kpack": b""}
    files = {f"{name}/__init__.py": b"", f"_{name}/__init__.py": b""}
    for soname in rocm_layouts.allowed_sonames(rocm):
        if rocm_layouts.package_of(soname) == project:
            files[f"_{name}/lib/{soname}"] = shared_library(soname, [])
    return files
