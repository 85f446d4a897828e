"""AMDGPU code objects: whether one is for the processor that its bundle entry names, and which kernels it has.

Source: LLVM, "User Guide for AMDGPU Backend", ELF code object: header, e_flags, symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.errors import ElfError
from core.model import GfxTarget
from wheelkit.elf import reader
from wheelkit.elf.reader import HEADER, Image

HEAD_SIZE = HEADER.size
"""Bytes of a code object that `problem` wants."""

_EM_AMDGPU, _ET_DYN, _OSABI_HSA = 224, 3, 64
_MACH = 0xFF
_ABI_V4 = 2  # ELFABIVERSION_AMDGPU_HSA_V4: from here on two bits per feature
_FEATURE_SHIFT = {"xnack": 8, "sramecc": 10}
_SETTINGS = ("", "", "-", "+")  # unsupported, any, off, on
_KERNEL = ".kd"


def problem(head: bytes, target: GfxTarget, machs: Mapping[str, int]) -> str:
    """Tell what is wrong with a code object, or nothing.

    Args:
        head: its first HEAD_SIZE bytes.
        target: what its bundle entry names.
        machs: processor -> EF_AMDGPU_MACH value; processors without a value are not compared.

    Returns:
        One clause without a full stop, or an empty string.
    """
    if len(head) < HEAD_SIZE or head[:4] != b"\x7fELF":
        return "is not an ELF file"
    ident, kind, machine, *_, flags, _, _, _, _, _, _ = HEADER.unpack(head[:HEAD_SIZE])
    if machine != _EM_AMDGPU or kind != _ET_DYN or ident[7] != _OSABI_HSA:
        return f"is not an AMDGPU shared object (machine {machine}, type {kind}, OS ABI {ident[7]})"
    mach = flags & _MACH
    expected = machs.get(target.processor, mach)
    if mach != expected:
        other = next((name for name, value in machs.items() if value == mach), f"machine {mach:#x}")
        return f"is code for {other}"
    if ident[8] >= _ABI_V4:
        for feature, shift in _FEATURE_SHIFT.items():
            setting = _SETTINGS[flags >> shift & 3]
            named = next((f[-1] for f in target.features if f[:-1] == feature), "")
            if setting != named:
                return f"has {feature}{setting or ' open'}"
    return ""


def is_code_object(head: bytes) -> bool:
    """Whether a file that begins like this is an AMDGPU ELF file."""
    return head[:6] == b"\x7fELF\x02\x01" and int.from_bytes(head[18:20], "little") == _EM_AMDGPU


def mach_of(head: bytes) -> int:
    """The EF_AMDGPU_MACH value in the first HEAD_SIZE bytes of a code object."""
    return int.from_bytes(head[48:52], "little") & _MACH


def kernels(code: bytes, label: str) -> Iterator[str]:
    """Names of the kernels of a code object: its dynamic symbols `<name>.kd`, kernel descriptors.

    Raises:
        ElfError: not a code object, or a damaged one.
    """
    image = Image.parse(code, label)
    table = next((s for s in image.sections if s.type == reader.SHT_DYNSYM), None)
    if table is None or table.link >= len(image.sections):
        raise ElfError(f"{label} has no dynamic symbols.", hint="It is damaged.")
    strings = image.contents(image.sections[table.link])
    for symbol in image.symbols(table):
        if symbol.section and symbol.name:
            name = reader.text(strings, symbol.name, label)
            if name.endswith(_KERNEL):
                yield name.removesuffix(_KERNEL)
