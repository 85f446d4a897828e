"""FFI targets of the kernel modules, and the targets of each operation.

kernels/modules.toml declares how a target is called; a test compares both tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

AUTO = "auto"
AITER = "aiter"
PORTABLE = "portable"
XLA = "xla"
BACKENDS = (AITER, PORTABLE, XLA)
"""In order of preference.

AITER's kernels, the fused kernels of this project, and XLA's code for jax.numpy.
"""


@dataclass(frozen=True, slots=True)
class FfiTarget:
    """One custom call.

    Attributes:
        name: name that is registered with XLA for the platform ROCM.
        symbol: symbol of the handler in its library.
        backend: AITER or PORTABLE.
        args: names of the operands, in order.
        results: names of the results, in order.
        attrs: names of the attributes.
    """

    name: str
    symbol: str
    backend: str
    args: tuple[str, ...]
    results: tuple[str, ...]
    attrs: tuple[str, ...] = ()


def _target(
    name: str, backend: str, args: str, results: str, attrs: str = ""
) -> FfiTarget:
    symbol = "".join(part.capitalize() for part in name.split("_"))
    return FfiTarget(
        name,
        symbol,
        backend,
        tuple(args.split()),
        tuple(results.split()),
        tuple(attrs.split()),
    )


GEMM_BF16 = _target(
    "jax_aiter_gemm_bf16", AITER, "a b bias", "out semaphore", "splitk kernel"
)
GEMM_I8 = _target(
    "jax_aiter_gemm_i8", AITER, "a b a_scale b_scale bias", "out", "splitk kernel"
)
GEMM_FP8_MI350 = _target(
    "jax_aiter_gemm_fp8_mi350", AITER, "xq wq x_scale w_scale", "out"
)
GEMM_FP4 = _target(
    "jax_aiter_gemm_fp4",
    AITER,
    "a b a_scale b_scale",
    "out",
    "splitk kernel bpreshuffle",
)
FLATMM_FP8 = _target("jax_aiter_flatmm_fp8", AITER, "xq wq x_scale w_scale", "out")
MHA_FWD_ASM = _target(
    "jax_aiter_mha_fwd_asm", AITER, "q k v cu_q cu_k", "out lse", "scale causal"
)
_MHA = "scale dropout window_left window_right longest_query longest_key"
MHA_FWD = _target(
    "jax_aiter_mha_fwd", AITER, "q k v bias slopes cu_q cu_k seed", "out lse", _MHA
)
MHA_BWD = _target(
    "jax_aiter_mha_bwd",
    AITER,
    "dout q k v out lse bias slopes cu_q cu_k seed",
    "dq dk dv dq_sum d",
    _MHA,
)
MHA_BWD_ASM = _target(
    "jax_aiter_mha_bwd_asm",
    AITER,
    "dout q k v lse d cu_q cu_k",
    "dq_sum dk dv",
    "scale window_left window_right longest_query longest_key",
)
CK_RMS_NORM = _target(
    "jax_aiter_ck_rms_norm", AITER, "x residual gamma", "y sum", "epsilon"
)
RMS_NORM = _target("jax_aiter_rms_norm", PORTABLE, "x gamma", "y rstd", "epsilon")
RMS_NORM_WITH_ADD = _target(
    "jax_aiter_rms_norm_with_add", PORTABLE, "x residual gamma", "y sum rstd", "epsilon"
)
RMS_NORM_BWD = _target(
    "jax_aiter_rms_norm_bwd", PORTABLE, "dy x gamma rstd", "dx dgamma_partial"
)

TARGETS: Mapping[str, FfiTarget] = MappingProxyType(
    {
        target.name: target
        for target in (
            *(MHA_FWD_ASM, MHA_FWD, MHA_BWD_ASM, MHA_BWD),
            *(GEMM_BF16, GEMM_I8, GEMM_FP8_MI350, GEMM_FP4, FLATMM_FP8),
            *(CK_RMS_NORM, RMS_NORM, RMS_NORM_WITH_ADD, RMS_NORM_BWD),
        )
    }
)

OPERATIONS: Mapping[str, tuple[FfiTarget, ...]] = MappingProxyType(
    {
        "flash_attn": (MHA_FWD_ASM, MHA_FWD),
        "flash_attn_bwd": (MHA_BWD_ASM, MHA_BWD),
        "rms_norm": (CK_RMS_NORM, RMS_NORM, RMS_NORM_BWD),
        "rms_norm_with_add": (CK_RMS_NORM, RMS_NORM_WITH_ADD, RMS_NORM_BWD),
        "gemm": (GEMM_BF16,),
        "gemm_fp8_mi350": (GEMM_FP8_MI350,),
        "gemm_i8": (GEMM_I8,),
        "gemm_fp4": (GEMM_FP4,),
        "flatmm_fp8": (FLATMM_FP8,),
    }
)
"""Operation, as named in options -> custom calls that can implement it, best first."""

_COVERED = {
    "gfx9-generic": "gfx900 gfx906 gfx90c",
    "gfx9-4-generic": "gfx942 gfx950",
    "gfx10-1-generic": "gfx1010 gfx1011 gfx1012",
    "gfx10-3-generic": "gfx1030 gfx1031 gfx1032 gfx1033 gfx1034 gfx1035 gfx1036",
    "gfx11-generic": (
        "gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153"
    ),
    "gfx12-generic": "gfx1200 gfx1201",
    "gfx12-5-generic": "gfx1250",
}
GENERICS: Mapping[str, frozenset[str]] = MappingProxyType(
    {name: frozenset(text.split()) for name, text in _COVERED.items()}
)
"""Generic targets and the processors that run their code, according to LLVM."""
PROCESSORS = frozenset({"gfx908", "gfx90a"}).union(*GENERICS.values())
"""All processors; these two have no generic target."""
