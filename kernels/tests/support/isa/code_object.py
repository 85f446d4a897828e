"""Code objects: kernels, their descriptors, and decoded instructions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kernels.tests.support.isa.encodings import Decoder, Instruction
from kernels.tests.support.isa.matrix_ops import MATRIX
from kernels.tests.support.isa.memory_ops import MEMORY
from kernels.tests.support.isa.packed_ops import PACKED
from kernels.tests.support.isa.scalar_ops import SCALAR, Execute
from kernels.tests.support.isa.vector_ops import VECTOR
from kernels.tests.support.isa.wave import Wave

EXECUTE: dict[str, Execute] = {
    **SCALAR,
    **VECTOR,
    **PACKED,
    **MATRIX,
    **MEMORY,
}
_ARCHITECTURES = {
    0x4C: "cdna3",
    0x4F: "cdna4",
    0x41: "rdna3",
}
"""EF_AMDGPU_MACH of gfx942, gfx950 and gfx1100.

LLVM, "User Guide for AMDGPU Backend", ELF header e_flags.
"""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel as its descriptor defines it.

    See LLVM, "User Guide for AMDGPU Backend", Kernel Descriptor.

    Attributes:
        at: entry, as an offset into the code.
        share: bytes of shared memory.
        resources: COMPUTE_PGM_RSRC1, COMPUTE_PGM_RSRC2.
        properties: KERNEL_CODE_PROPERTIES.
    """

    at: int
    share: int
    resources: tuple[int, int]
    properties: int

    def scalars(
        self,
        arguments: int,
        block: tuple[int, int, int],
    ) -> Iterator[int]:
        """Yield the initial scalar registers: user registers, then the numbers of the workgroup."""
        before = 0
        for bit, size in ((0, 4), (1, 2), (2, 2)):
            before += size if self.properties >> bit & 1 else 0
        assert (before, self.properties >> 3 & 1) == (0, 1), (
            "only the address of the arguments is known"
        )
        yield from (arguments & 0xFFFF_FFFF, arguments >> 32)
        yield from [0] * ((self.resources[1] >> 1 & 31) - 2)
        yield from (block[at] for at in range(3) if self.resources[1] >> 7 + at & 1)

    @property
    def lanes(self) -> int:
        """Lanes of a wavefront."""
        return 32 if self.properties >> 10 & 1 else 64

    @property
    def flush(self) -> bool:
        """Whether denormal float32 numbers are flushed to zero."""
        return self.resources[0] >> 16 & 3 != 3


class CodeObject:
    """Code and kernels of a file for one target."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            elf = ELFFile(file)
            sections = {one.name: one for one in elf.iter_sections()}
            text = sections[".text"]
            symbols = sections[".dynsym"]
            assert isinstance(symbols, SymbolTableSection)
            self.architecture = _ARCHITECTURES[elf["e_flags"] & 0xFF]
            self.code = text.data()
            self.kernels = {}
            for symbol in symbols.iter_symbols():
                if symbol.name.endswith(".kd"):
                    at = symbol["st_value"]
                    home = next(
                        one
                        for one in sections.values()
                        if one["sh_addr"] <= at < one["sh_addr"] + one["sh_size"]
                    )
                    data = home.data()[at - home["sh_addr"] :]
                    (entry,) = struct.unpack_from("<q", data, 16)
                    (share,), (properties,) = (
                        struct.unpack_from("<I", data),
                        struct.unpack_from("<H", data, 56),
                    )
                    self.kernels[symbol.name.removesuffix(".kd")] = Kernel(
                        at=at + entry - text["sh_addr"],
                        share=share,
                        properties=properties,
                        resources=struct.unpack_from("<II", data, 48),
                    )
        self._decoder = Decoder(self.architecture, self.code)
        self._decoded: dict[int, tuple[Execute, Instruction]] = {}

    def instruction(self, at: int) -> tuple[Execute, Instruction]:
        """Return the instruction at an offset, with the function that executes it."""
        if at not in self._decoded:
            one = self._decoder.at(at)
            self._decoded[at] = (_execute_both if one.other else EXECUTE[one.name], one)
        return self._decoded[at]


def _execute_both(w: Wave, i: Instruction) -> None:
    """Execute two operations, both of which read before either writes.

    See RDNA3 7.6, "Dual Issue VALU".
    """
    assert i.other is not None
    row = i.to - 256
    before = w.vector[row].copy()
    EXECUTE[i.name](w, i)
    after = w.vector[row].copy()
    w.vector[row] = before
    EXECUTE[i.other.name](w, i.other)
    w.vector[row] = after
