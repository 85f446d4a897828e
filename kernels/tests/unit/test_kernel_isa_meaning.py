"""Meaning of single instructions in the interpreter of compiled kernels."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.tests.support.isa import floats
from kernels.tests.support.isa.code_object import EXECUTE
from kernels.tests.support.isa.encodings import ACC, VGPR, DecodeError, Decoder, Instruction, opcodes
from kernels.tests.support.isa.memory import AccessError, Memory, Share
from kernels.tests.support.isa.wave import EXEC, Wave

SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def wave(lanes: int = 64, active: int = (1 << 64) - 1, *, rdna: bool = False) -> Wave:
    """Return a wavefront whose v0 is the lane's number."""
    random = np.random.default_rng(0)
    vector = np.zeros((512, lanes), np.uint32)
    vector[0] = np.arange(lanes)
    made = Wave(0, lanes, rdna, False, random, vector, [0] * 130, Memory(), Share(1024, random, races=True))
    made.write_wide(EXEC, active)
    return made


def run(w: Wave, name: str, to: int, *sources: int, **more: Any) -> Any:
    """Execute an instruction, wait for it, and return its result."""
    EXECUTE[name](w, Instruction(name, 0, 4, VGPR + to, sources, **more))
    w.wait("lgkm", 0)
    return w.vector[to]


@given(a=SINGLE, b=SINGLE, c=SINGLE)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    with np.errstate(all="ignore"):
        found = np.float32(floats.fma(np.float32(a), np.float32(b), np.float32(c)))
    if not np.isfinite(found):
        assert abs(exact) > Fraction(float(np.finfo(np.float32).max))
        return
    error = abs(Fraction(float(found)) - exact)
    with np.errstate(all="ignore"):
        neighbours = [np.nextafter(found, np.float32(side)) for side in (-np.inf, np.inf)]
    assert all(error <= abs(Fraction(float(one)) - exact) for one in neighbours if np.isfinite(one))


def test_bpermute_reads_active_lanes_modulo_wavefront() -> None:
    for lanes, rdna in ((64, False), (32, True)):
        w = wave(lanes, (1 << lanes) - 1 & ~(1 << 5), rdna=rdna)
        w.vector[1], w.vector[2], w.vector[3] = (w.vector[0] ^ 1) * 4, w.vector[0] + 100, 7
        found = run(w, "ds_bpermute_b32", 3, VGPR + 1, VGPR + 2)
        wanted = (np.arange(lanes) ^ 1) + 100
        wanted[4], wanted[5] = 0, 7  # lane 5 is inactive: it gives nothing and keeps its register
        assert found.tolist() == wanted.tolist()
        w.vector[1] = (w.vector[0] + lanes) * 4
        assert run(w, "ds_bpermute_b32", 3, VGPR + 1, VGPR + 2)[0] == 100


def test_loads_complete_at_their_wait() -> None:
    w = wave()
    w.random = np.random.default_rng(1)  # its first number is above the share of operations that complete at once
    w.share.store(0, 0, np.arange(0, 256, 4), np.full((64, 4), 9, np.uint8))
    w.vector[1], w.vector[2] = w.vector[0] * 4, 1
    EXECUTE["ds_read_b32"](w, Instruction("ds_read_b32", 0, 8, VGPR + 2, (VGPR + 1, 0, 0)))
    assert set(w.vector[2]) == {1}
    EXECUTE["s_waitcnt"](w, Instruction("s_waitcnt", 0, 4, immediate=0xC07F - 0x10000))
    assert set(w.vector[2]) == {0x09090909}


@pytest.mark.parametrize("acc", [0, 3])
def test_accvgpr_moves_between_both_kinds_of_registers(acc: int) -> None:
    """The bits ACC of the encoding, which assemblers set, do not matter."""
    for code, to, source in ((89, ACC + 2, VGPR + 1), (88, VGPR + 2, ACC + 1)):
        words = 0b110100111 << 23 | code << 16 | 1 << 14 | 2, acc << 27 | VGPR + 1
        made = Decoder("cdna3", b"".join(word.to_bytes(4, "little") for word in words)).at(0)
        assert (made.to, made.sources) == (to, (source,))
        w = wave()
        w.vector[source - VGPR], w.vector[1 if source != VGPR + 1 else 257] = 5, 9
        EXECUTE[made.name](w, made)
        assert set(w.vector[to - VGPR]) == {5}


def test_mbcnt_and_perm_follow_their_definitions() -> None:
    w = wave()
    assert run(w, "v_mbcnt_lo_u32_b32", 1, 193, 128).tolist() == [min(lane, 32) for lane in range(64)]
    assert run(w, "v_mbcnt_hi_u32_b32", 2, 193, VGPR + 1).tolist() == list(range(64))
    w.vector[1], w.vector[2], w.vector[3] = 0x44332211, 0x88776655, 0x0C000704
    assert run(w, "v_perm_b32", 4, VGPR + 1, VGPR + 2, VGPR + 3)[0] == 0x00554411


def test_fp8_conversion_rounds_to_nearest_even() -> None:
    w = wave()
    values = [0.0, -0.0, 1.0, -1.0, 1.0625, 1.1875, 2.0**-11, 2.0**-10, -3e-4, 240.0, 232.0, 7.4]
    w.vector[1], w.vector[3] = 0, 0xDDDD_DDDD
    w.vector[1][: len(values)] = np.asarray(values, np.float32).view(np.uint32)
    found = run(w, "v_cvt_pk_fp8_f32", 3, VGPR + 1, 242, select=8)  # the high half, with 1.0 beside it
    codes = [0, 0, 0x40, 0xC0, 0x40, 0x42, 0, 1, 0, 0x7F, 0x7E, 0x57]
    assert found[: len(values)].tolist() == [0x4000_DDDD | code << 16 for code in codes]


def test_writelane_takes_its_register_from_m0() -> None:
    w = wave(active=0)
    w.write(4, 3)
    EXECUTE["s_set_gpr_idx_on"](w, Instruction("s_set_gpr_idx_on", 0, 4, sources=(4, 8)))
    EXECUTE["v_writelane_b32"](w, Instruction("v_writelane_b32", 0, 8, VGPR + 2, (128 + 9, 128 + 6)))
    with pytest.raises(AssertionError, match="indexed registers"):
        EXECUTE["v_mov_b32"](w, Instruction("v_mov_b32", 0, 4, VGPR + 2, (128,)))
    EXECUTE["s_set_gpr_idx_off"](w, Instruction("s_set_gpr_idx_off", 0, 4))
    EXECUTE["v_writelane_b32"](w, Instruction("v_writelane_b32", 0, 8, VGPR + 2, (128 + 8, 128 + 6)))
    assert (w.vector[5][6], w.vector[2][6]) == (9, 8)


def test_operands_take_their_registers_from_m0() -> None:
    w = wave()
    w.vector[:9] = np.arange(9)[:, None]
    w.write(4, 3)
    for relative, wanted in ((1, 4 + 2), (2, 1 + 5), (3, 4 + 5)):
        EXECUTE["s_set_gpr_idx_on"](w, Instruction("s_set_gpr_idx_on", 0, 4, sources=(4, relative)))
        assert set(run(w, "v_add_u32", 8, VGPR + 1, VGPR + 2)) == {wanted}
    EXECUTE["s_set_gpr_idx_off"](w, Instruction("s_set_gpr_idx_off", 0, 4))
    assert set(run(w, "v_add_u32", 8, VGPR + 1, VGPR + 2)) == {3}


def test_lowest_set_bit_is_found() -> None:
    w = wave()
    for value, wanted in ((0, 0xFFFF_FFFF), (1 << 40, 40), (6, 1)):
        w.write_wide(10, value)
        EXECUTE["s_ff1_i32_b64"](w, Instruction("s_ff1_i32_b64", 0, 4, 12, (10,)))
        assert w.read(12) == wanted


def test_dpp_broadcasts_a_lane_of_each_row() -> None:
    w = wave()
    w.vector[1] = np.float32(w.vector[0]).view(np.uint32)
    word = 0xFF << 24 | 1 << 19 | 0x153 << 8 | 1  # row_newbcast:3 of v1
    found = run(w, "v_mul_f32", 2, VGPR + 1, VGPR + 1, lanes=word).view(np.float32)
    assert found.tolist() == [float((lane & ~15 | 3) * lane) for lane in range(64)]


def test_races_and_strays_are_errors() -> None:
    share = Share(64, np.random.default_rng(0), races=True)
    share.store(0, 1, np.array([8]), np.zeros((1, 4), np.uint8))
    share.load(0, 1, np.array([8]), 4)
    share.load(1, 2, np.array([8]), 4)
    with pytest.raises(AccessError, match="race: wave 1 writes"):
        share.store(1, 1, np.array([8]), np.zeros((1, 4), np.uint8))
    with pytest.raises(AccessError, match="race: wave 0 writes"):
        share.store(0, 2, np.array([8]), np.zeros((1, 4), np.uint8))
    with pytest.raises(AccessError, match="outside the 64 bytes"):
        share.load(0, 3, np.array([61]), 4)
    memory = Memory()
    at = memory.put(b"abcd")
    with pytest.raises(AccessError, match="outside all buffers"):
        memory.load(np.array([at + 1], np.uint64), 4)


@pytest.mark.parametrize("architecture", ["cdna3", "cdna4", "rdna3"])
def test_every_opcode_in_the_table_is_executable(architecture: str) -> None:
    for table in opcodes(architecture).values():
        for name in table.values():
            assert name.replace("v_dual_", "v_") in EXECUTE, name


def test_unknown_code_is_an_error() -> None:
    with pytest.raises(DecodeError, match="cdna3 SOP2 opcode 60"):
        Decoder("cdna3", (0b10 << 30 | 60 << 23).to_bytes(4, "little") * 2).at(0)


def test_constants_of_fma_follow_the_instruction() -> None:
    """In V_FMAMK the constant is a factor, in V_FMAAK it is added; it is the word after the instruction."""
    w = wave()
    w.vector[1], w.vector[2] = (np.full(64, value, np.float32).view(np.uint32) for value in (3, 5))
    constant = int(np.float32(7).view(np.uint32))
    for name, wanted in (("v_fmamk_f32", 3 * 7 + 5), ("v_fmaak_f32", 3 * 5 + 7)):
        found = run(w, name, 3, VGPR + 1, VGPR + 2, literal=constant)
        assert set(found.view(np.float32).tolist()) == {wanted}
    code = next(number for number, name in opcodes("cdna3")["VOP2"].items() if name == "v_fmaak_f32")
    word = code << 25 | 3 << 17 | 2 << 9 | VGPR + 1
    made = Decoder("cdna3", word.to_bytes(4, "little") + constant.to_bytes(4, "little")).at(0)
    assert (made.name, made.size, made.literal) == ("v_fmaak_f32", 8, constant)


def test_comparison_that_is_not_greater_holds_for_nan() -> None:
    w = wave()
    w.vector[1] = np.full(64, np.nan, np.float32).view(np.uint32)
    EXECUTE["v_cmp_ngt_f32"](w, Instruction("v_cmp_ngt_f32", 0, 4, sources=(VGPR + 1, VGPR + 1)))
    assert w.mask(106).all()
