"""Flags with which a library is loaded.

Stack, writable code, relocations of code, RELRO, memory for threads.

Sources: gABI chapter 5 (program header, dynamic section); glibc, elf/dl-load.c and
elf/dl-reloc.c.
"""

from __future__ import annotations

from collections.abc import Iterator

from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage


def load_defects(image: ElfImage) -> Iterator[tuple[str, str]]:
    """Yield the code of a finding and a clause for each defect of a library.

    Programs, object files and device code are skipped.
    """
    segments = {segment.type: segment for segment in image.segments}
    if (
        image.machine == constants.EM_AMDGPU
        or image.type != constants.ET_DYN
        or constants.PT_INTERP in segments
    ):
        return

    # glibc 2.41 loads no such library into a running process: a published wheel of
    # torch for ROCm (easydiffusion/easydiffusion#1921), and RCCL
    # (lamikr/rocm_sdk_builder#241).
    stack = segments.get(constants.PT_GNU_STACK)
    if stack is None:
        yield (
            "stack-executable",
            "needs an executable stack, since it has no PT_GNU_STACK",
        )
    elif stack.flags & constants.PF_X:
        yield "stack-executable", "needs an executable stack"

    both = constants.PF_W | constants.PF_X
    for segment in image.segments:
        if segment.type == constants.PT_LOAD and segment.flags & both == both:
            place = f"a segment at {segment.address:#x}"
            yield "code-writable", f"has {place} that is both writable and executable"
    if constants.PT_GNU_RELRO not in segments:
        yield "relro-missing", "keeps its relocated pointers writable (no PT_GNU_RELRO)"

    tags = {entry.tag: entry.value for entry in image.live_dynamic()}
    flags = tags.get(constants.DT_FLAGS, 0)
    # SELinux refuses to load such a library: viblo/pymunk#36.
    if constants.DT_TEXTREL in tags or flags & constants.DF_TEXTREL:
        yield "code-writable", "has relocations in its code (DT_TEXTREL)"
    # dlopen fails once no static memory for threads is left: delta-io/delta-rs#1380,
    # DataDog/dd-trace-py#8616.
    if flags & constants.DF_STATIC_TLS:
        yield (
            "load-flags-wrong",
            (
                "has DF_STATIC_TLS, so dlopen fails if no static memory for threads is"
                " left"
            ),
        )
