"""The packed wheel before its repair: native files and their manifest. The repair adds Python files and metadata."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from kernels import recipe
from kernels.build import KernelBuildResult
from kernels.modules import Catalog
from wheelkit.archive.record import RecordEntry, format_record

_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(built: KernelBuildResult, version: str, catalog: Catalog, folder: Path) -> Path:
    """Write the native files and the manifest as a wheel for the repair to complete.

    Equal content gives equal bytes.

    Returns:
        Path of the wheel in `folder`.
    """
    name = f"{recipe.PACKAGE}-{version}-{recipe.TAG}.whl"
    info = f"{recipe.PACKAGE}-{version}.dist-info"
    record: list[tuple[str, RecordEntry]] = []
    with zipfile.ZipFile(folder / name, "w") as archive:

        def write(path: str, data: bytes, mode: int = 0o644) -> None:
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            entry.create_system = 3
            archive.writestr(entry, data, compresslevel=9)
            record.append((path, RecordEntry(hashlib.sha256(data).hexdigest(), len(data), "sha256")))

        for native in built.natives:
            write(native.path, native.file.read_bytes(), 0o755 if not native.target else 0o644)
        text = recipe.manifest(catalog, built.natives, version, built.wanted, missing=built.missing,
                               instances=built.instances)  # fmt: skip
        write(recipe.MANIFEST, text)
        write(f"{info}/METADATA", f"Metadata-Version: 2.4\nName: {recipe.PROJECT}\nVersion: {version}\n".encode())
        tag = f"Wheel-Version: 1.0\nGenerator: jax-rocm-release (1)\nRoot-Is-Purelib: false\nTag: {recipe.TAG}\n"
        write(f"{info}/WHEEL", tag.encode())
        record.append((f"{info}/RECORD", RecordEntry(None, None)))
        entry = zipfile.ZipInfo(f"{info}/RECORD", _EPOCH)
        entry.external_attr, entry.create_system = 0o100644 << 16, 3
        archive.writestr(entry, format_record(record))
    return folder / name
