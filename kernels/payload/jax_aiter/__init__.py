"""AITER's kernels for JAX on AMD GPUs, and the same operations on every other platform of JAX.

    from jax_aiter.mha import flash_attn_func, flash_attn_varlen
    from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add
    from jax_aiter.gemm import gemm
    from jax_aiter.gemm_fp8 import gemm_fp8_mi350
    from jax_aiter.gemm_i8 import gemm_i8
    from jax_aiter.gemm_fp4 import gemm_fp4
    from jax_aiter.flatmm_fp8 import flatmm_fp8

Each operation uses AITER's kernel if the package has one for the GPU, else a fused
kernel of this project, else XLA's code for jax.numpy. For products, AITER's tuned
tables decide. `info()`, or `python -m jax_aiter`, reports the chosen backends and the
reasons, and `info(function, *arguments)` what would run for these arguments.
JAX_AITER_BACKEND=auto|aiter|portable|xla forces a backend, JAX_AITER_BACKEND_RMS_NORM=…
forces it for one operation; JAX_AITER_TARGET=gfx942 lowers for GPUs that this machine
does not have. Forcing an unavailable backend is an error. Importing the package loads
no kernels and starts no backend. The modules are also attributes: `jax_aiter.mha`.
"""

import importlib
from types import ModuleType

from jax_aiter._errors import (
    BackendError,
    JaxAiterError,
    ManifestError,
    ModuleLoadError,
    NotDifferentiableError,
)
from jax_aiter._export import export_checks, load_kernels
from jax_aiter._info import info
from jax_aiter.version import __version__

__all__ = ["BackendError", "JaxAiterError", "ManifestError", "ModuleLoadError"]
__all__ += ["NotDifferentiableError", "__version__"]
__all__ += ["export_checks", "info", "load_kernels"]
_MODULES = (
    "flatmm_fp8",
    "gemm",
    "gemm_fp4",
    "gemm_fp8",
    "gemm_i8",
    "layouts",
    "mha",
    "rmsnorm",
)


def __getattr__(name: str) -> ModuleType:
    """Import a module of operations at its first use, as in `import jax_aiter; jax_aiter.mha`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
