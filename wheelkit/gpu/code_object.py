"""AMDGPU code objects: processor, kernels, and the msgpack metadata that the runtime reads.

Source: LLVM, "User Guide for AMDGPU Backend": ELF header, e_flags, symbols; metadata of
code object V3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from core.errors import ElfError
from core.model import GfxTarget
from core.targets import machs, no_such_gpu
from wheelkit.elf import constants
from wheelkit.elf.constants import HEADER
from wheelkit.elf.elf_tables import ElfImage

HEAD_SIZE = HEADER.size
"""Number of bytes at the start of a code object that `code_object_problem` needs."""

_MACH = 0xFF
_ABI_V4 = (
    2  # ELFABIVERSION_AMDGPU_HSA_V4: this and later versions have two bits per feature
)
_FEATURE_SHIFT = {"xnack": 8, "sramecc": 10}
_SETTINGS = ("", "", "-", "+")  # unsupported, any, off, on
KERNEL_SUFFIX = ".kd"
"""End of the symbol of a kernel descriptor, after the name of its kernel."""


def code_object_problem(
    head: bytes, target: GfxTarget, *, may_be_open: bool = False
) -> str:
    """Return a description of the first defect in the header of a code object.

    Args:
        head: first HEAD_SIZE bytes of the code object.
        target: expected target, such as the target of the bundle entry.
        may_be_open: whether code for any setting of a feature fits too.

    Returns:
        A verb phrase such as "is code for gfx950", without a full stop; empty without a
        defect.
    """
    if len(head) < HEAD_SIZE or head[:4] != constants.MAGIC:
        return "is not an ELF file"
    ident, kind, machine, *_, flags, _, _, _, _, _, _ = HEADER.unpack(head[:HEAD_SIZE])
    if (
        machine != constants.EM_AMDGPU
        or kind != constants.ET_DYN
        or ident[7] != constants.ELFOSABI_AMDGPU_HSA
    ):
        return (
            f"is not an AMDGPU shared object (machine {machine}, type {kind}, OS ABI"
            f" {ident[7]})"
        )
    mach = flags & _MACH
    # Processors that the gfx table lacks are not compared.
    if mach != machs().get(target.processor, mach):
        return f"is code for {processor_of(head) or f'machine {mach:#x}'}"
    if ident[8] >= _ABI_V4:
        for feature, shift in _FEATURE_SHIFT.items():
            setting = _SETTINGS[flags >> shift & 3]
            named = next((f[-1] for f in target.features if f[:-1] == feature), "")
            if setting != named and (setting or not may_be_open):
                return f"has {feature}{setting or ' open'}"
    no_gpu = no_such_gpu(target)
    return f"has no use, because {no_gpu}" if no_gpu else ""


def is_code_object(head: bytes) -> bool:
    """Return whether a file with these first bytes is an AMDGPU ELF file."""
    return (
        head[:6] == constants.ELF64_LITTLE
        and int.from_bytes(head[18:20], "little") == constants.EM_AMDGPU
    )


def mach_of(head: bytes) -> int:
    """Return the EF_AMDGPU_MACH value in the first HEAD_SIZE bytes of a code object."""
    return int.from_bytes(head[48:52], "little") & _MACH


def processor_of(head: bytes) -> str:
    """Return the processor whose number is in a code object's header; empty if it is unknown."""
    mach = mach_of(head)
    return next((name for name, value in machs().items() if value == mach), "")


def read_metadata(image: ElfImage) -> Mapping[str, Any]:
    """Return the metadata of a code object.

    Raises:
        ElfError: the metadata is missing or cannot be read.
    """
    for name, kind, description in image.notes():
        if (name, kind) == (b"AMDGPU\0", constants.NT_AMDGPU_METADATA):
            try:
                value = msgspec.msgpack.decode(description)
            except msgspec.DecodeError as reason:
                raise ElfError(
                    f"Cannot read the metadata of {image.label}: {reason}."
                ) from reason
            if isinstance(value, dict):
                return value
    raise ElfError(
        f"{image.label} has no kernel metadata.", hint="Build the code object again."
    )


def kernarg_sizes(image: ElfImage) -> dict[str, int]:
    """Return the size in bytes of each kernel's arguments, by descriptor symbol without `.kd`.

    Raises:
        ElfError: the metadata is missing, cannot be read, or has an invalid entry.
    """
    kernels = read_metadata(image).get("amdhsa.kernels", ())
    with _valid_kernels(image.label):
        return {
            str(kernel[".symbol"]).removesuffix(KERNEL_SUFFIX): int(
                kernel[".kernarg_segment_size"]
            )
            for kernel in kernels
        }


def argument_counts(metadata: Mapping[str, Any], label: str) -> dict[str, int]:
    """Return the number of arguments of each kernel, without those that compilers add.

    Args:
        label: name of the code object in error messages.

    Raises:
        ElfError: the metadata has an invalid entry.
    """
    counts: dict[str, int] = {}
    with _valid_kernels(label):
        for kernel in metadata.get("amdhsa.kernels", ()):
            kinds = [
                str(argument[".value_kind"]) for argument in kernel.get(".args", ())
            ]
            given = [kind for kind in kinds if not kind.startswith("hidden_")]
            counts[str(kernel[".symbol"]).removesuffix(KERNEL_SUFFIX)] = len(given)
    return counts


@contextmanager
def _valid_kernels(label: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ElfError(
            f"{label} has invalid or incomplete kernel metadata: {error}.",
            hint="Download or build the damaged file again.",
        ) from error
