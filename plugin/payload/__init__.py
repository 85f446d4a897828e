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
_OWN = int(re.sub(r"\D", "", __name__))
"""The ROCm major of this wheel."""

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
    # jaxlib imports the first major of its list that it can, and tries the next one after
    # an ImportError. Its lists since 0.11.2 start with ROCm 10, whose modules can be
    # loaded with ROCm 7 too; only the XLA plugin needs other libraries.
    try:
        facts = _import_from_loader("_facts")
        diagnosis = _import_from_loader("_diagnosis")
        gpus = _import_from_loader("_gpus").installed()
    except (ImportError, OSError):
        return
    candidates = facts.here(_OWN)
    if len(candidates) == 1:
        return
    usable = diagnosis.usable_majors(candidates, need_gpu=bool(gpus))
    if usable and _OWN not in usable:
        raise ImportError(
            f"{__name__} cannot be used on this machine, but"
            f" jax_rocm{usable[0]}_plugin can."
        )


def _load_rocm() -> None:
    if not _import_from_loader("_gpus").installed():
        return
    facts = _import_from_loader("_facts").here(_OWN)[_OWN]
    folder = Path(__file__).parent
    _import_from_loader("_rocm").preload(build_info.DATA, facts.layouts, folder)


def _import_from_loader(module: str) -> ModuleType:
    return importlib.import_module(f"jax_plugins.xla_rocm{_OWN}.{module}")


_refuse_to_mix()
_refuse_if_only_another_is_usable()
with contextlib.suppress(ImportError, OSError):
    _load_rocm()
