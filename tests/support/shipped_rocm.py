"""Manifest of a ROCm release in `wheelkit/rocm_manifests`, from the wheels published for it.

`python -m tests.support.shipped_rocm 10.1 WHEEL...` writes the needs of the wheels to
`10.1.json`; its difference is reviewed like a golden list.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from core.model import RocmVersion
from core.rocm_layouts import allowed_sonames
from wheelkit import rocm_manifest
from wheelkit.elf.snapshot import HIP_RUNTIME, Elf
from wheelkit.rocm_manifest import RocmManifest, dump_manifest, from_needs

FOLDER = Path(rocm_manifest.__file__).with_name("rocm_manifests")
_HIP = "libamdhip64.so.7"
_BELOW_HIP = ("libamd", "libhsa", "libroc", "libhiprtc")
"""Beginnings of the names of libraries that do not need HIP."""
_ABOVE_HIP = ("librocblas", "librocsolver", "librocsparse")


def needs_of(wheels: Sequence[Path], version: str) -> RocmManifest:
    """Return the needs of wheels.

    HIP's functions without a version belong to HIP, which the other libraries need.
    """
    rocm = RocmVersion(text=f"{version}.0")
    manifest = from_needs(_libraries(wheels), str(rocm), allowed_sonames(rocm))
    libraries = dict(manifest.libraries)
    hip = dict(libraries[_HIP].symbols)
    for name, library in manifest.libraries.items():
        if name == _HIP:
            continue
        own = {}
        for symbol, versions in library.symbols.items():
            if versions == ("",) and HIP_RUNTIME.fullmatch(symbol):
                hip.setdefault(symbol, versions)
            else:
                own[symbol] = versions
        below = name.startswith(_BELOW_HIP) and not name.startswith(_ABOVE_HIP)
        needed = () if below else (_HIP,)
        libraries[name] = replace(library, symbols=own, needed=needed)
    libraries[_HIP] = replace(libraries[_HIP], symbols=hip)
    return replace(manifest, libraries=libraries)


def _libraries(wheels: Sequence[Path]) -> Iterator[Elf]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
            for name in archive.namelist():
                if name.endswith(".so"):
                    yield Elf.read(Path(archive.extract(name, folder)))


if __name__ == "__main__":
    release, *names = sys.argv[1:]
    manifest = needs_of([Path(name) for name in names], release)
    (FOLDER / f"{release}.json").write_bytes(dump_manifest(manifest))
