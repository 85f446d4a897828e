"""Decoded machine code of compiled libraries, and of functions that are overwritten."""

from __future__ import annotations

import importlib.util
import struct
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pytest

from wheelkit.elf import x86
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.x86 import MachineCode, read_code
from wheelkit.inspect.host_code import check_instructions

NOP = b"\x90"
AVX512, AVX2, AVX = "62f1fd486f05228aecff", "c4e27d78c0", "c5fd6f442420"


def compiled() -> bytes:
    return next(Path(msgpack.__file__).parent.glob("_cmsgpack.*.so")).read_bytes()


def overwritten(folder: Path, code: bytes) -> tuple[Path, int]:
    """Write a compiled library in which a function begins with other code; return the function's address."""
    path, data = folder / "library.so", bytearray(compiled())
    image = ElfImage.parse(bytes(data), "library")
    text, table = image.section(".text"), image.section(".eh_frame_hdr")
    assert text is not None
    assert table is not None
    starts = [table.address + start for start, _ in struct.iter_unpack("<ii", image.contents(table)[12:])]
    place, following = next((one, two) for one, two in pairwise(starts) if one > text.address and two - one >= 64)
    at = place - text.address + text.offset
    data[at : at + following - place] = code.ljust(following - place, NOP)
    path.write_bytes(data)
    return path, place


def decoded(path: Path) -> MachineCode:
    code = read_code(ElfImage.parse(path.read_bytes(), "library"))
    assert code is not None
    return code


def test_read_code_decodes_every_function_of_compiled_library(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(compiled())
    code = decoded(tmp_path / "library.so")
    assert code.functions > 100
    assert (code.avx2, code.avx512, code.unknown, code.whole, code.dispatches) == ((), (), (), True, False)


def test_read_code_lists_avx2_before_avx512(tmp_path: Path) -> None:
    path, place = overwritten(tmp_path, bytes.fromhex(AVX2 + AVX512))
    found = decoded(path)
    assert (found.avx2, found.avx512) == ((place,), (place + len(AVX2) // 2,))


def test_read_code_lists_bytes_that_are_no_instructions(tmp_path: Path) -> None:
    path, place = overwritten(tmp_path, bytes.fromhex(AVX) + b"\x06" * 40)
    assert decoded(path).unknown == (place + len(AVX) // 2,)


def test_machine_without_decoder_still_compares_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder has wheels for x86-64 machines only."""
    monkeypatch.setitem(sys.modules, "iced_x86", None)
    spec: Any = importlib.util.spec_from_file_location("x86_elsewhere", x86.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, elsewhere)
    spec.loader.exec_module(elsewhere)
    data = bytearray(compiled())
    assert (x86.CAN_DECODE, elsewhere.CAN_DECODE) == (True, False)
    code = elsewhere.read_code(ElfImage.parse(bytes(data), "library"))
    assert (code.functions, code.unknown, code.defects) == (0, (), ())
    table = ElfImage.parse(bytes(data), "library").section(".eh_frame_hdr")
    assert table is not None
    first, second = (data[table.offset + at : table.offset + at + 8] for at in (12, 20))
    data[table.offset + 12 : table.offset + 28] = second + first
    code = elsewhere.read_code(ElfImage.parse(bytes(data), "library"))
    assert [kind for kind, _ in code.defects] == ["unwind-table-wrong"]


def test_read_code_finds_question_to_processor(tmp_path: Path) -> None:
    path, _ = overwritten(tmp_path, b"\x0f\x01\xd0")
    assert decoded(path).dispatches


def test_read_code_skips_other_libraries() -> None:
    data = compiled().replace(b"\x01\x1b\x03\x3b", b"\x01\x1b\x03\xff")
    assert read_code(ElfImage.parse(data, "library")) is None


OLD = MachineCode(functions=1000, avx2=(), avx512=(), unknown=(), whole=True, dispatches=False)
NEW = replace(OLD, avx2=tuple(range(4096, 4146)))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (OLD, ""),
        (replace(OLD, avx512=(4096,)), "AVX-512 in 1 of 1000 functions, the first at 0x1000, without asking"),
        (replace(OLD, avx512=(4096,), dispatches=True), ""),
        (replace(OLD, avx512=tuple(range(21)), dispatches=True), "AVX-512 in 21 of 1000 functions"),
        (NEW, "AVX2, FMA or BMI in 50 of 1000 functions"),
        (replace(OLD, unknown=(4096,)), "bytes that are no instructions in its machine code at 0x1000"),
        (replace(OLD, unknown=(4096,), whole=False), ""),
    ],
)
def test_check_instructions_reports_newer_instructions(code: MachineCode, message: str) -> None:
    tiny = replace(OLD, functions=7)
    found = [item.message for item in check_instructions({"a.so": OLD, "b.so": code, "c.so": OLD, "d.so": tiny})]
    assert len(found) == bool(message)
    assert message in "".join(found)


def test_check_instructions_accepts_what_most_libraries_need() -> None:
    assert list(check_instructions({"a.so": NEW, "b.so": NEW, "c.so": OLD})) == []
    assert list(check_instructions({"a.so": NEW})) == []
