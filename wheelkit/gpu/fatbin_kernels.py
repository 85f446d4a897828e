"""What device code offers: its kernels by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wheelkit.gpu import code_object
from wheelkit.gpu.bundle import Entry
from wheelkit.gpu.fatbin_stream import BundleAt, Reader, each, find_bundles


def kernels(path: Path, *, name: str = "", threads: int = 2) -> Mapping[int, Mapping[str, frozenset[str]]]:
    """Names of the kernels in a file: address of each bundle -> target -> names.

    Streams: besides the names, one code object per thread is in memory.

    Args:
        path: an ELF file.
        name: what errors call it.
        threads: each needs up to 130 MiB for 0.10.2's bundles.

    Raises:
        ElfError: not an ELF file, or a damaged code object.
        FatbinError: a damaged bundle; MD5s are not checked.
    """

    def code_of(entry: Entry) -> int:
        return entry.size if entry.target else 0

    # Targets have nearly the same names: keep one string for each.
    shared: dict[str, str] = {}

    def scan(reader: Reader, bundle: BundleAt) -> dict[str, frozenset[str]]:
        found = {}
        for entry, code in reader.objects(bundle, code_of, verify=False):
            label = f"{bundle.label}: bundle {bundle.index}: {entry.name}"
            names = (shared.setdefault(kernel, kernel) for kernel in code_object.kernels(code, label))
            found[entry.name] = frozenset(names)
        return found

    bundles = find_bundles(path, name=name)
    held = each(path, bundles, scan, threads=threads)
    return {bundle.address: found for bundle, found in zip(bundles, held, strict=True)}
