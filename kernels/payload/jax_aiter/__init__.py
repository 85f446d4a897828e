"""AITER's kernels for JAX on AMD GPUs, and the same operations wherever else JAX runs.

    from jax_aiter.mha import flash_attn_func, flash_attn_varlen
    from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add
    from jax_aiter.gemm import gemm
    from jax_aiter.gemm_fp8 import gemm_fp8_mi350
    from jax_aiter.gemm_i8 import gemm_i8
    from jax_aiter.gemm_fp4 import gemm_fp4
    from jax_aiter.flatmm_fp8 import flatmm_fp8

For each operation AITER's kernel is taken where the package has one for the GPU, else a fused kernel of this project,
else what XLA makes of jax.numpy. `info()`, or `python -m jax_aiter`, says what is taken and why;
JAX_AITER_BACKEND=auto|aiter|portable|xla forces it, for one operation as JAX_AITER_BACKEND_RMS_NORM=…;
JAX_AITER_TARGET=gfx942 lowers for GPUs that this machine does not have. What is forced and not there is an error.
Importing loads no kernels and starts no backend.
"""

import importlib

from jax_aiter._errors import BackendError, JaxAiterError, ManifestError, ModuleLoadError, NotDifferentiableError
from jax_aiter._info import info

__all__ = ["BackendError", "JaxAiterError", "ManifestError", "ModuleLoadError", "NotDifferentiableError", "info"]


def __getattr__(name: str) -> str:
    """`__version__`: of the wheel, which is made when it is packed."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return str(importlib.import_module("jax_aiter.version").__version__)
    except ModuleNotFoundError:
        return "0"
