"""Check that a library's needed libraries and symbols exist, in the required versions.

The rules are those of the dynamic loader (System V gABI, "Shared Object Dependencies";
LSB, "Symbol Versioning"; glibc, elf/dl-version.c and elf/dl-lookup.c): any library of
the NEEDED closure may provide a symbol; a reference without a version matches every
version; a version that the named library lacks prevents loading, unless that library
has no versions; a weak symbol may be absent. A weak function of ROCm may not: its
callers would jump to address 0. The messages of findings start with a verb, since the
caller prepends the name of the library.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from core.model import Finding
from core.rocm_layouts import rocm_with
from promotion.gates.common.gate_context import error, warning
from wheelkit.elf.snapshot import Elf, Symbol
from wheelkit.findings import some
from wheelkit.inspect.platform_rules import ROCM_SONAME
from wheelkit.rocm_manifest import is_foreign

_OF_ROCM = re.compile(r"_*(hip|roc|miopen|nccl|hsa|amdsmi|rsmi)\w+")
"""Names of functions in ROCm's libraries."""


@dataclass(frozen=True, kw_only=True)
class LibraryExports:
    """Exports of one library.

    Attributes:
        origin: display name of its origin, such as "ROCm 7.2.0".
        symbols: exported symbol -> versions; "" stands for no version.
    """

    origin: str
    symbols: Mapping[str, tuple[str, ...]]
    needed: tuple[str, ...]

    @functools.cached_property
    def versions(self) -> frozenset[str]:
        """Versions of all symbols."""
        return frozenset[str]().union(*self.symbols.values()) - {""}

    def has(self, symbol: Symbol) -> bool:
        """Report whether the loader would bind the symbol to this library."""
        versions = self.symbols.get(symbol.name)
        return versions is not None and (
            symbol.version is None or not self.versions or symbol.version in versions
        )


def unmet_needs(
    elf: Elf, known: Collection[str], exports: Mapping[str, LibraryExports], rocm: str
) -> Iterator[Finding]:
    """Yield findings about ROCm's libraries that a NEEDED entry names and the ROCm lacks.

    The gate inspection reports other libraries that users lack.

    Args:
        elf: the library.
        known: sonames of the platform.
        exports: libraries of the wheels and of ROCm by soname or file name.
        rocm: display name of the ROCm.
    """
    missing = {}
    for soname in filter(ROCM_SONAME.fullmatch, elf.needed):
        if soname not in known and soname not in exports:
            stem = soname.partition(".so")[0]
            others = [name for name in exports if name.partition(".so")[0] == stem]
            available = f" (available: {', '.join(sorted(others))})" if others else ""
            missing[soname] = soname + available
    if missing:
        text = (
            f"needs {', '.join(missing.values())}, which neither {rocm} nor a wheel of"
            " the set contains."
        )
        remedy = "Build against this ROCm."
        yield error("needed-unresolved", text, rocm_with([*missing]) or remedy)


def unmet_symbols(
    elf: Elf, exports: Mapping[str, LibraryExports], system: Collection[str], rocm: str
) -> Iterator[Finding]:
    """Yield findings about symbols and versions that no library in the NEEDED closure has.

    Symbols of missing libraries are not reported again.

    Args:
        elf: the library.
        exports: as in `unmet_needs`.
        system: sonames of the platform; `members` checks the versions of their symbols.
        rocm: display name of the ROCm.
    """
    scope = tuple(closure(elf.needed, exports))
    absent = {
        soname
        for soname in elf.needed
        if soname not in system and soname not in exports
    }
    # Keys: library that the symbols name (empty without one), and version.
    lost_versions: dict[tuple[str, str], list[Symbol]] = {}
    other_versions: dict[tuple[str, str], list[str]] = {}
    missing: dict[str, list[str]] = {}
    for symbol in elf.undefined:
        if (
            symbol.library in system
            or is_foreign(symbol.name)
            or any(provider.has(symbol) for provider in scope)
        ):
            continue
        if symbol.library in absent or (symbol.library is None and absent):
            continue
        key = symbol.library or "", symbol.version or ""
        named = exports.get(key[0])
        if named is not None and named.versions and key[1] not in named.versions:
            lost_versions.setdefault(key, []).append(symbol)
        elif symbol.bind == "WEAK" and not _OF_ROCM.fullmatch(symbol.name):
            continue
        elif named is not None and symbol.name in named.symbols:
            other_versions.setdefault(key, []).append(symbol.name)
        else:
            missing.setdefault(key[0], []).append(symbol.name)
    remedy = (
        f"Build the library against {rocm}, or pass the manifest of the ROCm that it"
        " was built with."
    )
    for (library, version), symbols in sorted(lost_versions.items()):
        users = some([symbol.name for symbol in symbols])
        has = ", ".join(sorted(exports[library].versions))
        text = (
            f"needs version {version} of {library} (for {users}); the one of"
            f" {exports[library].origin} has {has}."
        )
        # The loader rejects a missing version even if only weak symbols need it, unless
        # the linker marked the need as weak, which not every linker does.
        is_weak = all(symbol.bind == "WEAK" for symbol in symbols)
        report = warning if is_weak else error
        yield report("symbol-version-missing", text, remedy)
    for (library, version), others in sorted(other_versions.items()):
        exported = set[str]().union(
            *(exports[library].symbols[name] for name in others)
        )
        has = ", ".join(sorted(version or "none" for version in exported))
        text = (
            f"needs {some(others)} in version {version}; {library} of"
            f" {exports[library].origin} has {has}."
        )
        yield error("symbol-version-missing", text, remedy)
    for library, names in sorted(missing.items()):
        count = f"{len(names)} symbol{'s' * (len(names) > 1)}"
        where = "no needed library exports"
        if library in exports:
            where = f"{library} of {exports[library].origin} does not export"
        text = f"needs {count} that {where}: {some(names)}."
        yield error("symbol-missing", text, remedy)


def closure(
    needed: Sequence[str], exports: Mapping[str, LibraryExports]
) -> Iterator[LibraryExports]:
    """Yield the libraries of the NEEDED closure in the loader's search order."""
    waiting = deque(needed)
    seen = set(needed)
    while waiting:
        provider = exports.get(waiting.popleft())
        if provider is not None:
            yield provider
            fresh = [name for name in provider.needed if name not in seen]
            seen.update(fresh)
            waiting.extend(fresh)
