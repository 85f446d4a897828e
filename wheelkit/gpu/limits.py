"""Limits of each GPU architecture, with which kernels are compared.

Sources: LLVM, "User Guide for AMDGPU Backend" (kernel descriptor, compute_pgm_rsrc1 to 3), and LLVM's AMDGPU target:
register counts and granules in Utils/AMDGPUBaseInfo.cpp, LDS sizes in AMDGPU.td, and COMPUTE_TMPRING_SIZE.WAVESIZE in
GCNSubtarget.h; opcodes in VOP3Instructions.td and VOP3PInstructions.td.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLimits:
    """Limits of one architecture, and the bits of kernel descriptors that must be 0.

    Attributes:
        waves: supported wavefront sizes.
        vgprs: vector registers that a work-item can address, AccVGPRs of a unified register file included.
        registers: vector registers of one SIMD unit, per lane of a wavefront with `waves[0]` lanes.
        granule: number of registers in one block of GRANULATED_WORKITEM_VGPR_COUNT, with `waves[0]` lanes.
        unified: whether AccVGPRs follow the vector registers in one file, at ACCUM_OFFSET.
        sgprs: scalar registers of a wavefront; the special ones are included.
        counts_sgprs: whether the descriptor has the number of scalar registers.
        lds: local memory of a work-group in bytes.
        scratch: scratch memory of a wavefront in bytes.
        user_sgprs: scalar registers that can be set up before a kernel starts.
        first_sgprs: number of registers that kernels may start with, unnamed user SGPRs included; 0 if all have a name.
        preloads: whether kernel arguments can be preloaded.
        end: machine code of s_endpgm.
        modes: bits of compute_pgm_rsrc1 from ENABLE_DX10_CLAMP on that compilers set in each kernel.
        unpack: second half of the first word of v_bfe_u32, if the work-item IDs x, y and z are packed into v0.
        foreign: patterns of instructions that similar GPUs have, and this one lacks: of the fourth byte, which look
            back at the third one.
        buffers: whether compilers set up the scratch buffer in registers; other GPUs know its address.
        zeros: reserved bits of compute_pgm_rsrc1, 2 and 3; compilers before LLVM 21 set the reserved number of scalar
            registers of gfx10 and later, which GPUs ignore.
    """

    waves: tuple[int, ...]
    vgprs: int
    registers: int
    granule: int
    unified: bool = False
    sgprs: int
    counts_sgprs: bool = False
    lds: int = 64 << 10
    scratch: int
    user_sgprs: int = 16
    first_sgprs: int = 0
    preloads: bool = False
    end: bytes = b"\x00\x00\x81\xbf"
    modes: int
    unpack: bytes = b""
    foreign: tuple[bytes, ...] = ()
    buffers: bool = False
    zeros: tuple[int, int, int]


_RSRC1 = 0b11 << 10 | 1 << 20 | 1 << 22 | 1 << 24 | 1 << 25 | 1 << 28  # PRIORITY, PRIV, DEBUG_MODE, BULKY, CDBG_USER
_RSRC2 = 0x7FF << 13  # exceptions that CP sets up, GRANULATED_LDS_SIZE
_TRAP = 1 << 6 | 1 << 31  # before gfx12: ENABLE_TRAP_HANDLER, reserved
_CLAMP_IEEE = 1 << 21 | 1 << 23  # ENABLE_DX10_CLAMP, ENABLE_IEEE_MODE
_ORDERED = 1 << 30 | 1 << 31  # MEM_ORDERED, FWD_PROGRESS

# v_bitop3 to v_cvt_scalef32_*, v_cvt_sr_*, v_minimum3 and v_maximum3; and new sizes of v_mfma.
_NEW_IN_GFX950 = rb"\xd2(?<=[\x33-\x6a\xa6-\xa9].)", rb"\xd3(?<=[\xac-\xae\xd4\xd5].)"
# v_lshl_add_u64; v_cvt_pk_fp8_f32 to v_cvt_sr_bf8_f32.
_NEW_IN_GFX940 = rb"\xd2(?<=[\x08\xa2-\xa5].)"
# v_mfma with xf32.
_ONLY_IN_GFX942 = rb"\xd3(?<=[\xbe\xbf].)"

_GFX9 = GpuLimits(
    waves=(64,), vgprs=256, registers=256, granule=4, sgprs=112, counts_sgprs=True, scratch=1024 * 0x1FFF,
    buffers=True, foreign=(*_NEW_IN_GFX950, _NEW_IN_GFX940), modes=_CLAMP_IEEE,
    zeros=(_RSRC1 | 0b11101 << 27, _RSRC2 | _TRAP, 0xFFFFFFFF),
)  # fmt: skip
_GFX90A = replace(
    _GFX9, vgprs=512, registers=512, granule=8, unified=True, preloads=True, unpack=b"\xc8\xd1",
    zeros=(*_GFX9.zeros[:2], 0x3FF << 6 | 0x7FFF << 17),
)  # fmt: skip
_GFX940 = replace(_GFX90A, buffers=False, foreign=_NEW_IN_GFX950)
_GFX10 = GpuLimits(
    waves=(32, 64), vgprs=256, registers=1024, granule=8, sgprs=128, scratch=1024 * 0x1FFF,
    buffers=True, modes=_CLAMP_IEEE | _ORDERED, zeros=(_RSRC1 | 1 << 27, _RSRC2 | _TRAP, 0xFFFFFFF0),
)  # fmt: skip
_GFX11 = replace(
    _GFX10, registers=1536, scratch=256 * 0x7FFF, end=b"\x00\x00\xb0\xbf", unpack=b"\x10\xd6", first_sgprs=16,
    buffers=False, zeros=(*_GFX10.zeros[:2], 0x1FFFFF << 10),
)  # fmt: skip
_GFX12 = replace(
    _GFX11, scratch=256 * 0x3FFFF, modes=_ORDERED, first_sgprs=0,
    zeros=(_RSRC1 | 1 << 27 | 1 << 23, _RSRC2, 0xF | 1 << 12 | 0x1FFFF << 14),
)  # fmt: skip
_GFX125 = replace(
    _GFX12, waves=(32,), vgprs=1024, registers=1024, granule=16, lds=320 << 10, user_sgprs=32, preloads=True,
    zeros=(_RSRC1 | 1 << 23, _RSRC2, 0xF | 1 << 12 | 0x1FF << 22),
)  # fmt: skip

_ARCHITECTURES = (
    (r"gfx950", replace(_GFX940, lds=160 << 10, foreign=(_ONLY_IN_GFX942,))),
    (r"gfx94[0-2]", _GFX940),
    (r"gfx9-4-generic", replace(_GFX940, foreign=(*_NEW_IN_GFX950, _ONLY_IN_GFX942))),
    (r"gfx90a", _GFX90A),
    (r"gfx90[024689c]|gfx9-generic", _GFX9),
    (r"gfx10[13]\w|gfx10-[13]-generic", _GFX10),
    (r"gfx11[05]\w|gfx11-generic", _GFX11),
    (r"gfx120[01]|gfx12-generic", _GFX12),
    (r"gfx125[01]|gfx12-5-generic", _GFX125),
)
"""Pattern of processors -> limits; the first match counts."""


@functools.cache
def limits_of(processor: str) -> GpuLimits | None:
    """Return the limits of a processor; None for an unknown one, whose kernels cannot be compared."""
    return next((limits for pattern, limits in _ARCHITECTURES if re.fullmatch(pattern, processor)), None)
