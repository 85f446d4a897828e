"""Choice of the ROCm major for a process if packages of several majors are installed."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from types import ModuleType

from . import _gpus


def own_major(package: str) -> int:
    """Return the ROCm major in a package name such as `jax_plugins.xla_rocm7`.

    Raises:
        ImportError: the package has another name, so it was not installed from a wheel.
    """
    name = re.fullmatch(r"(?:.*\.)?xla_rocm([0-9]+)", package)
    if name is None:
        raise ImportError(
            f"{package} is not named like jax_plugins.xla_rocm7; install it from its wheel."
        )
    return int(name[1])


def acting_major(own: int, *, need_gpu: bool) -> int:
    """Choose the ROCm major that registers its backend, or that reports the problems.

    The first choice is a usable major whose extension modules jaxlib has already
    loaded, because one process cannot use two majors of HIP. The second choice is the
    highest usable major. If none is usable, the loaded or else the highest major
    reports.
    """
    diagnoses = _diagnoses(own)
    if len(diagnoses) == 1:
        return own
    loaded = _loaded()
    ranked = sorted(diagnoses, key=lambda major: (major in loaded, major), reverse=True)
    for major in ranked:
        if not diagnoses[major].reasons(need_gpu=need_gpu):
            return major
    return ranked[0]


def usable_instead(own: int) -> int:
    """Return the usable ROCm major that replaces `own`; 0 if `own` is usable itself or no major is.

    jaxlib imports the extension modules of the first major of its list that can be
    imported. Its lists since 0.11.2 start with ROCm 10, whose modules need the same
    libraries as those of ROCm 7 and can be loaded with either ROCm; only the XLA plugin
    needs other libraries.
    """
    diagnoses = _diagnoses(own)
    if len(diagnoses) == 1:
        return 0
    need_gpu = bool(_gpus.installed())
    if not diagnoses.pop(own).reasons(need_gpu=need_gpu):
        return 0
    for major in sorted(diagnoses, reverse=True):
        if not diagnoses[major].reasons(need_gpu=need_gpu):
            return major
    return 0


def _diagnoses(own: int) -> dict[int, ModuleType]:
    """Import the diagnosis of each installed major of this project."""
    diagnoses = {own: importlib.import_module(f"{__package__}._diagnose")}
    for major in _installed() - {own}:
        try:
            diagnoses[major] = importlib.import_module(
                f"jax_plugins.xla_rocm{major}._diagnose"
            )
        except (
            ImportError
        ):  # another project's package of that name, which registers by itself
            continue
    return diagnoses


def _loaded() -> set[int]:
    """Return the majors whose extension modules this process has loaded."""
    native = re.compile(r"jax_rocm([0-9]+)_plugin\.(?:_\w+|rocm_plugin_extension)")
    matches = [native.fullmatch(name) for name in tuple(sys.modules)]
    return {int(match[1]) for match in matches if match}


def _installed() -> set[int]:
    namespace = sys.modules.get("jax_plugins")
    names = (
        (info.name for info in pkgutil.iter_modules(namespace.__path__))
        if namespace
        else ()
    )
    return {
        int(m[1]) for name in names if (m := re.fullmatch(r"xla_rocm([0-9]+)", name))
    }
