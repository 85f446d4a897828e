"""Whether the libraries that a library is loaded with have the symbols that it wants, in the versions that it wants.

The rules are those of the dynamic loader (System V gABI, "Shared Object Dependencies"; LSB, "Symbol Versioning"; glibc,
elf/dl-version.c and elf/dl-lookup.c): every library of its NEEDED closure may bring a symbol; a reference without a
version takes any; a version that the named library lacks keeps everything from loading, unless that library has no
versions at all; a weak symbol may be absent. Messages go on where the name of the library stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from core.model import Finding, Severity
from promotion.gates.common.gate import error
from wheelkit.elf.snapshot import Elf, Symbol
from wheelkit.rocm_manifest import RocmLibrary, is_foreign

_SHOWN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryExports:
    """What one library has for others.

    Attributes:
        origin: where it comes from, for people, such as "ROCm 7.2.0".
        symbols: exported symbol -> its versions; "" stands for none.
        versions: all versions that it has.
    """

    soname: str
    origin: str
    symbols: Mapping[str, tuple[str, ...]]
    needed: tuple[str, ...]
    versions: frozenset[str]

    @classmethod
    def of_elf(cls, elf: Elf, soname: str, origin: str) -> LibraryExports:
        """A library of a wheel."""
        return cls(
            soname=soname, origin=origin, symbols=elf.offered, needed=elf.needed, versions=_versions(elf.offered)
        )

    @classmethod
    def of_library(cls, library: RocmLibrary, origin: str) -> LibraryExports:
        """A library of ROCm."""
        versions, symbols = _versions(library.symbols), library.symbols
        return cls(soname=library.soname, origin=origin, symbols=symbols, needed=library.needed, versions=versions)

    def has(self, symbol: Symbol) -> bool:
        """Whether the loader would bind the symbol to it."""
        found = self.symbols.get(symbol.name)
        return found is not None and (symbol.version is None or not self.versions or symbol.version in found)


@dataclass(kw_only=True, slots=True)
class _Gaps:
    """What is lacking, by the library that is asked for it (empty without one) and the version."""

    versions: dict[tuple[str, str], list[Symbol]] = field(default_factory=dict)
    other: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    absent: dict[str, list[str]] = field(default_factory=dict)


def unmet_needs(elf: Elf, known: Collection[str], offers: Mapping[str, LibraryExports], rocm: str) -> Iterator[Finding]:
    """NEEDED entries that nobody brings.

    Args:
        elf: the library.
        known: sonames of the platform, and without a manifest those of ROCm that a wheel may need.
        offers: the libraries of the wheels and of ROCm by the name that others need them by.
        rocm: what to call the ROCm.
    """
    for soname in elf.needed:
        if "/" in soname:
            text = f"needs {soname}, which is a path of the machine that built it."
            yield error("needed-build-path", text, "Link with a library's name, not with the path of its file.")
    missing = [soname for soname in elf.needed if soname not in known and soname not in offers and "/" not in soname]
    if missing:
        words = [soname + _relatives(soname, offers) for soname in missing]
        yield error(
            "needed-unresolved",
            f"needs {', '.join(words)}, which neither {rocm} nor the platform nor a wheel of the set brings.",
            "Build it against that ROCm and platform, link the library statically, or bring it in the wheel.",
        )


def unmet_symbols(
    elf: Elf, offers: Mapping[str, LibraryExports], system: Collection[str], rocm: str
) -> Iterator[Finding]:
    """Symbols and versions that no library in the closure of NEEDED has.

    What a library that is not there would have brought is not told again.

    Args:
        elf: the library.
        offers: as in `unmet_needs`.
        system: sonames of the platform; their versions are for its policy to judge.
        rocm: what to call the ROCm.
    """
    scope = tuple(closure(elf.needed, offers))
    absent = {soname for soname in elf.needed if soname not in system and soname not in offers}
    gaps = _Gaps()
    for symbol in elf.undefined:
        if symbol.library in system or is_foreign(symbol.name) or any(offer.has(symbol) for offer in scope):
            continue
        if symbol.library in absent or (symbol.library is None and absent):
            continue
        key = symbol.library or "", symbol.version or ""
        asked = offers.get(key[0])
        if asked is not None and asked.versions and key[1] not in asked.versions:
            gaps.versions.setdefault(key, []).append(symbol)
        elif symbol.bind == "WEAK":
            continue
        elif asked is not None and symbol.name in asked.symbols:
            gaps.other.setdefault(key, []).append(symbol.name)
        else:
            gaps.absent.setdefault(key[0], []).append(symbol.name)
    yield from _findings(gaps, offers, f"Build it against {rocm}, or give the manifest of the ROCm that it is for.")


def closure(needed: Sequence[str], offers: Mapping[str, LibraryExports]) -> Iterator[LibraryExports]:
    """The libraries of wheels and of ROCm that come with a library, in the order in which the loader searches them."""
    waiting, seen = deque(needed), set(needed)
    while waiting:
        offer = offers.get(waiting.popleft())
        if offer is not None:
            yield offer
            fresh = [name for name in offer.needed if name not in seen]
            seen.update(fresh)
            waiting.extend(fresh)


def abbreviate(names: Sequence[str]) -> str:
    """A few names and how many more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _findings(gaps: _Gaps, offers: Mapping[str, LibraryExports], remedy: str) -> Iterator[Finding]:
    for (library, version), symbols in sorted(gaps.versions.items()):
        names, has = abbreviate([symbol.name for symbol in symbols]), ", ".join(sorted(offers[library].versions))
        text = f"needs version {version} of {library} (for {names}); that of {offers[library].origin} has {has}."
        # The loader refuses a version that only weak symbols want, unless the linker marked it; not every linker does.
        strong = any(symbol.bind != "WEAK" for symbol in symbols)
        severity = Severity.ERROR if strong else Severity.WARNING
        yield Finding(code="symbol-version-missing", severity=severity, message=text, remedy=remedy)
    for (library, version), others in sorted(gaps.other.items()):
        has = ", ".join(sorted({v or "none" for name in others for v in offers[library].symbols[name]}))
        text = f"needs {abbreviate(others)} in version {version}; {library} of {offers[library].origin} has {has}."
        yield error("symbol-version-missing", text, remedy)
    for library, missing in sorted(gaps.absent.items()):
        count = f"{len(missing)} symbol{'s' * (len(missing) > 1)}"
        known = f"{library} of {offers[library].origin} does not export" if library in offers else ""
        where = known or "no library that it needs exports"
        yield error("symbol-missing", f"needs {count} that {where}: {abbreviate(missing)}.", remedy)


def _relatives(soname: str, offers: Mapping[str, LibraryExports]) -> str:
    """The same library under other sonames."""
    others = sorted(name for name in offers if name.partition(".so")[0] == soname.partition(".so")[0])
    return f" (there is {', '.join(others)})" if others else ""


def _versions(symbols: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    return frozenset(version for versions in symbols.values() for version in versions) - {""}
