"""Signs that a library is no build for a release: code that measures or checks itself, and lost constants.

Sources: GCC manual, "Instrumentation Options"; Clang, "Source-based Code Coverage" and documentation of the sanitizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from wheelkit.elf.reader import ElfImage

_MEASURES = re.compile(
    r"_?mcount|__fentry__|__cyg_profile_func_(enter|exit)|__gcov_(init|exit|merge_add)|__llvm_profile_(runtime|write_file)"
    r"|__(asan|tsan|msan|hwasan|lsan|dfsan)_init|__ubsan_handle_\w+|__sanitizer_cov_\w+|__xray_\w+"
)
"""Symbols that compilers refer to in each object file."""
_SECTIONS = re.compile(r"__llvm_(prf|cov)\w*|__sancov_\w+|xray_(instr_map|fn_idx)")
_COUNTS = b".gcda\0"
"""End of the names of files that programs write when they end, with --coverage."""
_LOST = bytes(1024), b"\xff" * 1024
"""Blocks that no disk returns for constants: published libraries have at most 231 such bytes in a row."""
_MOST = 4 << 20
"""Size of .rodata in bytes up to which it is searched: libraries with large tables have zeros in them."""


def build_problems(image: ElfImage) -> Iterator[tuple[str, str]]:
    """Yield the code of a finding and a clause for each sign."""
    names = (name for _, name in image.dynamic_symbols() if _MEASURES.fullmatch(name))
    sections = (section.name for section in image.sections if _SECTIONS.fullmatch(section.name))
    constants = image.section(".rodata")
    start = constants.offset if constants else 0
    end = start + (constants.file_size if constants else 0)
    sign = next(chain(names, sections), "") or (".gcda" if image.data.find(_COUNTS, start, end) >= 0 else "")
    if sign:
        yield "instrumented", f"measures or checks itself ({sign})"
    for block in _LOST if constants and end - start <= _MOST else ():
        at = image.data.find(block, start, end)
        if at >= 0 and constants:
            yield "code-lost", f"has {len(block)} equal bytes in its constants at {constants.address + at - start:#x}"
