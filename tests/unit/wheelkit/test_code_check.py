"""Whole code objects: generated ones for each architecture, and each way to break one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from core.model import GfxTarget
from tests.support.code_faults import CODE_FAULTS, CodeFault
from tests.support.whole_code import (
    Edit,
    descriptor,
    kernel_field,
    kernel_symbol,
    metadata,
    put,
    section_bytes,
    segment,
    whole_code,
)
from wheelkit.elf.reader import ElfImage
from wheelkit.gpu.code_check import CodeCheck, check_code
from wheelkit.gpu.kernel_descriptor import kernel_needs, metadata_problem
from wheelkit.gpu.limits import limits_of

ADD, MUL = "_Z3addv", "_Z3mulv"
TARGETS = (
    *("gfx906", "gfx90a:sramecc+:xnack-", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201", "gfx1250"),
    *("gfx9-4-generic", "gfx11-generic"),
)


def checked(target: str, *edits: Edit) -> CodeCheck:
    """Check a generated code object after edits."""
    data = bytearray(whole_code(target, (ADD, MUL)))
    for edit in edits:
        edit(data)
    return check_code(bytes(data), GfxTarget.parse(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("names", [(ADD, MUL), ()])
def test_check_code_accepts_whole_code(target: str, names: tuple[str, ...]) -> None:
    assert check_code(whole_code(target, names), GfxTarget.parse(target)) == CodeCheck(kernels=names)


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in CODE_FAULTS])
def test_check_code_reports_each_fault(fault: CodeFault) -> None:
    found = checked("gfx942", fault.edit).problems
    assert fault.code in {problem.code for problem in found}, found
    assert sum(fault.code == problem.code for problem in found) <= 2, "one problem for each kernel"
    assert not any(problem.text.endswith(".") for problem in found)


@pytest.mark.parametrize(
    ("target", "edit", "text"),
    [
        ("gfx942", kernel_field(group_segment_fixed_size=65540), "65540 bytes of LDS, but the GPU has 65536"),
        ("gfx950", kernel_field(group_segment_fixed_size=163844), "163844 bytes of LDS, but the GPU has 163840"),
        ("gfx1250", kernel_field(group_segment_fixed_size=327684), "327684 bytes of LDS, but the GPU has 327680"),
        ("gfx942", kernel_field(private_segment_fixed_size=131060), "131060 bytes of scratch, but the GPU has 131056"),
        ("gfx1250", kernel_field(wavefront_size=64), "wavefronts of 64 lanes, but the GPU has 32"),
        ("gfx1100", descriptor(48, "I", 0b1000 << 6), "gets 8 of the 256 VGPRs, and needs 16"),
        ("gfx90a", kernel_field(agpr_count=8), "8 are AccVGPRs"),
        ("gfx1201", descriptor(46, "B", 1), "reserved bits"),
        ("gfx942", descriptor(52, "B", 6 << 1), "16 bytes of scratch, but does not enable it"),
        ("gfx942", descriptor(58, "B", 4), "starts with 6 user SGPRs, and gets 2"),
        ("gfx1030", descriptor(59, "B", 1), "reserved bits"),
        ("gfx1030", descriptor(52, "H", 1 | 15 << 1 | 1 << 7), "names 6 user SGPRs, and gets 15"),
        ("gfx942", descriptor(56, "B", 0b1010), "starts with 4 user SGPRs, and gets 2"),
        ("gfx1100", descriptor(48 + 3, "B", 0x80), "has the modes"),
        ("gfx1201", descriptor(48 + 3, "B", 0x80), "has the modes"),
    ],
)
def test_check_code_compares_with_limits_of_target(target: str, edit: Edit, text: str) -> None:
    """Sizes in the descriptor are those of the metadata, so that only the limit is exceeded."""

    def same(data: bytearray) -> None:
        for at, size in ((0, 65540), (0, 163844), (0, 327684)):
            if text.startswith(f"{size} bytes"):
                descriptor(at, "I", size)(data)
        if text.startswith("131060"):
            descriptor(4, "I", 131060)(data)
        if "of 64 lanes" in text:
            descriptor(57, "B", 0)(data)

    found = checked(target, edit, same).problems
    assert any(text in problem.text for problem in found), found


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (segment(1, 48, "Q", 3), "has a segment at 0x0 that cannot be mapped"),
        (metadata(lambda about: about.update({"amdhsa.kernels": None})), "has no list of kernels in its metadata"),
        (
            metadata(lambda about: about["amdhsa.kernels"].append({".symbol": "x.kd"})),
            "has metadata of x.kd, but no such kernel descriptor",
        ),
        (kernel_field(kernarg_segment_align=3), "has a kernarg segment aligned to 3 bytes"),
    ],
)
def test_check_code_describes_problem(edit: Edit, text: str) -> None:
    assert any(text in problem.text for problem in checked("gfx942", edit).problems)


def test_check_code_reports_descriptor_outside_of_the_file() -> None:
    data = bytearray(whole_code("gfx942"))
    put(0xA1, "B", 127)(data)  # the offset of a segment
    put(0x37D, "B", 127)(data)  # the address of the descriptor's symbol
    texts = [problem.text for problem in check_code(bytes(data), GfxTarget.parse("gfx942")).problems]
    assert "has kernel _Z3addv, which has no descriptor of 64 bytes at its symbol" in texts


def test_check_code_accepts_largest_sizes() -> None:
    edits = (kernel_field(group_segment_fixed_size=163840), descriptor(0, "I", 163840))
    assert checked("gfx950", *edits).problems == ()
    assert limits_of("gfx9999") is None


def test_check_code_accepts_padded_user_sgprs_of_gfx11() -> None:
    """Kernels of gfx11 may start with 16 registers: here 15 user SGPRs, of which 6 are named, and a work-group ID."""
    assert checked("gfx1100", descriptor(52, "H", 1 | 15 << 1 | 1 << 7)).problems == ()
    assert checked("gfx1100", descriptor(52, "H", 1 | 14 << 1 | 1 << 7)).problems != ()


def test_check_code_accepts_unpacked_work_item_ids() -> None:
    """The kernel reads y and gets it; on gfx1030, IDs are not packed, so that the same instruction means nothing."""
    reads_y = section_bytes(".text", lambda old: old[:64] + b"\x01\x00\xc8\xd1\x00\x15\x29\x02" + old[72:])
    assert checked("gfx942", reads_y, descriptor(53, "B", 0x08)).problems == ()
    (problem,) = checked("gfx942", reads_y).problems
    assert problem.text.endswith("reads the work-item ID y, which its descriptor does not enable")
    assert checked("gfx1030", reads_y).problems == ()


HIDDEN = [
    *({".offset": 24 + 4 * n, ".size": 4, ".value_kind": f"hidden_block_count_{axis}"} for n, axis in enumerate("xyz")),
    *({".offset": 36 + 2 * n, ".size": 2, ".value_kind": f"hidden_group_size_{axis}"} for n, axis in enumerate("xyz")),
    *({".offset": 42 + 2 * n, ".size": 2, ".value_kind": f"hidden_remainder_{axis}"} for n, axis in enumerate("xyz")),
    *(
        {".offset": 64 + 8 * n, ".size": 8, ".value_kind": f"hidden_global_offset_{axis}"}
        for n, axis in enumerate("xyz")
    ),
    {".offset": 88, ".size": 2, ".value_kind": "hidden_grid_dims"},
]
"""Arguments behind 24 bytes of others, as compilers add them (LLVM, "User Guide for AMDGPU Backend")."""


def _with_hidden(change: Callable[[list[dict[str, Any]]], object]) -> str:
    arguments: list[dict[str, Any]] = [
        {".offset": 0, ".size": 24, ".value_kind": "by_value"},
        *({**row} for row in HIDDEN),
    ]
    change(arguments)
    kernel = {
        ".args": arguments, ".kernarg_segment_size": 280, ".group_segment_fixed_size": 0,
        ".private_segment_fixed_size": 0, ".wavefront_size": 64, ".sgpr_count": 8, ".vgpr_count": 8,
        ".max_flat_workgroup_size": 256, ".kernarg_segment_align": 8,
    }  # fmt: skip
    return metadata_problem(kernel, kernel_needs(kernel), exact=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda rows: None, ""),
        (lambda rows: rows.append({".offset": 144, ".size": 4, ".value_kind": "hidden_dynamic_lds_size"}), ""),
        (lambda rows: rows.pop(4), "has no argument hidden_group_size_x, but others of its kind"),
        (
            lambda rows: (rows[1].update(HIDDEN[1] | {".offset": 24}), rows[2].update(HIDDEN[0] | {".offset": 28})),
            "has hidden_block_count_y at byte 24, but its code reads byte 28",
        ),
        (lambda rows: rows[-1].update({".value_kind": "hidden_grid_dim"}), "of the unknown kind hidden_grid_dim"),
        (
            lambda rows: rows.__setitem__(slice(1), [{".offset": 8, ".size": 4, ".value_kind": "by_value"}]),
            "has 8 bytes without an argument before byte 8",
        ),
    ],
)
def test_metadata_problem_compares_arguments_with_their_offsets(change: Any, text: str) -> None:
    found = _with_hidden(change)
    assert text in found
    assert bool(text) == bool(found)


# v_bitop3_b32, v_lshl_add_u64 and v_mfma_f32_16x16x8_xf32, from LLVM's tests of the assembler.
BITOP3, LSHL_ADD, XF32 = "050034d20105 0e04", "020008d20305 1104", "0000bed30005 0a04"


@pytest.mark.parametrize(
    ("code", "targets", "lacking"),
    [
        (BITOP3, ("gfx950",), ("gfx942", "gfx90a", "gfx9-4-generic")),
        (LSHL_ADD, ("gfx942", "gfx950", "gfx9-4-generic"), ("gfx90a", "gfx906")),
        (XF32, ("gfx942",), ("gfx950", "gfx9-4-generic")),
    ],
)
def test_check_code_reports_instructions_of_other_gpus(
    code: str, targets: Sequence[str], lacking: Sequence[str]
) -> None:
    new = bytes.fromhex(code)

    def first(text: bytes) -> bytes:
        return text[:8] + new + text[16:]

    def constant(text: bytes) -> bytes:
        return text[:8] + b"\xff\x00\x02\x7e" + new[:4] + text[16:]

    for target in targets:
        assert checked(target, section_bytes(".text", first)).problems == ()
    for target in lacking:
        (problem,) = checked(target, section_bytes(".text", first)).problems
        assert problem.code == "code-object-wrong"
        assert target in problem.text
        # v_mov_b32 with a literal constant, such as those of random generators.
        assert checked(target, section_bytes(".text", constant)).problems == ()


@pytest.mark.parametrize(
    ("target", "properties", "users", "text"),
    [
        ("gfx942", 0b1001, 6, "which expects its scratch buffer in registers"),
        ("gfx90a", 0b1000, 2, "which does not expect its scratch buffer in registers"),
        ("gfx1201", 0b1001, 6, "which expects its scratch buffer in registers"),
    ],
)
def test_check_code_compares_scratch_with_generation(target: str, properties: int, users: int, text: str) -> None:
    (problem,) = checked(target, descriptor(56, "B", properties), descriptor(52, "B", 0x81 | users << 1)).problems
    assert problem.text.endswith(text)


def test_check_code_accepts_unknown_processor_without_limits() -> None:
    data = bytearray(whole_code("gfx942", (ADD,)))
    note = data.index(b"--gfx942")
    data[note : note + 8] = b"--gfx999"
    descriptor(60, "B", 1)(data)
    assert check_code(bytes(data), GfxTarget.parse("gfx999")).problems == ()


def test_check_code_accepts_triple_with_unknown_environment() -> None:
    def edit(about: dict[str, Any]) -> None:
        about["amdhsa.target"] = "amdgcn-amd-amdhsa-unknown-gfx942"

    assert checked("gfx942", metadata(edit)).problems == ()


def test_check_code_accepts_assembly_sources() -> None:
    """AITER's have no target, sizes of symbols and kernargs, and an older version of the metadata."""

    def edit(about: dict[str, Any]) -> None:
        del about["amdhsa.target"]
        about["amdhsa.version"] = [1, 0]

    edits = (metadata(edit), kernel_symbol("", 16, "Q", 0), descriptor(8, "I", 0))
    assert checked("gfx942", *edits).problems == ()


def test_check_code_accepts_kernels_without_body() -> None:
    """Compilers leave out the body of a kernel that the target never runs, and its end."""
    empty = kernel_symbol("", 16, "Q", 0)
    behind = (empty, kernel_symbol("", 8, "Q", 1 << 20), descriptor(16, "q", (1 << 20) - _address()))
    assert checked("gfx942", *behind).problems == ()
    assert checked("gfx1250", kernel_symbol("", 16, "Q", 8)).problems == ()


def _address() -> int:
    image = ElfImage.parse(whole_code("gfx942", (ADD, MUL)), "code")
    return next(symbol.value for symbol, name in image.dynamic_symbols() if name == f"{ADD}.kd")


@pytest.mark.parametrize("size", [0, 63, 200, 700])
def test_check_code_reports_truncated_code(size: int) -> None:
    (problem,) = check_code(whole_code()[:size], GfxTarget.parse("gfx942")).problems
    assert problem.code == "code-object-damaged"
    assert problem.text.startswith("cannot be read: ")


def test_check_code_names_each_broken_kernel_once() -> None:
    data = bytearray(whole_code("gfx942", (ADD, MUL)))
    put(8, "B", 2)(data)  # V4, with the metadata of V6
    found = check_code(bytes(data), GfxTarget.parse("gfx942")).problems
    assert [problem.text for problem in found] == ["has metadata of version [1, 2]"]
