"""Native parts of jax for AMD GPUs: linear algebra, random numbers, sparse, RNN, Triton and the FFI interface.

jaxlib imports the extension modules of this package long before jax starts the ROCm backend. If the dynamic loader
cannot find ROCm, its libraries are therefore loaded here. Failures are reported once, later, by the
`jax_plugins.xla_rocm…` package of the same ROCm major.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from pathlib import Path

from . import build_info

__version__ = build_info.VERSION

__all__ = ["__version__", "build_info"]


def _refuse_to_mix() -> None:
    # jax imports every plugin that is installed; with two, both copies of HIP would end up in one process.
    for name in tuple(sys.modules):
        native = re.fullmatch(r"(jax_rocm[0-9]+_plugin)\.(?:_\w+|rocm_plugin_extension)", name)
        if native and native[1] != __name__:
            raise ImportError(f"{native[1]} is loaded already, and two ROCm majors do not mix in one process.")


def _load_rocm() -> None:
    loader = re.sub(r"jax_rocm([0-9]+)_plugin", r"jax_plugins.xla_rocm\1", __name__)
    gpus = importlib.import_module(f"{loader}._gpus")
    rocm = importlib.import_module(f"{loader}._rocm")
    if gpus.installed():
        origin = Path(__file__).parent
        rocm.preload(build_info.needed(), rocm.layouts(), runpath=build_info.RUNPATH, origin=origin)


_refuse_to_mix()
with contextlib.suppress(ImportError, OSError):
    _load_rocm()
