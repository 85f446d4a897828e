"""A small ROCm as the pip packages of TheRock, and an index of these packages."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from packaging.version import Version

from core.digests import sha256_of
from tests.support.made_rocm import make_rocm
from tests.support.made_wheel import MadeWheel

CORE = "_rocm_sdk_core"
DEVEL = "_rocm_sdk_devel"
FAMILY = "gfx94X-dcgpu"
_KERNELS = ("lib/rocblas/", "lib/hipblaslt/", "share/miopen/")


def make_wheel(
    name: str, version: str, files: Mapping[str, tuple[bytes, int]]
) -> tuple[str, bytes]:
    """Return the file name and bytes of a wheel; `files` is path -> content and mode."""
    made = MadeWheel(
        project=name.replace("-", "_"), version=version, platform="linux_x86_64"
    )
    made.files = {path: data for path, (data, _) in files.items()}
    made.modes = {path: mode for path, (_, mode) in files.items()}
    made.metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    made.wheel = [
        "Wheel-Version: 1.0",
        "Root-Is-Purelib: false",
        "Tag: py3-none-linux_x86_64",
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = made.write(Path(folder))
        return path.name, path.read_bytes()


def metadata_of(wheel: bytes) -> bytes:
    """Return METADATA of a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        names = archive.namelist()
        return archive.read(next(name for name in names if name.endswith("/METADATA")))


def make_packages(
    folder: Path, version: str, *, split: bool = False, packed: str = ".xz"
) -> dict[str, bytes]:
    """Return the wheels of a ROCm by file name.

    Args:
        folder: folder for the ROCm tree.
        split: whether kernels are in a device package, and the libraries are for all
            GPUs.
        packed: ending of the tar in the devel package after `_devel.tar`.
    """
    tree = make_rocm(folder, told=Version(version).base_version)
    libraries = (
        "_rocm_sdk_libraries"
        if split
        else f"_rocm_sdk_libraries_{FAMILY.replace('-', '_')}"
    )
    parts: dict[str, dict[str, tuple[bytes, int]]] = {
        "core": {},
        "libraries": {},
        "device": {},
    }
    links = []
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for path in sorted(tree.rglob("*")):
            name = path.relative_to(tree).as_posix()
            if path.is_dir() and not path.is_symlink():
                continue
            if path.is_symlink() or name.startswith(("include/", ".info/")):
                archive.add(path, f"{DEVEL}/{name}", recursive=False)
                continue
            row = (path.read_bytes(), path.stat().st_mode & 0o777)
            kernel = name.startswith(_KERNELS)
            package = libraries if kernel or "rocblas" in name else CORE
            if kernel and split:
                parts["device"][f"{package}/{name}"] = row
                links.append(
                    {
                        "relpath": name,
                        "target": f"{'../' * (name.count('/') + 1)}{package}/{name}",
                    }
                )
                continue
            parts["core" if package == CORE else "libraries"][f"{package}/{name}"] = row
            entry = tarfile.TarInfo(f"{DEVEL}/{name}")
            entry.type = tarfile.SYMTYPE
            entry.linkname = f"{'../' * (name.count('/') + 1)}{package}/{name}"
            archive.addfile(entry)
    content = lzma.compress(tar.getvalue()) if packed else tar.getvalue()
    wheels = [
        make_wheel(
            "rocm-sdk-core",
            version,
            parts["core"] | {"rocm_sdk_core/__init__.py": (b"", 0o644)},
        ),
        make_wheel(
            "rocm-sdk-devel",
            version,
            {f"rocm_sdk_devel/_devel.tar{packed}": (content, 0o644)},
        ),
        make_wheel(
            f"rocm-sdk-libraries{'' if split else '-' + FAMILY}",
            version,
            parts["libraries"],
        ),
    ]
    if split:
        manifest = json.dumps({"links": links}).encode()
        more = {f"{libraries}/.devel_links/gfx942.json": (manifest, 0o644)}
        wheels.append(
            make_wheel("rocm-sdk-device-gfx942", version, parts["device"] | more)
        )
    return dict(wheels)


def index_of(wheels: Mapping[str, bytes], *, digests: bool = True) -> dict[str, bytes]:
    """Return the content of a server: decoded path -> pages (PEP 503) and wheels below /simple/.

    Args:
        digests: whether pages have the digests of wheels. AMD's have those of the
            metadata only (TheRock, manage_structured.py).
    """
    files: dict[str, bytes] = {f"/files/{name}": data for name, data in wheels.items()}
    pages: dict[str, list[str]] = {}
    for name, data in wheels.items():
        project = name.partition("-")[0].replace("_", "-").lower()
        metadata = metadata_of(data)
        files[f"/files/{name}.metadata"] = metadata
        mark = f'data-core-metadata="sha256={sha256_of(metadata)}"'
        fragment = f"#sha256={sha256_of(data)}" if digests else ""
        link = f'<a href="/files/{quote(name)}{fragment}" {mark}>{name}</a>'
        pages.setdefault(f"/simple/{project}/", []).append(link)
    pages["/simple/"] = [f'<a href="{path}">{path}</a>' for path in sorted(pages)]
    return files | {path: "<br>".join(links).encode() for path, links in pages.items()}
