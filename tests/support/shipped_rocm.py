"""Program that writes a manifest of `wheelkit/rocm_manifests` from the wheels that were published for a ROCm release.

`python -m tests.support.shipped_rocm 7.2 WHEEL...` adds the needs of the wheels to `7.2.json`; its difference is
reviewed like a golden list.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from core.layouts import allowed_sonames
from core.model import RocmVersion
from wheelkit import rocm_manifest
from wheelkit.elf.snapshot import HIP_RUNTIME, Elf
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest, dump_manifest, from_needs, shipped_manifest

FOLDER = Path(rocm_manifest.__file__).with_name("rocm_manifests")
_HIP = "libamdhip64.so.7"
_BELOW_HIP = ("libamd_", "libhsa", "librocm", "librocprofiler", "libroctx", "libroctracer", "libhiprtc", _HIP)
"""Beginnings of the names of libraries that do not need HIP."""


def needs_of(wheels: Sequence[Path], version: str) -> RocmManifest:
    """Return the needs of wheels; HIP's functions without a version belong to HIP, which the other libraries need."""
    rocm = RocmVersion(text=f"{version}.0")
    found = from_needs(_libraries(wheels), str(rocm), allowed_sonames(rocm))
    libraries = dict(found.libraries)
    hip = dict(libraries[_HIP].symbols)
    for name, library in found.libraries.items():
        moved = {symbol for symbol, of in library.symbols.items() if of == ("",) and HIP_RUNTIME.fullmatch(symbol)}
        hip |= {symbol: hip.get(symbol, ("",)) for symbol in moved}
        kept = {symbol: of for symbol, of in library.symbols.items() if symbol not in moved}
        needed = () if name.startswith(_BELOW_HIP) else (_HIP,)
        libraries[name] = replace(library, symbols=kept, needed=needed)
    libraries[_HIP] = replace(libraries[_HIP], symbols=hip)
    return replace(found, libraries=libraries)


def merged(one: RocmManifest | None, other: RocmManifest) -> RocmManifest:
    """Return a manifest with the libraries and symbols of both."""
    if one is None:
        return other
    names = sorted(one.libraries.keys() | other.libraries.keys())
    return replace(other, libraries={name: _merged(one.libraries, other.libraries, name) for name in names})


def _merged(one: Mapping[str, RocmLibrary], other: Mapping[str, RocmLibrary], name: str) -> RocmLibrary:
    old, new = one.get(name), other.get(name)
    if old is None or new is None:
        found = old or new
        assert found is not None
        return found
    symbols = {
        symbol: tuple(sorted({*old.symbols.get(symbol, ()), *new.symbols.get(symbol, ())}))
        for symbol in old.symbols.keys() | new.symbols.keys()
    }
    return replace(new, symbols=symbols)


def _libraries(wheels: Sequence[Path]) -> Iterator[Elf]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
            for name in (name for name in archive.namelist() if name.endswith(".so")):
                path = Path(archive.extract(name, folder))
                yield Elf.read(path)
                path.unlink()


if __name__ == "__main__":
    release = sys.argv[1]
    manifest = merged(
        shipped_manifest(RocmVersion(text=f"{release}.0")), needs_of([Path(name) for name in sys.argv[2:]], release)
    )
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{release}.json").write_bytes(dump_manifest(manifest))
