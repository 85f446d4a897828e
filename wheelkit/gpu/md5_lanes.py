"""MD5 of three messages at once (RFC 1321), in less than half the CPU time of hashlib.

Each step of MD5 needs the result of the step before, so that one message leaves most units of a core idle. The function
of this module does each step for three messages. Its machine code is encoded with iced-x86; machines that cannot or may
not run it use hashlib.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import mmap
import platform
import struct
from collections.abc import Sequence

try:
    from iced_x86 import Code, Code_, Encoder, Instruction, MemoryOperand, Register, Register_
except ImportError:  # it has wheels for x86-64 machines only
    CAN_ENCODE = False
else:
    CAN_ENCODE = True

LANES = 3
"""Number of messages at once; the registers of x86-64 hold the states of three."""
ROW = 1 << 20
"""Largest part of a message in bytes."""
_BLOCK = 64
_STRIDE = ROW + _BLOCK  # rows a power of two apart would share few places of the cache
_STATE = struct.Struct("<4I")
_START = _STATE.pack(0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_SHIFTS = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))


class Md5Lanes:
    """MD5 of up to `LANES` messages, which are given in parts.

    Attributes:
        rows: for each message, the memory from which `update` takes its next part; `ROW` bytes each.
    """

    def __init__(self) -> None:
        self._function = _function()
        self._memory = bytearray(LANES * _STRIDE)
        self.rows = tuple(memoryview(self._memory)[lane * _STRIDE :][:ROW] for lane in range(LANES))
        self.begin()

    def begin(self) -> None:
        """Forget all messages and begin new ones."""
        self._states = bytearray(LANES * _START)
        self._hashes = [hashlib.md5(usedforsecurity=False) for _ in range(LANES)]
        self._sizes = [0] * LANES
        self._rests = [b""] * LANES

    def update(self, sizes: Sequence[int]) -> None:
        """Append the first bytes of each row to its message.

        Args:
            sizes: number of bytes of each row; only the last part of a message may be no multiple of 64.
        """
        if any(size and before % _BLOCK for size, before in zip(sizes, self._sizes, strict=False)):
            raise ValueError("only the last part of a message may be no multiple of 64 bytes")
        for lane, size in enumerate(sizes):
            self._sizes[lane] += size
        if self._function is None:
            for digest, row, size in zip(self._hashes, self.rows, sizes, strict=False):
                digest.update(row[:size])
            return
        self._digest_blocks([size // _BLOCK for size in sizes])
        for lane, size in enumerate(sizes):
            self._rests[lane] = self._rests[lane] or bytes(self.rows[lane][size - size % _BLOCK : size])

    def digests(self) -> list[bytes]:
        """End all messages and return their MD5s, 16 bytes each."""
        if self._function is None:
            return [digest.digest() for digest in self._hashes]
        blocks = []
        for row, rest, size in zip(self.rows, self._rests, self._sizes, strict=True):
            blocks.append((len(rest) + 8) // _BLOCK + 1)
            end = blocks[-1] * _BLOCK
            row[:end] = (rest + b"\x80").ljust(end - 8, b"\0") + struct.pack("<Q", size * 8)
        self._digest_blocks(blocks)
        return [bytes(self._states[start : start + _STATE.size]) for start in range(0, len(self._states), _STATE.size)]

    def of(self, messages: Sequence[bytes | bytearray | memoryview]) -> list[bytes]:
        """Return the MD5s of up to `LANES` whole messages."""
        self.begin()
        views = [memoryview(message) for message in messages]
        for start in range(0, max(map(len, views), default=0), ROW):
            parts = [view[start : start + ROW] for view in views]
            for row, part in zip(self.rows, parts, strict=False):
                row[: len(part)] = part
            self.update([len(part) for part in parts])
        return self.digests()[: len(views)]

    def _digest_blocks(self, blocks: Sequence[int]) -> None:
        """Continue the state of each message with the first blocks of its row."""
        assert self._function is not None
        done = 0
        for count in sorted({*blocks, 0})[1:]:
            # The function digests all rows: keep the states of messages that have fewer blocks.
            kept = self._states[:]
            self._function(self._states, self._memory, done, count - done)
            for lane in range(LANES):
                if lane >= len(blocks) or blocks[lane] < count:
                    place = slice(lane * _STATE.size, (lane + 1) * _STATE.size)
                    self._states[place] = kept[place]
            done = count


def _address(data: bytearray | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


class _Function:
    """The function that continues the states of all lanes, with the memory of its machine code.

    Raises:
        PermissionError: the system forbids to make memory executable, as hardened ones do.
    """

    def __init__(self, code: bytes) -> None:
        self._memory = mmap.mmap(-1, len(code))
        self._memory.write(code)
        address, access = _address(self._memory), mmap.PROT_READ | mmap.PROT_EXEC
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(code)), access):
            raise PermissionError("mprotect")
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(address)

    def __call__(self, states: bytearray, rows: bytearray, first: int, blocks: int) -> None:
        """Continue the states with a number of blocks of each row, beginning with block `first`."""
        self._call(_address(states), _address(rows) + first * _BLOCK, blocks)


@functools.cache
def _function() -> _Function | None:
    """Return the function; None on a machine that cannot or may not run it."""
    if not CAN_ENCODE or platform.machine() != "x86_64":
        return None
    try:
        return _Function(_encode())
    except PermissionError:
        return None


def _encode() -> bytes:
    """Return the machine code; its arguments are in registers rdi, rsi and rdx (System V ABI)."""
    encoder = Encoder(64)
    kept = [Register.RBX, Register.RBP, Register.R12, Register.R13, Register.R14, Register.R15]
    states = [
        [Register.EAX, Register.EBX, Register.ECX, Register.EBP],
        [Register.R8D, Register.R9D, Register.R10D, Register.R11D],
        [Register.R12D, Register.R13D, Register.R14D, Register.R15D],
    ]
    term = Register.EDX
    counter = MemoryOperand(Register.RSP)

    def emit(instruction: Instruction) -> None:
        encoder.encode(instruction, 0)

    def compute(code: Code_, target: Register_, source: Register_) -> None:
        emit(Instruction.create_reg_reg(code, target, source))

    def state_word(lane: int, word: int) -> MemoryOperand:
        return MemoryOperand(Register.RDI, displ=lane * _STATE.size + 4 * word, displ_size=8)

    def message_word(lane: int, word: int) -> MemoryOperand:
        return MemoryOperand(Register.RSI, displ=lane * _STRIDE + 4 * word, displ_size=8)

    for register in [*kept, Register.RDX]:
        emit(Instruction.create_reg(Code.PUSH_R64, register))
    for lane, state in enumerate(states):
        for word, register in enumerate(state):
            emit(Instruction.create_reg_mem(Code.MOV_R32_RM32, register, state_word(lane, word)))
    begin = encoder.take_buffer()

    for step in range(64):
        turn = step // 16
        word = (step, 5 * step + 1, 3 * step + 5, 7 * step)[turn] % 16
        for lane, (a, b, c, d) in enumerate(states):
            emit(Instruction.create_reg_mem(Code.ADD_R32_RM32, a, message_word(lane, word)))
            emit(Instruction.create_reg_u32(Code.ADD_RM32_IMM32, a, int(abs(math.sin(step + 1)) * 2**32)))
            if turn == 0:  # F: (b and c) or (d and not b)
                compute(Code.MOV_R32_RM32, term, c)
                compute(Code.XOR_R32_RM32, term, d)
                compute(Code.AND_R32_RM32, term, b)
                compute(Code.XOR_R32_RM32, term, d)
            elif turn == 1:  # G: (c and not d) or (b and d), which have no common bit
                compute(Code.MOV_R32_RM32, term, d)
                emit(Instruction.create_reg(Code.NOT_RM32, term))
                compute(Code.AND_R32_RM32, term, c)
                compute(Code.ADD_R32_RM32, a, term)
                compute(Code.MOV_R32_RM32, term, d)
                compute(Code.AND_R32_RM32, term, b)
            elif turn == 2:  # H: b xor c xor d
                compute(Code.MOV_R32_RM32, term, c)
                compute(Code.XOR_R32_RM32, term, d)
                compute(Code.XOR_R32_RM32, term, b)
            else:  # I: c xor (b or not d)
                compute(Code.MOV_R32_RM32, term, d)
                emit(Instruction.create_reg(Code.NOT_RM32, term))
                compute(Code.OR_R32_RM32, term, b)
                compute(Code.XOR_R32_RM32, term, c)
            compute(Code.ADD_R32_RM32, a, term)
            emit(Instruction.create_reg_u32(Code.ROL_RM32_IMM8, a, _SHIFTS[turn][step % 4]))
            compute(Code.ADD_R32_RM32, a, b)
        states = [[d, a, b, c] for a, b, c, d in states]
    for lane, state in enumerate(states):
        for word, register in enumerate(state):
            emit(Instruction.create_reg_mem(Code.ADD_R32_RM32, register, state_word(lane, word)))
            emit(Instruction.create_mem_reg(Code.MOV_RM32_R32, state_word(lane, word), register))
    emit(Instruction.create_reg_i32(Code.ADD_RM64_IMM8, Register.RSI, _BLOCK))
    emit(Instruction.create_mem_i32(Code.SUB_RM64_IMM8, counter, 1))
    loop = encoder.take_buffer()
    jump = b"\x0f\x85" + struct.pack("<i", -len(loop) - 6)  # jne: back to the loop's first byte

    for register in [Register.RDX, *reversed(kept)]:
        emit(Instruction.create_reg(Code.POP_R64, register))
    emit(Instruction.create(Code.RETNQ))
    return begin + loop + jump + encoder.take_buffer()
