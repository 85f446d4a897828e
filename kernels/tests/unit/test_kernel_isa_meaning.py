"""Meaning of single instructions in the interpreter of compiled kernels."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.tests.support.isa.code_object import EXECUTE
from kernels.tests.support.isa.encodings import DecodeError, Decoder, opcodes
from kernels.tests.support.isa.memory import AccessError, Memory, Share
from kernels.tests.support.isa.wave import EXEC, Wave


def wave(lanes: int = 64, active: int = (1 << 64) - 1, *, rdna: bool = False) -> Wave:
    """Return a wavefront whose v0 is the lane's number."""
    random = np.random.default_rng(0)
    vector = np.zeros((512, lanes), np.uint32)
    vector[0] = np.arange(lanes)
    made = Wave(0, lanes, rdna, False, random, vector, [0] * 130, Memory(), Share(1024, random, races=True))
    made.write_wide(EXEC, active)
    return made


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
