"""Table of the libstdc++ version that introduced each symbol, for unversioned references.

libstdc++ exports every symbol with a version and never removes a symbol, so a new
libstdc++ lists all earlier versions (GCC manual, "ABI Policy and Guidelines"). A
library linked against a stub or the wrong archive refers to symbols without a version,
and other tools do not notice that an old system lacks these symbols.

`python -m wheelkit.elf.libstdcxx LIBRARY` regenerates the table from a newer
libstdc++.so.6.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SONAME = "libstdc++.so.6"
_TABLE = Path(__file__).with_name("libstdcxx.txt")
# Names of namespace std (with the abbreviations Sa Sb Sd Si So Ss), its type
# information and tables, operator new and delete, and the run-time support (Itanium C++
# ABI, sections 5.1 and 5.1.5).
_STANDARD = re.compile(
    r"_Z(?:G[VR]|T[ISVThvc][\d_n]*)?(?:N[VKRO]*)?(?:S[abdiost]|9__gnu_cxx|10__cxxabiv1)"
    r"|_Z(?:n[wa][mj]|d[la]P)|_ZT[IS]P?K?[a-z]$|__cxa_|__gxx_"
)


@functools.cache
def versions() -> Mapping[str, str]:
    """Return symbol -> the version that introduced it, such as GLIBCXX_3.4.26 or CXXABI_1.3."""
    table: dict[str, str] = {}
    version = ""
    for line in _TABLE.read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            version = line[1:-1]
        elif line and not line.startswith("#"):
            table[line] = version
    return table


def is_standard(symbol: str) -> bool:
    """Return whether a mangled name belongs to the standard library or the C++ run time."""
    return _STANDARD.match(symbol) is not None


def render(library: Path) -> str:
    """Return the table's text from the version definitions of a libstdc++.so.6."""
    # Start-up time: only this generator needs pyelftools.
    from elftools.elf.elffile import ELFFile

    oldest: dict[str, str] = {}
    with library.open("rb") as file:
        elf: Any = ELFFile(file)
        symbols, indices, nodes = map(
            elf.get_section_by_name, (".dynsym", ".gnu.version", ".gnu.version_d")
        )
        names = {
            definition["vd_ndx"]: next(aux).name
            for definition, aux in nodes.iter_versions()
        }
        for number, symbol in enumerate(symbols.iter_symbols()):
            index = indices.get_symbol(number)["ndx"]
            if symbol["st_shndx"] in ("SHN_UNDEF", "SHN_ABS") or not isinstance(
                index, int
            ):
                continue
            node = names[index & 0x7FFF]
            oldest[symbol.name] = min(node, oldest.get(symbol.name, node), key=_order)
    groups: dict[str, set[str]] = {}
    for name, node in oldest.items():
        groups.setdefault(node, set()).add(name)
    lines = [
        (
            f"# Symbols of {library.resolve().name} by the version that brought them; see"
            " libstdcxx.py."
        )
    ]
    for node in sorted(groups, key=_order):
        lines += [f"[{node}]", *sorted(groups[node])]
    return "\n".join(lines) + "\n"


def _order(version: str) -> tuple[str, list[int]]:
    prefix, _, number = version.rpartition("_")
    return prefix, [int(part) for part in re.findall(r"\d+", number)]


if __name__ == "__main__":
    sys.stdout.write(render(Path(sys.argv[1])))
