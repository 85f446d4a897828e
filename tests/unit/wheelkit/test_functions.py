"""Functions of compiled libraries, and pointers, frames and exports that do not fit them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy
import pytest

from tests.support.whole_code import Edit, both, section_bytes
from tests.unit.wheelkit.test_layout import compiled, exported, part, rows
from wheelkit.elf import constants
from wheelkit.elf.functions import Functions, constructors, function_problems
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.release_build import build_problems
from wheelkit.elf.x86 import read_code

CRTFASTMATH = bytes.fromhex("0fae5c24fc814c24fc408000000fae5424fcc3")
"""Start-up code of GCC with -ffast-math: stmxcsr, or, ldmxcsr, ret."""


def problems(data: bytes | bytearray, *, assembly: bool = False) -> list[tuple[str, str]]:
    image = ElfImage.parse(bytes(data), "library")
    functions = Functions.read(image)
    assert functions is not None
    return list(function_problems(image, functions, assembly=assembly))


def text_pointer(change: Callable[[list[int]], None]) -> Edit:
    """Change the first relocated pointer to machine code that is no constructor or destructor."""

    def edit(data: bytearray) -> None:
        text, arrays = part(data, ".text"), [part(data, name) for name in (".init_array", ".fini_array")]

        def first(found: list[list[int]]) -> None:
            change(
                next(
                    row
                    for row in found
                    if row[1] == constants.R_X86_64_RELATIVE
                    and text.address <= row[2] < text.address + text.size
                    and not any(array.address <= row[0] < array.address + array.size for array in arrays)
                )
            )

        rows(".rela.dyn", first)(data)

    return edit


def constructor(data: bytearray) -> None:
    """Move the first constructor to the middle of a function, at a multiple of 16."""
    functions = Functions.read(ElfImage.parse(bytes(data), "library"))
    assert functions is not None
    place = next(first for first, last in functions.ranges() if last - first > 256) + 64
    array = part(data, ".init_array")

    def change(found: list[list[int]]) -> None:
        next(row for row in found if row[0] == array.address)[2] = place - place % 16

    rows(".rela.dyn", change)(data)


def moved(row: list[int]) -> None:
    row[2] += 1


def misplaced(row: list[int]) -> None:
    row[0] += 4


def resolver(found: list[list[int]]) -> None:
    row = next(row for row in reversed(found) if row[1] != constants.R_X86_64_RELATIVE)
    row[1:] = [37, 64]


def exchanged(found: list[list[int]]) -> None:
    found[0], found[1] = found[1], found[0]


def _unsorted(table: bytes) -> bytes:
    return table[:20] + table[28:36] + table[20:28] + table[36:]


def _other_frame(table: bytes) -> bytes:
    return table[:-4] + struct.pack("<i", struct.unpack("<i", table[-4:])[0] + 8)


CASES: list[tuple[str, Edit, str, str]] = [
    ("table", section_bytes(".eh_frame_hdr", _unsorted), "unwind-table-wrong", "that is not sorted"),
    ("frame", section_bytes(".eh_frame_hdr", _other_frame), "unwind-table-wrong", "has no frame of the function at"),
    (
        "frames",
        section_bytes(".eh_frame", lambda old: old[:2048] + bytes(64) + old[2112:]),
        "unwind-table-wrong",
        "has no frame of the function at",
    ),
    ("pointer", text_pointer(moved), "relocation-wrong", ", where no function begins"),
    ("place", text_pointer(misplaced), "relocation-wrong", "no multiple of 8"),
    ("order", rows(".rela.dyn", exchanged), "relocation-wrong", "out of order"),
    ("resolver", rows(".rela.dyn", resolver), "relocation-wrong", "has a resolver"),
    ("constructor", constructor, "relocation-wrong", ", where no function begins"),
    ("export", exported(8, "Q", 0x7001), "layout-wrong", "where no function begins"),
    ("type of an export", exported(4, "B", 0x1A), "layout-wrong", "as a symbol of type 10"),
]


def test_function_problems_accepts_compiled_libraries() -> None:
    assert problems(compiled()) == []
    assert problems(next(Path(msgpack.__file__).parent.glob("_cmsgpack.*.so")).read_bytes()) == []


@pytest.mark.parametrize(("edit", "code", "text"), [pytest.param(*rest, id=name) for name, *rest in CASES])
def test_function_problems_reports_each_defect(edit: Edit, code: str, text: str) -> None:
    data = compiled()
    if text == "where no function begins":
        assert part(data, ".text").address < 0x7001 < part(data, ".text").address + part(data, ".text").size
    edit(data)
    assert [found for found, clause in problems(data) if text in clause] == [code], problems(data)


def test_function_problems_accepts_aligned_functions_of_assembly() -> None:
    data = compiled()
    functions = Functions.read(ElfImage.parse(bytes(data), "library"))
    assert functions is not None
    row, place = next(
        (row, start) for row, (start, last) in enumerate(zip(functions.starts, functions.starts[1:], strict=False))
        if last - start > 64 and start > functions.text.address
    )  # fmt: skip
    # The frame covers 8 bytes of this function, and the rest has none.
    frames = part(data, ".eh_frame")
    struct.pack_into("<I", data, functions.table + functions.rows[2 * row + 1] - frames.address + frames.offset + 12, 8)

    def to_rest(found: list[int]) -> None:
        found[2] = place + 32 - place % 16

    text_pointer(to_rest)(data)
    assert problems(data, assembly=True) == []
    assert [code for code, _ in problems(data)] == ["relocation-wrong"]


def test_read_code_reports_constructor_that_sets_float_mode() -> None:
    data = compiled()
    image = ElfImage.parse(bytes(data), "library")
    functions = Functions.read(image)
    assert functions is not None
    place = next(first for first, last in functions.ranges() if last - first > 64)
    array, text = part(data, ".init_array"), part(data, ".text")

    def change(found: list[list[int]]) -> None:
        next(row for row in found if row[0] == array.address)[2] = place

    rows(".rela.dyn", change)(data)
    assert list(constructors(ElfImage.parse(bytes(data), "library"))) == [place]
    for code in (CRTFASTMATH, b"\xb8" + CRTFASTMATH[13:17]):  # the second one loads a constant like ldmxcsr
        at = place - text.address + text.offset
        data[at : at + 64] = code.ljust(64, b"\x90")
        found = read_code(ElfImage.parse(bytes(data), "library"))
        assert found is not None
        assert [kind for kind, _ in found.defects] == (["load-flags-wrong"] if code == CRTFASTMATH else [])


def test_function_problems_reports_lost_handlers() -> None:
    data = bytearray(next(Path(numpy.__file__).parent.glob("fft/_pocketfft_umath.*.so")).read_bytes())
    assert problems(data) == []
    section_bytes(".gcc_except_table", lambda old: old[:64] + b"\x11" * 64 + old[128:])(data)
    ((code, text),) = problems(data)
    assert code == "unwind-table-wrong"
    assert "of the handlers of the function at" in text


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (section_bytes(".dynstr", lambda old: old.replace(b"\0memcpy\0", b"\0mcount\0")), "itself (mcount)"),
        (section_bytes(".rodata", lambda old: old[:64] + b"a.gcda\0" + old[71:]), "itself (.gcda)"),
        (section_bytes(".rodata", lambda old: old[:2048] + bytes(1024) + old[3072:]), "1024 equal bytes"),
        (section_bytes(".rodata", lambda old: old[:2048] + b"\xff" * 1024 + old[3072:]), "1024 equal bytes"),
    ],
)
def test_build_problems_reports_each_sign(edit: Edit, text: str) -> None:
    data = compiled()
    assert list(build_problems(ElfImage.parse(bytes(data), "library"))) == []
    both(edit)(data)
    assert text in " ".join(clause for _, clause in build_problems(ElfImage.parse(bytes(data), "library")))
