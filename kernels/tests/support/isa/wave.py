"""Registers of one wavefront, and operands of its instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.tests.support.isa.dpp import sources
from kernels.tests.support.isa.encodings import LITERAL, NULL, VGPR, Instruction, bits

Array = Any
"""A numpy array or scalar, whose dtype depends on the instruction."""

M0 = 124
EXEC = 126
_SHARED_BASE, _APERTURE = 235, 1 << 48
"""Address of shared memory in the flat address space.

Its low 32 bits are 0 (CDNA3 5.2: SRC_SHARED_BASE).
"""
_FLOATS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0)
# Inline constants (CDNA3 5.2 and 6.2, RDNA3 6.2 and 7.2: "Scalar/Vector ALU Operands").
_CONSTANTS = {128 + n: n for n in range(65)} | {
    192 + n: -n & 0xFFFF_FFFF for n in range(1, 17)
}
_BY_SIZE = {
    4: _CONSTANTS
    | {
        240 + n: int(np.float32(v).view(np.uint32))
        for n, v in enumerate((*_FLOATS, 0.15915494))
    },
    2: _CONSTANTS
    | {
        240 + n: int(np.float16(v).view(np.uint16))
        for n, v in enumerate((*_FLOATS, 0.15915494))
    },
}
_TYPES: dict[str, tuple[Any, int]] = {
    "u32": (np.uint32, 4),
    "i32": (np.int32, 4),
    "f32": (np.float32, 4),
    "u16": (np.uint16, 2),
    "f16": (np.float16, 2),
    "u64": (np.uint64, 8),
}


@dataclass(slots=True)
class Pending:
    """A memory operation that has been issued and not completed."""

    counter: str
    complete: Callable[[], None]
    due: int


@dataclass(slots=True)
class Wave:
    """Registers and outstanding memory operations of one wavefront.

    Attributes:
        number: number in its workgroup.
        lanes: 64 on CDNA3, 32 here on RDNA3.
        vector: registers v0 to v255, then a0 to a255, one row each.
        active: EXEC as booleans; full: whether all lanes are active.
        latency: instructions until a memory operation completes, if it is not waited
            for; 0 is a random number.
        steps: executed instructions.
        pending: outstanding memory operations in order of issue.
        epoch: number of barriers passed.
    """

    number: int
    lanes: int
    rdna: bool
    flush: bool
    random: np.random.Generator
    vector: Array
    scalar: list[int]
    memory: Any = None
    share: Any = None
    scc: int = 0
    at: int = 0
    active: Array = None
    full: bool = True
    ended: bool = False
    waiting: bool = False
    epoch: int = 0
    latency: int = 0
    steps: int = 0
    pending: list[Pending] = field(default_factory=list)

    # Scalar operands

    def read(
        self,
        number: int,
        literal: int = 0,
    ) -> int:
        """Return a 32-bit scalar operand."""
        if number < 128:
            return 0 if number == NULL and self.rdna else self.scalar[number]
        if number == LITERAL:
            return literal
        return _BY_SIZE[4][number]

    def read_wide(
        self,
        number: int,
        literal: int = 0,
    ) -> int:
        """Return a 64-bit scalar operand."""
        if number < 128:
            return (
                0
                if number == NULL and self.rdna
                else self.scalar[number] | self.scalar[number + 1] << 32
            )
        if number == _SHARED_BASE:
            return _APERTURE
        value = self.read(number, literal)
        return value | 0xFFFF_FFFF_0000_0000 if 193 <= number <= 208 else value

    def write(
        self,
        number: int,
        value: int,
    ) -> None:
        """Write a 32-bit scalar register."""
        if number == NULL and self.rdna:
            return
        self.scalar[number] = value & 0xFFFF_FFFF
        if number >= EXEC:
            self.refresh()

    def write_wide(
        self,
        number: int,
        value: int,
    ) -> None:
        """Write a 64-bit scalar register."""
        self.write(number, value)
        self.write(number + 1, value >> 32)

    # Lane masks

    def mask_bits(self, number: int) -> int:
        """Return a lane mask as an integer."""
        return self.read_wide(number) if self.lanes == 64 else self.read(number)

    def mask(self, number: int) -> Array:
        """Return a lane mask as booleans."""
        value = self.mask_bits(number).to_bytes(self.lanes // 8, "little")
        return np.unpackbits(np.frombuffer(value, np.uint8), bitorder="little").view(
            bool
        )

    def write_mask(
        self,
        number: int,
        lanes: Array,
    ) -> None:
        """Write booleans as a lane mask; bits of inactive lanes are 0."""
        packed = int.from_bytes(
            np.packbits(lanes & self.active, bitorder="little").tobytes(), "little"
        )
        (self.write_wide if self.lanes == 64 else self.write)(number, packed)

    def refresh(self) -> None:
        """Follow a change of EXEC."""
        self.active = self.mask(EXEC)
        self.full = bool(self.active.all())

    # Vector operands

    def raw(
        self,
        number: int,
        literal: int = 0,
    ) -> Array:
        """Return a 32-bit operand of a vector instruction: one number per lane, or one for all."""
        return (
            self.vector[number - VGPR]
            if number >= VGPR
            else np.uint32(self.read(number, literal))
        )

    def operand(
        self,
        i: Instruction,
        which: int,
        kind: str,
    ) -> Array:
        """Return a source of an instruction as a type: u32, i32, f32, u16, f16 or u64."""
        number = i.sources[which]
        dtype, size = _TYPES[kind]
        if size == 8:
            if number < VGPR:
                value = np.uint64(self.read_wide(number, i.literal))
            else:
                low = self.vector[number - VGPR]
                high = self.vector[number - VGPR + 1]
                value = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
        elif size == 4:
            value = self._lanes(i, which, self.raw(number, i.literal)).view(dtype)
        else:
            value = self._half(i, which, number).view(dtype)
        return (
            self._modified(i, which, value, kind) if kind in ("f32", "f16") else value
        )

    def _lanes(
        self,
        i: Instruction,
        which: int,
        value: Array,
    ) -> Array:
        if not i.lanes:
            return value
        if i.sdwa:
            return _select(
                value,
                bits(i.lanes, *((18, 16) if which == 0 else (26, 24))),
                i.lanes >> (19, 27)[which],
            )
        return self._permuted(i, value) if which == 0 else value

    def _permuted(
        self,
        i: Instruction,
        value: Array,
    ) -> Array:
        """Permute lanes by DPP (CDNA3 6.8 and 13.3.9: "DPP").

        A lane without a source reads 0 or is not written.
        """
        assert i.lanes >> 24 == 0xFF, f"masks of rows and banks in {i} are not known"
        valid = self._has_source(i)
        known = i.lanes >> 19 & 1 or i.to or valid[self.active].all()
        assert known, f"lanes that the comparison {i} does not write are not known"
        return np.where(
            valid, value[sources(bits(i.lanes, 16, 8), self.lanes)], np.uint32(0)
        )

    def _has_source(self, i: Instruction) -> Array:
        from_lane = sources(bits(i.lanes, 16, 8), self.lanes)
        return (from_lane >= 0) & self.active[from_lane]

    def _half(
        self,
        i: Instruction,
        which: int,
        number: int,
    ) -> Array:
        """Return 16 bits of an operand.

        RDNA3 7.2.4, "16-bit math and VGPRs"; CDNA3: OPSEL of VOP3, SDWA.
        """
        if number < VGPR:
            return np.uint16(_BY_SIZE[2][number] & 0xFFFF)
        high = i.select >> which & 1
        register = number - VGPR
        if i.half and not i.lanes:
            high = register >> 7
            register = register & 127
        value = self._lanes(i, which, self.vector[register])
        return (value >> np.uint32(16 * high)).astype(np.uint16)

    def _modified(
        self,
        i: Instruction,
        which: int,
        value: Array,
        kind: str,
    ) -> Array:
        value = np.abs(value) if i.absolute >> which & 1 else value
        value = -value if i.negative >> which & 1 else value
        return flushed(value) if self.flush and kind == "f32" else value

    def result(
        self,
        i: Instruction,
        value: Array,
        kind: str,
    ) -> None:
        """Write the result of a vector instruction in the active lanes."""
        assert not i.clamp, f"saturation of {i.name} is not known"
        if kind in ("f32", "f16"):
            value = np.asarray(value, np.float32 if kind == "f32" else np.float16)
            value = flushed(value) if self.flush and kind == "f32" else value
        register = i.to - VGPR
        permuted = i.lanes and not i.sdwa
        assert not permuted or kind not in ("u64", "f16", "u16"), (
            f"permuted lanes of {i.name} are not known"
        )
        if kind == "u64":
            value = np.asarray(value, np.uint64)
            self.store(register, (value & np.uint64(0xFFFF_FFFF)).astype(np.uint32))
            self.store(register + 1, (value >> np.uint64(32)).astype(np.uint32))
        elif kind in ("f16", "u16"):
            self._write_half(i, np.asarray(value).view(np.uint16).astype(np.uint32))
        else:
            words = np.asarray(value).view(np.uint32)
            if (
                permuted and not i.lanes >> 19 & 1
            ):  # BOUND_CTRL: 0 instead of lanes without a source
                words = np.where(self._has_source(i), words, self.vector[register])
            self.store(register, words)

    def _write_half(
        self,
        i: Instruction,
        value: Array,
    ) -> None:
        """Write 16 bits; CDNA3 clears the other half, unless OPSEL chooses, RDNA3 keeps it."""
        register = i.to - VGPR
        high = i.select >> 3 & 1
        if i.half and not i.lanes:
            high = register >> 7
            register = register & 127
        if high or self.rdna:
            old = self.vector[register]
            merged = (
                old & np.uint32(0xFFFF) | value << np.uint32(16)
                if high
                else old & np.uint32(0xFFFF_0000) | value
            )
            self.store(register, merged)
        else:
            self.store(register, value)

    def store(
        self,
        register: int,
        value: Array,
    ) -> None:
        """Write 32 bits of the active lanes to a row of `vector`."""
        if self.full:
            self.vector[register] = value
        else:
            np.copyto(
                self.vector[register],
                value,
                where=self.active,
            )

    # Outstanding memory operations

    def issue(
        self,
        counter: str,
        complete: Callable[[], None],
    ) -> None:
        """Queue a memory operation: it completes at a wait, or now and then at once."""
        self.pending.append(Pending(counter, complete, self.steps + self.latency))
        prompt = self.random.random() < 0.25 or (
            counter == "lgkm" and self.share.ordered
        )
        if prompt and not self.latency:
            self.wait(counter, 0)

    def settle(self) -> None:
        """Complete the operations whose latency is over."""
        self.steps += 1
        while self.pending and self.pending[0].due < self.steps:
            self.pending.pop(0).complete()

    def wait(
        self,
        counter: str,
        left: int,
    ) -> None:
        """Complete operations in order until at most `left` of a counter are outstanding."""
        share = counter == "lgkm"
        queue = [one for one in self.pending if (one.counter == "lgkm") == share]
        count = sum(one.counter == counter for one in queue)
        while count > left:
            one = queue.pop(0)
            self.pending.remove(one)
            one.complete()
            count -= one.counter == counter


def flushed(value: Array) -> Array:
    """Return float32 numbers with denormal ones replaced by zeros (CDNA3 6.4, RDNA3 7.4)."""
    return np.where(
        np.abs(value) < np.float32(2.0**-126), np.copysign(np.float32(0), value), value
    )


def _select(
    value: Array,
    place: int,
    extend: int,
) -> Array:
    """Return part of an operand by SRC_SEL of SDWA (CDNA3 13.3.7)."""
    assert not extend & 1, "sign extension of SDWA is not known"
    if place == 6:
        return value
    assert place >= 4, "bytes of SDWA are not known"
    return value >> np.uint32((place - 4) * 16) & np.uint32(0xFFFF)
