"""Code objects.

Header, kernels and matrix-core instructions are read, and each defect is detected.
"""

from __future__ import annotations

import struct

import pytest

from core.errors import ElfError, GateError
from core.model import GfxTarget
from promotion.gates.compile.compiled_code import (
    CompiledCode,
    count_matrix,
    header_finding,
    read_code_object,
)
from promotion.gates.compile.program_check import compiled_for
from tests.support.made_code import (
    END,
    MFMA,
    MI300,
    SRAMECC_ON,
    WMMA,
    XNACK_ON,
    kernel,
    made_code,
)

TARGET = GfxTarget.parse("gfx942:sramecc+:xnack-")


def read(data: bytes, processor: str = "gfx942") -> CompiledCode:
    return read_code_object(data, "code", processor)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (MI300 | XNACK_ON, "has xnack+"),
        (MI300 & ~SRAMECC_ON, "has sramecc open"),
    ],
)
def test_header_with_wrong_flags_is_a_finding(flags: int, says: str) -> None:
    finding = header_finding(made_code(flags), "gfx942 lax.dot: a.hsaco", TARGET)
    assert finding is not None
    assert says in finding.message


def test_spec_of_another_processor_is_refused() -> None:
    with pytest.raises(GateError, match="describes gfx950"):
        compiled_for("gfx942", 'gcn_arch_name: "gfx950"')


def test_header_of_other_file_is_a_finding() -> None:
    data = bytearray(made_code())
    struct.pack_into("<H", data, 18, 62)
    finding = header_finding(bytes(data), "code", TARGET)
    assert finding is not None
    assert "is not an AMDGPU shared object (machine 62" in finding.message
    assert header_finding(b"garbage", "code", TARGET) is not None


def test_read_code_object_reads_kernels_from_metadata() -> None:
    spilling = kernel(
        "big", vgpr_spill_count=3, sgpr_spill_count=2, private_segment_fixed_size=16
    )
    code = read(made_code(kernels=[kernel("small"), spilling]))
    assert [k.name for k in code.kernels] == ["small", "big"]
    big = code.kernels[1]
    assert (big.vgpr_spills, big.sgpr_spills, big.scratch_bytes) == (3, 2, 16)
    assert code.size == len(made_code(kernels=[kernel("small"), spilling]))


@pytest.mark.parametrize("note", [b"", b"\x01"])
def test_read_code_object_refuses_invalid_metadata(note: bytes) -> None:
    with pytest.raises(ElfError, match="metadata"):
        read(made_code(note=note))


def test_matrix_instructions_are_counted() -> None:
    assert read(made_code(text=MFMA + END + MFMA)).matrix_instructions == 2
    assert read(made_code(text=WMMA + END), "gfx1100").matrix_instructions == 1
    assert read(made_code(text=END * 4)).matrix_instructions == 0
    assert read(made_code(text=MFMA), "gfx1030").matrix_instructions == 0


@pytest.mark.parametrize(
    ("family", "first", "second"),
    [
        ("mfma", 0xD3D80000, 0x18000100),  # v_accvgpr_read_b32 moves a register
        ("mfma", 0xD3AC5000, 0x08020301),  # v_mfma_ld_scale_b32 only prepares one
        ("mfma", 0xD3A34000, 0x1C0E0501),  # v_dot2_f32_f16
        (
            "mfma",
            0xD3E10000,
            0x04020804,
        ),  # the second multiplicand would be scalar register 4
        ("mfma", 0xD3E10000, 0x00060904),  # the accumulator would be scalar register 1
        ("mfma", 0xCC404010, 0x1C421100),  # WMMA of another architecture
        ("wmma", 0xCC0E4000, 0x1C0E0501),  # v_pk_fma_f16
        ("", 0xD3E10000, 0x04020904),
    ],
)
def test_count_matrix_ignores_similar_words(
    family: str, first: int, second: int
) -> None:
    assert count_matrix(struct.pack("<II", first, second), family) == 0


@pytest.mark.parametrize(
    ("family", "encoding"),
    [
        ("mfma", "0000c0d300030204"),  # gfx908 v_mfma_f32_32x32x1f32
        (
            "mfma",
            "0080e7d300050212",
        ),  # gfx90a v_mfma_f32_16x16x16bf16_1k, accumulator 0
        ("mfma", "0080bed302090204"),  # gfx942 v_mfma_f32_16x16x8_xf32
        ("mfma", "0080ffd302090604"),  # gfx942 v_smfmac_f32_32x32x32_fp8_fp8
        ("mfma", "0000add304090204"),  # gfx950 v_mfma_f32_16x16x128_f8f6f4
        ("wmma", "104040cc0011421c"),  # gfx1100 v_wmma_f32_16x16x16_f16
        ("wmma", "084044cc0009061a"),  # gfx1100 v_wmma_i32_16x16x16_iu8, accumulator 1
        ("wmma", "064057cc00053a1c"),  # gfx1201 v_swmmac_f32_16x16x32_fp8_fp8
        (
            "wmma",
            "044046cc0005ca1b",
        ),  # gfx1201 v_wmma_f32_16x16x16_fp8_fp8, accumulator 1.0
    ],
)
def test_count_matrix_matches_assembler_encodings(family: str, encoding: str) -> None:
    assert count_matrix(bytes.fromhex(encoding), family) == 1
