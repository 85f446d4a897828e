"""Meaning of single instructions in the interpreter of compiled kernels."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.isa import floats
from tests.support.isa.code_object import EXECUTE
from tests.support.isa.encodings import VGPR, DecodeError, Decoder, Instruction, opcodes
from tests.support.isa.memory import AccessError, Memory, Share
from tests.support.isa.wave import EXEC, Wave

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


def test_mbcnt_and_perm_follow_their_definitions() -> None:
    w = wave()
    assert run(w, "v_mbcnt_lo_u32_b32", 1, 193, 128).tolist() == [min(lane, 32) for lane in range(64)]
    assert run(w, "v_mbcnt_hi_u32_b32", 2, 193, VGPR + 1).tolist() == list(range(64))
    w.vector[1], w.vector[2], w.vector[3] = 0x44332211, 0x88776655, 0x0C000704
    assert run(w, "v_perm_b32", 4, VGPR + 1, VGPR + 2, VGPR + 3)[0] == 0x00554411


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
