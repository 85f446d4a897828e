"""Kernel descriptors: the 64 bytes with which a GPU's command processor starts a kernel.

Source: LLVM, "User Guide for AMDGPU Backend": kernel descriptor of code object V3 and later, and kernel metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from wheelkit.gpu.limits import GpuLimits

SIZE = 64
"""Size and alignment of a descriptor in bytes."""
ENTRY_ALIGNMENT = 256
"""Alignment of a kernel's first instruction in bytes."""
MAX_WORK_GROUP = 1024
"""Number of work-items in the largest work-group."""

_LAYOUT = struct.Struct("<IIIIq20sIIIHHI")
_POINTERS, _POINTER_SIZE = ("global_buffer", "image", "sampler", "pipe", "queue"), 8
_VALUE_KINDS = (*_POINTERS, "by_value", "dynamic_shared_pointer")
"""Kinds of arguments; those that begin with `hidden_` are added by compilers for the runtime."""
_WAVE32, _RESERVED_PROPERTIES = 1 << 10, 0b111 << 7 | 0xF << 12
_SCRATCH_BUFFER, _KERNARG_POINTER = 1 << 0, 1 << 3
_WORK_ITEM_ID = 3 << 11
"""Work-item IDs in VGPRs: x, x and y, or x, y and z; 3 is undefined."""
_FLOAT_MODES = (0xC0, 0xF0)
"""FLOAT_ROUND_MODE and FLOAT_DENORM_MODE of compilers: round to nearest, keep denormals of 16 and 64 bits.

Those of 32 bits are flushed with -fgpu-flush-denormals-to-zero, as in XLA.
"""
_MODES, _WGP_MODE = 0xFFF << 20, 1 << 29
"""Bits of compute_pgm_rsrc1 from PRIV on, and ENABLE_WGP_MODE among them."""
_HIDDEN = 256
"""Size in bytes of the arguments that compilers add for the runtime since code object V5."""
_AXES = "xyz"
_ALWAYS_HIDDEN = {
    **{f"hidden_block_count_{axis}": 4 * number for number, axis in enumerate(_AXES)},
    **{f"hidden_group_size_{axis}": 12 + 2 * number for number, axis in enumerate(_AXES)},
    **{f"hidden_remainder_{axis}": 18 + 2 * number for number, axis in enumerate(_AXES)},
    **{f"hidden_global_offset_{axis}": 40 + 8 * number for number, axis in enumerate(_AXES)}, "hidden_grid_dims": 64,
}  # fmt: skip
"""Arguments that compilers add together since code object V5 -> their offsets in bytes."""
_HIDDEN_OFFSETS = {
    **_ALWAYS_HIDDEN, "hidden_tool_correlation_id": 24, "hidden_printf_buffer": 72, "hidden_hostcall_buffer": 80,
    "hidden_multigrid_sync_arg": 88, "hidden_heap_v1": 96, "hidden_default_queue": 104,
    "hidden_completion_action": 112, "hidden_dynamic_lds_size": 120, "hidden_private_base": 192,
    "hidden_shared_base": 196, "hidden_queue_ptr": 200,
}  # fmt: skip
_NO_ARGUMENT = "hidden_none"
_SPACES = {"global_buffer": ("global", "constant", "generic"), "dynamic_shared_pointer": ("local",)}
"""Kind of argument -> memories to which it may point."""
_DYNAMIC_STACK = 1 << 11
_USER_SGPRS = (4, 2, 2, 2, 2, 2, 1)
"""Registers of each bit of the properties: private segment buffer, dispatch pointer, …, private segment size."""
_USER_COUNTS = tuple(sum(n for bit, n in enumerate(_USER_SGPRS) if bits >> bit & 1) for bits in range(1 << 7))
_SIMDS = 4


class Descriptor(NamedTuple):
    """A kernel descriptor; sizes and the entry's offset are in bytes."""

    group: int
    private: int
    kernarg: int
    reserved0: int
    entry: int
    reserved1: bytes
    rsrc3: int
    rsrc1: int
    rsrc2: int
    properties: int
    preload: int
    reserved2: int

    @classmethod
    def parse(cls, data: bytes) -> Descriptor:
        """Parse the 64 bytes of a descriptor."""
        return cls._make(_LAYOUT.unpack(data))


class KernelNeeds(NamedTuple):
    """The fields of a kernel's metadata that its descriptor must match; sizes are in bytes.

    Assembly sources leave out `agprs`, which is then -1.
    """

    kernarg: int
    group: int
    private: int
    wave: int
    sgprs: int
    vgprs: int
    work_group: int
    alignment: int
    agprs: int


_FIELDS = (
    ".kernarg_segment_size", ".group_segment_fixed_size", ".private_segment_fixed_size", ".wavefront_size",
    ".sgpr_count", ".vgpr_count", ".max_flat_workgroup_size", ".kernarg_segment_align",
)  # fmt: skip
_VALUES = itemgetter(*_FIELDS)


def kernel_needs(kernel: Mapping[str, Any]) -> KernelNeeds:
    """Return the numbers in a kernel's metadata.

    Raises:
        KeyError: a required field is missing.
        ValueError: a field is not a natural number.
    """
    agprs = kernel.get(".agpr_count", 0)
    needs = KernelNeeds._make((*_VALUES(kernel), agprs))
    if set(map(type, needs)) != {int} or min(needs) < 0:
        raise ValueError("a size is not a natural number")
    return needs if ".agpr_count" in kernel else needs._replace(agprs=-1)


def metadata_problem(kernel: Mapping[str, Any], needs: KernelNeeds, *, exact: bool = False) -> str:
    """Return a description of the first defect in a kernel's metadata itself; empty without a defect.

    Args:
        exact: whether the kernarg segment has the size that compilers derive from the arguments; assembly sources, and
            code before version 1.2 of the metadata, may have other sizes.

    Raises:
        KeyError, TypeError: an argument has no offset or size, or is not a map.
    """
    end = given = 0
    hidden: dict[str, int] = {}
    for argument in kernel.get(".args", ()):
        offset, size, kind = argument[".offset"], argument[".size"], argument[".value_kind"]
        if kind not in _VALUE_KINDS:
            if kind not in _HIDDEN_OFFSETS and kind != _NO_ARGUMENT:
                return f"has an argument of the unknown kind {kind}"
            hidden[kind] = offset
        if kind in _POINTERS and (size != _POINTER_SIZE or offset % _POINTER_SIZE):
            return f"has a pointer of {size} bytes at byte {offset} as an argument"
        if argument.get(".address_space", _SPACES.get(kind, ("",))[0]) not in _SPACES.get(kind, ("",)):
            return f"has an argument of the kind {kind} in {argument['.address_space']} memory"
        if offset < end or size <= 0:
            return f"has an argument at byte {offset} that overlaps the one before"
        # The size of a type is a multiple of its alignment.
        if kind in _VALUE_KINDS:
            if exact and offset - end >= size & -size:
                return f"has {offset - end} bytes without an argument before byte {offset}"
            given = offset + size
        end = offset + size
    if end > needs.kernarg:
        return f"has arguments in {end} bytes of a kernarg segment of {needs.kernarg}"
    expected = -(-end // 4) * 4 if given == end else -(-given // 8) * 8 + _HIDDEN
    if exact and hidden.keys() != {_NO_ARGUMENT} and (text := _hidden_problem(hidden, -(-given // 8) * 8)):
        return text
    if exact and needs.kernarg != expected:
        return f"has a kernarg segment of {needs.kernarg} bytes, but its arguments need {expected}"
    if not 1 <= needs.work_group <= MAX_WORK_GROUP:
        return f"has work-groups of {needs.work_group} work-items"
    if needs.alignment & (needs.alignment - 1) or not needs.alignment:
        return f"has a kernarg segment aligned to {needs.alignment} bytes"
    return ""


def _hidden_problem(hidden: Mapping[str, int], start: int) -> str:
    """Return a description of the first argument for the runtime that is not where code reads it."""
    for kind, offset in hidden.items():
        if kind != _NO_ARGUMENT and offset != start + _HIDDEN_OFFSETS[kind]:
            return f"has {kind} at byte {offset}, but its code reads byte {start + _HIDDEN_OFFSETS[kind]}"
    missing = [kind for kind in _ALWAYS_HIDDEN if kind not in hidden]
    if missing and len(missing) < len(_ALWAYS_HIDDEN):
        return f"has no argument {missing[0]}, but others of its kind"
    return ""


def start_problem(kernel: Mapping[str, Any], found: Descriptor, limits: GpuLimits) -> str:
    """Return a description of the first setting in a descriptor with which no compiler starts a kernel."""
    users, available = _user_sgprs(found, limits)
    padded = limits.first_sgprs - (found.rsrc2 >> 7 & 0b1111).bit_count()
    if users != available and (users > available or available != padded):
        return f"names {users} user SGPRs, and gets {available}, so that the next registers have other values"
    if bool(found.properties & _SCRATCH_BUFFER) != limits.buffers:
        return f"{'does not expect' if limits.buffers else 'expects'} its scratch buffer in registers"
    if bool(found.properties & _DYNAMIC_STACK) != bool(kernel.get(".uses_dynamic_stack")):
        return "has a stack of another kind in its descriptor than in its metadata"
    modes = limits.modes | (_WGP_MODE if kernel.get(".workgroup_processor_mode") else 0)
    if found.rsrc1 & _MODES != modes:
        return f"has the modes {found.rsrc1 & _MODES:#x} in its descriptor, and compilers set {modes:#x}"
    return ""


def work_item_ids(found: Descriptor) -> int:
    """Return the number of work-item IDs that a kernel gets in addition to x."""
    return (found.rsrc2 & _WORK_ITEM_ID) >> 11


def descriptor_problem(found: Descriptor, needs: KernelNeeds, limits: GpuLimits) -> str:
    """Return a description of the first difference of a descriptor from the metadata and the GPU's limits.

    Returns:
        A verb phrase such as "needs 70000 bytes of LDS, but the GPU has 65536"; empty without a defect.
    """
    for name, actual, expected, limit in (
        ("kernarg", found.kernarg, needs.kernarg, 1 << 32),
        ("LDS", found.group, needs.group, limits.lds),
        ("scratch", found.private, needs.private, limits.scratch // needs.wave if needs.wave else 0),
    ):
        if actual != expected:
            return f"has {actual} bytes of {name} in its descriptor and {expected} in its metadata"
        if actual > limit:
            return f"needs {actual} bytes of {name}, but the GPU has {limit}"
    return _wave_problem(found, needs, limits) or _register_problem(found, needs, limits) or _bits(found, limits)


def _wave_problem(found: Descriptor, needs: KernelNeeds, limits: GpuLimits) -> str:
    wave = 32 if found.properties & _WAVE32 else 64
    if wave != needs.wave:
        return f"has a wavefront of {wave} lanes in its descriptor and {needs.wave} in its metadata"
    if wave not in limits.waves:
        return f"needs wavefronts of {wave} lanes, but the GPU has {' or '.join(map(str, limits.waves))}"
    return ""


def _register_problem(found: Descriptor, needs: KernelNeeds, limits: GpuLimits) -> str:
    narrower = needs.wave // limits.waves[0]  # twice the lanes leave half of the registers
    allocated = ((found.rsrc1 & 0x3F) + 1) * (limits.granule // narrower)
    if not needs.vgprs <= allocated <= limits.vgprs:
        return f"gets {allocated} of the {limits.vgprs} VGPRs, and needs {needs.vgprs}"
    waves = -(-needs.work_group // (needs.wave * _SIMDS))
    if allocated * waves > limits.registers // narrower:
        return f"gets {allocated} VGPRs, too many for work-groups of {needs.work_group} work-items"
    if limits.unified and needs.agprs >= 0:
        offset = ((found.rsrc3 & 0x3F) + 1) * 4
        if needs.vgprs - needs.agprs > offset or (needs.agprs and offset + needs.agprs > allocated):
            return f"has AccVGPRs from {offset} on, with {needs.vgprs} VGPRs of which {needs.agprs} are AccVGPRs"
    sgprs = ((found.rsrc1 >> 6 & 0xF) + 1) * 8 if limits.counts_sgprs else limits.sgprs
    if not needs.sgprs <= min(limits.sgprs, -(-sgprs // 16) * 16):
        return f"gets {sgprs} of the {limits.sgprs} SGPRs, and needs {needs.sgprs}"
    users, available = _user_sgprs(found, limits)
    if users > available or available > limits.user_sgprs:
        return f"starts with {users} user SGPRs, and gets {available}"
    return ""


def _user_sgprs(found: Descriptor, limits: GpuLimits) -> tuple[int, int]:
    """Return the number of user SGPRs that the properties name, and the number in compute_pgm_rsrc2."""
    users = _USER_COUNTS[found.properties & 0x7F] + (found.preload & 0x7F)
    return users, found.rsrc2 >> 1 & (2 * limits.user_sgprs - 1)


def _bits(found: Descriptor, limits: GpuLimits) -> str:
    if found.private and not found.rsrc2 & 1:
        return f"needs {found.private} bytes of scratch, but does not enable it"
    registers = (found.rsrc1, found.rsrc2, found.rsrc3)
    reserved = [register & zeros for register, zeros in zip(registers, limits.zeros, strict=True)]
    reserved += [found.reserved0, found.reserved2, found.properties & _RESERVED_PROPERTIES]
    if found.kernarg and not found.properties & _KERNARG_POINTER:
        return "has arguments, but does not get their address"
    if found.rsrc2 & _WORK_ITEM_ID == _WORK_ITEM_ID:
        return "has an undefined number of work-item IDs"
    if found.rsrc1 >> 12 & 0xFF not in _FLOAT_MODES:
        return f"has the float mode {found.rsrc1 >> 12 & 0xFF:#x}, so it rounds or flushes numbers in an unusual way"
    if any(reserved) or any(found.reserved1) or (found.preload and not limits.preloads):
        return "has reserved bits in its descriptor"
    return ""
