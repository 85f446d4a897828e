"""Decoder of machine code.

Encodings: CDNA3, chapter 13; RDNA3, chapter 15 ("Microcode Formats").
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

LITERAL = 255
SDWA = 249
DPP = 250
VGPR, ACC = 256, 512
"""First number of a vector register, and of an accumulation register."""
VCC = 106
NULL = 124


@dataclass(slots=True)
class Instruction:
    """One decoded instruction.

    Attributes:
        name: mnemonic without a suffix for its encoding.
        at, size: position in the code and length in bytes.
        to, sources: operand numbers as encoded; vector registers from 256.
        scalar_to: number of the scalar destination (VOPC, VOP3B/VOP3SD, SDWA of VOPC).
        immediate: constant of the encoding: SIMM16, or the offset of a memory
            instruction.
        literal: the 32 bits after the instruction.
        negative, absolute: bit masks over the sources.
        select, select_high: OPSEL and OPSEL_HI.
        lanes: the word of SDWA or DPP; 0 for none.
        half: whether 16-bit operands name halves of the first 128 vector registers
            (RDNA3).
        flags: bits of memory instructions (gds, offen, lds, …).
        other: second operation of VOPD.
    """

    name: str
    at: int
    size: int
    to: int = 0
    sources: tuple[int, ...] = ()
    scalar_to: int = VCC
    immediate: int = 0
    literal: int = 0
    negative: int = 0
    absolute: int = 0
    negative_high: int = 0
    select: int = 0
    select_high: int = 7
    clamp: bool = False
    lanes: int = 0
    sdwa: bool = False
    wide: bool = False
    half: bool = False
    flags: dict[str, int] = field(default_factory=dict)
    other: Instruction | None = None


class DecodeError(AssertionError):
    """Code that the tables do not describe."""


def bits(
    word: int,
    high: int,
    low: int,
) -> int:
    """Return the bits high:low of a word."""
    return word >> low & (1 << high - low + 1) - 1


def signed(value: int, width: int) -> int:
    """Return a field as a two's complement number."""
    return value - (1 << width) if value >> width - 1 else value


@cache
def opcodes(architecture: str) -> dict[str, dict[int, str]]:
    """Return the mnemonics of each encoding by opcode.

    Cdna3, cdna4 (which extends cdna3) or rdna3.
    """
    tables = tomllib.loads(
        Path(__file__).with_name("opcodes.toml").read_text(encoding="utf-8")
    )
    found: dict[str, dict[int, str]] = {}
    for one in ("cdna3", "cdna4") if architecture == "cdna4" else (architecture,):
        for name, table in tables[one].items():
            found.setdefault(name, {}).update(
                {code: word for word, code in table.items() if word != "section"}
            )
    return found


# First opcodes of VOP2, and of VOP3 alone, in VOP3 (CDNA3 13.3.4, RDNA3 15.3.4).
# Each is for CDNA and RDNA.
_IN_VOP3 = (256, 448), (256, 512)
_VOP3 = 0b110100, 0b110101
_SMEM = 0b110000, 0b111101
_VOP3P = (23, 0b110100111), (24, 0b11001100)


class Decoder:
    """Decoder of one kernel's code.

    Args:
        architecture: cdna3, cdna4 or rdna3.
        code: bytes of the section .text.
    """

    def __init__(
        self,
        architecture: str,
        code: bytes,
    ) -> None:
        self.rdna = architecture == "rdna3"
        self._code = code
        self._tables = opcodes(architecture)
        self._name = architecture

    def at(self, place: int) -> Instruction:
        """Decode the instruction at a byte offset."""
        word = int.from_bytes(self._code[place : place + 4], "little")
        more = int.from_bytes(self._code[place + 4 : place + 8], "little")
        made = self._decode(place, word, more)
        both = (made, made.other) if made.other else (made,)
        if any(LITERAL in one.sources for one in both):
            end = place + made.size
            made.literal = int.from_bytes(self._code[end : end + 4], "little")
            made.size += 4
            if made.other:
                made.other.literal = made.literal
        return made

    def _mnemonic(
        self,
        table: str,
        code: int,
        place: int,
    ) -> str:
        try:
            return self._tables[table][code]
        except KeyError:
            raise DecodeError(
                f"{self._name} {table} opcode {code} at {place:#x} is not in"
                " opcodes.toml"
            ) from None

    def _decode(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        shift, prefix = _VOP3P[self.rdna]
        if word >> 31 == 0:
            return self._vector(place, word, more)
        if word >> 30 == 0b10:
            return self._scalar(place, word)
        if word >> shift == prefix:
            return self._packed(place, word, more)
        if word >> 26 == _VOP3[self.rdna]:
            return self._vop3(place, word, more)
        if word >> 26 == _SMEM[self.rdna]:
            return self._scalar_memory(place, word, more)
        if self.rdna and word >> 26 == 0b110010:
            return self._dual(place, word, more)
        memory = {
            0b110110: self._data_share,
            0b110111: self._global,
            0b111000: self._buffer,
        }.get(word >> 26)
        if memory is None:
            raise DecodeError(
                f"the encoding of {word:#010x} at {place:#x} is not known"
            )
        return memory(place, word, more)

    def _scalar(
        self,
        place: int,
        word: int,
    ) -> Instruction:
        to = bits(word, 22, 16)
        first = bits(word, 7, 0)
        second = bits(word, 15, 8)
        simm = signed(word & 0xFFFF, 16)
        if word >> 23 == 0b101111111:
            return Instruction(
                self._mnemonic("SOPP", to, place),
                place,
                4,
                immediate=simm,
            )
        if word >> 23 == 0b101111110:
            return Instruction(
                self._mnemonic("SOPC", to, place),
                place,
                4,
                sources=(first, second),
            )
        if word >> 23 == 0b101111101:
            return Instruction(
                self._mnemonic("SOP1", second, place), place, 4, to, (first,)
            )
        if word >> 28 == 0b1011:
            return Instruction(
                self._mnemonic("SOPK", bits(word, 27, 23), place),
                place,
                4,
                to,
                immediate=simm,
            )
        return Instruction(
            self._mnemonic("SOP2", bits(word, 29, 23), place),
            place,
            4,
            to,
            (first, second),
        )

    def _scalar_memory(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        name = self._mnemonic("SMEM", bits(word, 25, 18), place)
        offset = signed(bits(more, 20, 0), 21)
        flags = {
            "register": bits(more, 31, 25) if self.rdna or word >> 14 & 1 else NULL
        }
        if not self.rdna and not word >> 17 & 1:  # IMM = 0
            raise DecodeError(f"an offset in a register at {place:#x} is not known")
        return Instruction(
            name,
            place,
            8,
            bits(word, 12, 6),
            (bits(word, 5, 0) * 2,),
            immediate=offset,
            flags=flags,
        )

    def _vector(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        to = bits(word, 24, 17)
        first = bits(word, 8, 0)
        second = VGPR + bits(word, 16, 9)
        if word >> 25 == 0b0111111:
            name = self._mnemonic("VOP1", bits(word, 16, 9), place)
            made = Instruction(name, place, 4, VGPR + to, (first,))
        elif word >> 25 == 0b0111110:
            name = self._mnemonic("VOPC", to, place)
            made = Instruction(
                name,
                place,
                4,
                sources=(first, second),
            )
        else:
            name = self._mnemonic("VOP2", bits(word, 30, 25), place)
            made = Instruction(name, place, 4, VGPR + to, (first, second))
        made.half = self.rdna
        if first in (SDWA, DPP):
            self._lanes(
                made,
                more,
                compare=word >> 25 == 0b0111110,
            )
        return made

    def _lanes(
        self,
        made: Instruction,
        more: int,
        *,
        compare: bool,
    ) -> None:
        """Read the word of SDWA (CDNA3 13.3.7, 13.3.8) or DPP (CDNA3 13.3.9, RDNA3 15.3.8)."""
        made.sdwa = made.sources[0] == SDWA
        made.lanes = more
        made.size = 8
        first = bits(more, 7, 0)
        made.sources = (
            first if made.sdwa and more >> 23 & 1 else VGPR + first,
            *made.sources[1:],
        )
        made.negative = more >> 20 & 1 | (more >> (28 if made.sdwa else 22) & 1) << 1
        made.absolute = more >> 21 & 1 | (more >> (29 if made.sdwa else 23) & 1) << 1
        whole = bits(more, 10, 8) == 6  # DST_SEL: 32 bits
        if made.sdwa and (
            compare
            or not whole
            or more >> 13 & 7
            or (len(made.sources) > 1 and more >> 31)
        ):
            raise DecodeError(f"SDWA of {made.name} at {made.at:#x} is not known")

    def _vop3(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        code = bits(word, 25, 16)
        second, only = _IN_VOP3[self.rdna]
        if code >= only:
            table = "VOP3"
            number = code
        elif code >= second:
            table = "VOP2"
            number = code - second
        else:
            table = "VOPC"
            number = code
        sources = (
            bits(more, 8, 0),
            bits(more, 17, 9),
            bits(more, 26, 18),
        )
        made = Instruction(
            self._mnemonic(table, number, place),
            place,
            8,
            VGPR + bits(word, 7, 0),
            sources,
        )
        made.wide = True
        made.negative = bits(more, 31, 29)
        made.clamp = bool(word >> 15 & 1)
        if bits(more, 28, 27):  # OMOD
            raise DecodeError(f"scaling of {made.name} at {place:#x} is not known")
        if table == "VOPC":
            made.scalar_to = bits(word, 7, 0)
            made.sources = sources[:2]
        if made.name in (
            "v_div_scale_f32",
            "v_mad_u64_u32",
            "v_add_co_u32",
            "v_add_co_ci_u32",
        ):
            made.scalar_to = bits(word, 14, 8)
        else:
            made.select = bits(word, 14, 11)
            made.absolute = bits(word, 10, 8)
        if made.name == "v_add_co_u32":
            made.sources = sources[:2]
        return made

    def _packed(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        name = self._mnemonic("VOP3P", bits(word, 22, 16), place)
        made = Instruction(name, place, 8, VGPR + bits(word, 7, 0))
        sources = [
            bits(more, 8, 0),
            bits(more, 17, 9),
            bits(more, 26, 18),
        ]
        if name.startswith("v_accvgpr"):
            # One operand is an accumulation register, whatever ACC is: assemblers set
            # it in both (CDNA3 12.10: V_ACCVGPR_READ_B32, V_ACCVGPR_WRITE_B32; LLVM,
            # mai-gfx908.s and mai-gfx90a.s).
            if name == "v_accvgpr_write_b32":
                made.to += ACC - VGPR
            else:
                sources[0] += ACC - VGPR
            sources = sources[:1]
        elif name.startswith("v_mfma"):  # VOP3P-MAI
            for which in (0, 1):
                if more >> 27 + which & 1 and sources[which] >= VGPR:
                    sources[which] += ACC - VGPR
            if word >> 15 & 1:
                made.to += ACC - VGPR
                if sources[2] >= VGPR:
                    sources[2] += ACC - VGPR
            made.flags = {
                "cbsz": bits(word, 10, 8),
                "abid": bits(word, 14, 11),
                "blgp": bits(more, 31, 29),
            }
        else:
            made.select = bits(word, 13, 11)
            made.select_high = bits(more, 28, 27) | (word >> 14 & 1) << 2
            made.negative = bits(more, 31, 29)
            made.negative_high = bits(word, 10, 8)
            made.clamp = bool(word >> 15 & 1)
        made.sources = tuple(sources)
        return made

    def _dual(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        """Decode two operations that execute together (RDNA3 15.3.5, VOPD)."""
        x = Instruction(
            self._mnemonic("VOPD", bits(word, 25, 22), place),
            place,
            8,
            VGPR + bits(more, 31, 24),
        )
        y = Instruction(self._mnemonic("VOPD", bits(word, 21, 17), place), place, 8)
        y.to = VGPR + (bits(more, 23, 17) << 1 | (x.to & 1 ^ 1))
        x.sources = (bits(word, 8, 0), VGPR + bits(word, 16, 9))
        y.sources = (bits(more, 8, 0), VGPR + bits(more, 16, 9))
        for one in (x, y):
            one.name = one.name.replace("v_dual_", "v_")
            if one.name == "v_mov_b32":
                one.sources = one.sources[:1]
        x.other = y
        return x

    def _data_share(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        low = 18 if self.rdna else 17
        code = bits(word, 25, 18) if self.rdna else bits(word, 24, 17)
        acc = not self.rdna and word >> 25 & 1
        vector = ACC if acc else VGPR
        made = Instruction(
            self._mnemonic("DS", code, place), place, 8, vector + bits(more, 31, 24)
        )
        made.sources = (
            VGPR + bits(more, 7, 0),
            vector + bits(more, 15, 8),
            vector + bits(more, 23, 16),
        )
        made.immediate = word & 0xFFFF
        made.flags = {"gds": word >> low - 1 & 1}
        return made

    def _global(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        segment = bits(word, 17, 16) if self.rdna else bits(word, 15, 14)
        if segment != 2:
            raise DecodeError(
                f"a FLAT or scratch instruction at {place:#x} is not known"
            )
        vector = ACC if not self.rdna and more >> 23 & 1 else VGPR
        made = Instruction(
            self._mnemonic("GLOBAL", bits(word, 24, 18), place),
            place,
            8,
            vector + bits(more, 31, 24),
        )
        made.sources = (
            VGPR + bits(more, 7, 0),
            vector + bits(more, 15, 8),
            bits(more, 22, 16),
        )
        made.immediate = signed(word & 0x1FFF, 13)
        made.flags = {"returns": word >> (14 if self.rdna else 16) & 1}
        return made

    def _buffer(
        self,
        place: int,
        word: int,
        more: int,
    ) -> Instruction:
        code = bits(word, 25, 18) if self.rdna else bits(word, 24, 18)
        name = self._mnemonic("MUBUF", code, place)
        if self.rdna:  # only instructions without operands are known
            return Instruction(name, place, 8)
        vector = ACC if more >> 23 & 1 else VGPR
        made = Instruction(name, place, 8, vector + bits(more, 15, 8))
        made.sources = (
            VGPR + bits(more, 7, 0),
            4 * bits(more, 20, 16),
            bits(more, 31, 24),
        )
        made.immediate = word & 0xFFF
        made.flags = {
            "offen": word >> 12 & 1,
            "idxen": word >> 13 & 1,
            "lds": word >> 16 & 1,
            "returns": word >> 14 & 1,
        }
        return made
