"""Native parts of jax for AMD GPUs.

Linear algebra, random numbers, sparse, RNN, Triton and the FFI interface.

jaxlib imports the extension modules of this package long before jax starts the ROCm
backend. This package therefore loads the ROCm libraries that the dynamic loader would
not find. Failures are reported once, later, by the `jax_plugins.xla_rocm…` package of
the same ROCm major.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

# A file that the wheels share: pjrt/payload/build_info.py.
build_info = importlib.import_module(f"{__name__}.build_info")
__version__ = build_info.VERSION

__all__ = ["__version__", "build_info"]


def _refuse_to_mix() -> None:
    # jax imports every installed plugin; two plugins would load two copies of HIP into
    # one process.
    for name in tuple(sys.modules):
        native = re.fullmatch(
            r"(jax_rocm[0-9]+_plugin)\.(?:_\w+|rocm_plugin_extension)", name
        )
        if native and native[1] != __name__:
            raise ImportError(
                f"{native[1]} is already loaded; one process cannot use two ROCm majors."
            )


def _refuse_if_only_another_is_usable() -> None:
    # After an ImportError, jaxlib tries the next ROCm major of its list.
    try:
        majors = _import_from_loader("_majors")
    except (ImportError, OSError):
        return
    other = majors.usable_instead(majors.own_major(majors.__package__))
    if other:
        raise ImportError(
            f"{__name__} cannot be used on this machine, but jax_rocm{other}_plugin can."
        )


def _load_rocm() -> None:
    gpus = _import_from_loader("_gpus")
    rocm = _import_from_loader("_rocm")
    if gpus.installed():
        origin = Path(__file__).parent
        rocm.preload(
            build_info.needed(),
            rocm.layouts(),
            runpath=build_info.RUNPATH,
            origin=origin,
        )


def _import_from_loader(module: str) -> ModuleType:
    loader = re.sub(r"jax_rocm([0-9]+)_plugin", r"jax_plugins.xla_rocm\1", __name__)
    return importlib.import_module(f"{loader}.{module}")


_refuse_to_mix()
_refuse_if_only_another_is_usable()
with contextlib.suppress(ImportError, OSError):
    _load_rocm()
