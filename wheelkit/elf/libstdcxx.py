"""Table of the libstdc++ version that introduced each symbol, for unversioned references.

libstdc++ exports every symbol with a version and never removes a symbol, so a new
libstdc++ lists all earlier versions (GCC manual, "ABI Policy and Guidelines"). A
library linked against a stub or the wrong archive refers to symbols without a version,
and other tools do not notice that an old system lacks these symbols.

The table has the defined symbols of `readelf --dyn-syms --wide libstdc++.so.6`, each
below the oldest of its versions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

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
