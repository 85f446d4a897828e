"""Interpreter of the scalar half of a gfx9 kernel that reports where its first wavefront reads, without a GPU.

Addresses of buffers, strides and loops are computed by scalar instructions from the kernel's arguments alone. Vector
instructions are skipped; they only add the differences between lanes. Encodings: AMD, "Instinct MI300 Instruction Set
Architecture".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_KERNARG = 0x1000_0000
_VCC, _EXEC, _LITERAL, _DWORDS_AFTER = 106, 126, 255, (249, 250, 255)
_MOST_STEPS = 200_000


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


# Opcode -> function of two operands that returns result and condition code; None keeps the condition.
_TWO: dict[int, Callable[[int, int, int], tuple[int, int | None]]] = {
    0: lambda a, b, _: (a + b, (a + b) >> 32),  # s_add_u32
    2: lambda a, b, _: (a + b, 0),  # s_add_i32; overflow is not modelled
    3: lambda a, b, _: (a - b, 0),  # s_sub_i32, likewise
    4: lambda a, b, c: (a + b + c, (a + b + c) >> 32),  # s_addc_u32
    10: lambda a, b, c: (a if c else b, None),  # s_cselect_b32
    12: lambda a, b, _: (a & b, int(a & b != 0)),  # s_and_b32
    14: lambda a, b, _: (a | b, int(a | b != 0)),  # s_or_b32
    28: lambda a, b, _: (a << (b & 31), int((a << (b & 31)) & 0xFFFF_FFFF != 0)),  # s_lshl_b32
    30: lambda a, b, _: (a >> (b & 31), int(a >> (b & 31) != 0)),  # s_lshr_b32
    32: lambda a, b, _: (_signed(a) >> (b & 31), int(_signed(a) >> (b & 31) != 0)),  # s_ashr_i32
    36: lambda a, b, _: (_signed(a) * _signed(b), None),  # s_mul_i32
}
_TWO_WIDE: dict[int, Callable[[int, int], int]] = {
    13: lambda a, b: a & b,  # s_and_b64
    29: lambda a, b: a << (b & 63),  # s_lshl_b64
}
_COMPARE: dict[int, Callable[[int, int], bool]] = {
    2: lambda a, b: _signed(a) > _signed(b),  # s_cmp_gt_i32
    4: lambda a, b: _signed(a) < _signed(b),  # s_cmp_lt_i32
    6: lambda a, b: a == b,  # s_cmp_eq_u32
    10: lambda a, b: a < b,  # s_cmp_lt_u32
}


class ScalarWave:
    """The first wavefront of a block.

    Args:
        path: path of a code object with one kernel.
        arguments: packed kernel arguments.
        block: x, y and z of the block.
    """

    def __init__(self, path: Path, arguments: bytes, block: tuple[int, int, int]) -> None:
        with path.open("rb") as file:
            sections = {one.name: one for one in ELFFile(file).iter_sections()}
            text, symbols = sections[".text"], sections[".dynsym"]
            assert isinstance(symbols, SymbolTableSection)
            (at,) = (one["st_value"] for one in symbols.iter_symbols() if one.name.endswith(".kd"))
            data = next(one for one in sections.values() if one["sh_addr"] <= at < one["sh_addr"] + one["sh_size"])
            entry = struct.unpack_from("<q", data.data(), at - data["sh_addr"] + 16)[0]
            self.code, self.base, self.at = text.data(), text["sh_addr"], at + entry
        self.arguments, self.condition = arguments, 0
        # Address of the arguments, then the block index; all lanes are active.
        self.registers = [_KERNARG, 0, *block] + [0] * 123
        self.registers[_EXEC : _EXEC + 2] = [0xFFFF_FFFF] * 2

    def reads(self) -> Iterator[int]:
        """Return the base addresses of all loads until the kernel ends, except those of its arguments."""
        for _ in range(_MOST_STEPS):
            word, after = self._word(0), self._word(4)
            if word == 0xBF81_0000:  # s_endpgm
                return
            if word >> 26 == 0b110000:
                yield from self._scalar_load(word, after)
            elif word >> 26 == 0b111000:
                if 20 <= word >> 18 & 127 <= 23:  # buffer_load_dword and wider
                    first = 4 * (after >> 16 & 31)
                    yield (self._wide(first) & 0xFFFF_FFFF_FFFF) + self._source(after >> 24)
                self.at += 8
            elif word >> 30 == 0b10:
                self._scalar(word)
            else:
                self._vector(word, after)
        raise AssertionError("the kernel does not end")

    def _word(self, ahead: int) -> int:
        where = self.at - self.base + ahead
        return int.from_bytes(self.code[where : where + 4], "little")

    def _source(self, number: int) -> int:
        if number < len(self.registers):
            return self.registers[number]
        if number == _LITERAL:
            return self._word(4)
        assert 128 <= number <= 208 or number == 235, f"operand {number} at {self.at:#x} is not known"
        return {235: 0}.get(number, number - 128 if number <= 192 else 192 - number & 0xFFFF_FFFF)

    def _wide(self, number: int) -> int:
        if number < len(self.registers):
            return self.registers[number] | self.registers[number + 1] << 32
        return self._source(number) | (0xFFFF_FFFF << 32 if 193 <= number <= 208 else 0)

    def _write(self, number: int, value: int, *, wide: bool = False) -> None:
        self.registers[number] = value & 0xFFFF_FFFF
        if wide:
            self.registers[number + 1] = value >> 32 & 0xFFFF_FFFF

    def _scalar_load(self, word: int, after: int) -> Iterator[int]:
        count, to = 1 << (word >> 18 & 255), word >> 6 & 127
        address = self._wide((word & 63) * 2) + (after & 0x1F_FFFF)
        at = address - _KERNARG
        inside = 0 <= at < len(self.arguments)
        for i in range(count):
            value = self.arguments[at + 4 * i : at + 4 * i + 4] if inside else b""
            self._write(to + i, int.from_bytes(value, "little"))
        if not inside:
            yield address
        self.at += 8

    def _scalar(self, word: int) -> None:
        first, second, to = word & 255, word >> 8 & 255, word >> 16 & 127
        length = 4
        if word >> 23 == 0b1_0111_1111:  # program flow
            length += self._jump(word >> 16 & 127, struct.unpack("<h", struct.pack("<H", word & 0xFFFF))[0])
        elif word >> 23 == 0b1_0111_1110:
            self.condition = int(_COMPARE[to](self._source(first), self._source(second)))
            length += 4 * (_LITERAL in (first, second))
        elif word >> 23 == 0b1_0111_1101:
            self._one(second, first, to)
            length += 4 * (first == _LITERAL)
        elif word >> 28 == 0b1011:
            value = struct.unpack("<h", struct.pack("<H", word & 0xFFFF))[0]
            assert word >> 23 & 31 in (0, 14), f"a scalar instruction at {self.at:#x} is not known"
            self._write(to, value + (self.registers[to] if word >> 23 & 31 else 0))  # s_movk_i32, s_addk_i32
        elif word >> 23 & 127 in _TWO_WIDE:
            value = _TWO_WIDE[word >> 23 & 127](self._wide(first), self._wide(second))
            self._write(to, value, wide=True)
        else:
            value, after = _TWO[word >> 23 & 127](self._source(first), self._source(second), self.condition)
            self._write(to, value)
            self.condition = self.condition if after is None else after
            length += 4 * (_LITERAL in (first, second))
        self.at += length

    def _one(self, code: int, source: int, to: int) -> None:
        if code == 0:  # s_mov_b32
            self._write(to, self._source(source))
        elif code == 1:  # s_mov_b64
            self._write(to, self._wide(source), wide=True)
        else:
            assert code == 32, f"a scalar instruction at {self.at:#x} is not known"  # s_and_saveexec_b64
            self._write(to, self._wide(_EXEC), wide=True)

    def _jump(self, code: int, words: int) -> int:
        # At least one lane is always active, so s_cbranch_execz does not jump.
        taken = {2: True, 4: not self.condition, 5: bool(self.condition)}.get(code, False)
        return 4 * words if taken else 0

    def _vector(self, word: int, after: int) -> None:
        if word >> 31 == 0:
            if word >> 25 == 0b011_1111 and word >> 9 & 255 == 2:
                self._write(word >> 17 & 255, 0)  # v_readfirstlane_b32: the wavefront's number
            self.at += 8 if word & 511 in _DWORDS_AFTER else 4
            return
        if word >> 16 == 0b110100_1010001001:
            self._write(word & 255, 0)  # v_readlane_b32
        self.at += 8
