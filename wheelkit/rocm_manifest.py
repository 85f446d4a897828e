"""Manifest of the symbols that the shared libraries of one ROCm export.

Soname -> symbol -> versions.

A wheel set contains the manifest as JSON that is easy to review and compare: symbol
names are sorted, one per line, and grouped by version. Versions are written as linkers
write them: `@@hip_4.2` is the default version of its symbols, `@hip_4.0` is a version
that only old programs use, and the empty string stands for symbols without a version
(LSB, "Symbol Versioning").
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from packaging.version import Version

from core.frozen import frozen
from core.model import RocmVersion, to_json
from core.records import read_json
from wheelkit.elf import libstdcxx
from wheelkit.elf.snapshot import Elf

SCHEMA_VERSION = 1
"""Version of the JSON format."""
ROCM_MANIFEST = "rocm-manifest.json"
"""Name of the manifest's file in a wheel set."""

_PYTHON = re.compile(r"_?Py[A-Z_]\w*")
"""Names of CPython's C API, provided by the interpreter."""


@frozen
class RocmLibrary:
    """One shared library of a ROCm.

    Attributes:
        soname: value of DT_SONAME, which is the key of the library in the file.
        path: path below the root of the ROCm tree, ending in the soname, such as
            lib/libamdhip64.so.7.
        symbols: exported symbol -> its versions, default version first; "" means no
            version. Symbols of the C++ standard library are omitted. In the file: `@@`
            and the default version, `@` and another version, or nothing -> names.
        needed: DT_NEEDED sonames in order.
        runpath: entries of DT_RUNPATH, or of DT_RPATH if there is no RUNPATH.
        size: size of the file in bytes; 0 if no file was read.
        build_id: build ID in hexadecimal; empty if the library has none.
        sha256: SHA-256 of the file; empty if no file was read.
    """

    soname: str = ""
    path: str
    size: int = 0
    build_id: str = ""
    sha256: str = ""
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    symbols: Mapping[str, tuple[str, ...]]


@frozen
class RocmManifest:
    """The libraries of one ROCm.

    Attributes:
        libraries: libraries by soname.
        weak: True if the manifest was derived from the needs of wheels; a weak manifest
            proves nothing about a ROCm.
    """

    rocm_version: str
    weak: bool = False
    libraries: Mapping[str, RocmLibrary]


def dump_manifest(manifest: RocmManifest) -> bytes:
    """Return the reproducible content of `rocm-manifest.json`."""
    libraries = {}
    for name, library in manifest.libraries.items():
        libraries[name] = replace(library, symbols=_by_version(library.symbols))
    body = to_json(replace(manifest, libraries=libraries))
    for row in body["libraries"].values():
        del row["soname"]
    body = {"schema": SCHEMA_VERSION, **body}
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def load_manifest(data: bytes) -> RocmManifest:
    """Parse `rocm-manifest.json`.

    Raises:
        FormatError: the data is not a manifest, or has an unsupported schema.
    """
    hint = "Build the set again with --rocm-manifest."
    manifest = read_json(
        data, RocmManifest, ROCM_MANIFEST, schema=SCHEMA_VERSION, hint=hint
    )
    libraries = {}
    for name, row in manifest.libraries.items():
        libraries[name] = replace(row, soname=name, symbols=_by_symbol(row.symbols))
    return replace(manifest, libraries=libraries)


@functools.cache
def shipped_manifest(rocm: RocmVersion) -> RocmManifest | None:
    """Return the reviewed manifest of a ROCm release in `rocm_manifests`; None for other releases.

    It has the symbols that the wheels published for the release need, and no other
    symbols of the release.
    """
    major, minor = Version(str(rocm)).release[:2]
    path = Path(__file__).with_name("rocm_manifests") / f"{major}.{minor}.json"
    return load_manifest(path.read_bytes()) if path.exists() else None


def from_needs(
    elfs: Iterable[Elf], rocm_version: str, rocm_sonames: Collection[str]
) -> RocmManifest:
    """Return a weak manifest of exactly the ROCm symbols that the libraries need.

    A symbol reference without a version does not name the library that provides the
    symbol. The symbol is assigned to the needed library whose name is part of the
    symbol's name, else to the first needed ROCm library. The loader itself searches all
    needed libraries.

    Args:
        rocm_sonames: sonames of ROCm libraries; all other needed libraries are ignored.
    """
    elfs = tuple(elfs)
    own = set(chain.from_iterable(elf.exported for elf in elfs))
    symbols: dict[str, dict[str, set[str]]] = {}
    for elf in elfs:
        needed = [soname for soname in elf.needed if soname in rocm_sonames]
        for soname in needed:
            symbols.setdefault(soname, {})
        for symbol in elf.undefined:
            if symbol.library and symbol.library in rocm_sonames:
                found = symbols.setdefault(symbol.library, {})
                found.setdefault(symbol.name, set()).add(symbol.version or "")
                continue
            is_optional = symbol.library is not None or symbol.bind == "WEAK"
            is_elsewhere = symbol.name in own or is_foreign(symbol.name)
            if needed and not is_optional and not is_elsewhere:
                lower = symbol.name.lower()
                named = [soname for soname in needed if _stem(soname) in lower]
                owner = max(named, key=lambda name: len(_stem(name)), default=needed[0])
                symbols[owner].setdefault(symbol.name, set()).add("")
    libraries = {}
    for soname, found in sorted(symbols.items()):
        listed = {name: tuple(sorted(found[name])) for name in sorted(found)}
        path = f"lib/{soname}"
        libraries[soname] = RocmLibrary(soname=soname, path=path, symbols=listed)
    return RocmManifest(rocm_version=rocm_version, libraries=libraries, weak=True)


def is_foreign(symbol: str) -> bool:
    """Return whether a symbol belongs to Python or the C++ library rather than to ROCm."""
    return _PYTHON.fullmatch(symbol) is not None or libstdcxx.is_standard(symbol)


def _stem(soname: str) -> str:
    """Return the text that a library's function names usually contain.

    Librocblas.so.5 -> rocblas.
    """
    stem = soname.removeprefix("lib").partition(".so")[0].lower()
    return {
        "rccl": "nccl",
        "rocm_smi64": "rsmi",
        "amdhip64": "hip",
        "hsa-runtime64": "hsa",
    }.get(stem, stem)


def _by_version(
    symbols: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Return mark and version -> names of symbols."""
    groups: dict[str, list[str]] = {}
    for name, versions in sorted(symbols.items()):
        for position, version in enumerate(versions):
            mark = "@" if position else "@@"
            groups.setdefault(mark + version if version else "", []).append(name)
    return {group: tuple(names) for group, names in groups.items()}


def _by_symbol(groups: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return symbol -> its versions, default version first."""
    symbols: dict[str, tuple[str, ...]] = {}
    for group in sorted(groups, key=lambda group: not group.startswith("@@")):
        for name in groups[group]:
            symbols[name] = (*symbols.get(name, ()), group.lstrip("@"))
    return dict(sorted(symbols.items()))
