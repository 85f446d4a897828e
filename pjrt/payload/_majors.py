"""Choice of the ROCm major for a process if packages of several majors are installed."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys


def own_major(package: str) -> int:
    """Return the ROCm major in a package name such as `jax_plugins.xla_rocm7`.

    Raises:
        ImportError: the package has another name, so it was not installed from a wheel.
    """
    name = re.fullmatch(r"(?:.*\.)?xla_rocm([0-9]+)", package)
    if name is None:
        raise ImportError(f"{package} is not named like jax_plugins.xla_rocm7; install it from its wheel.")
    return int(name[1])


def acting_major(own: int, *, need_gpu: bool) -> int:
    """Choose the ROCm major that registers its backend, or that reports the problems.

    The first choice is the major whose extension modules jaxlib has already loaded, because one process cannot use two
    majors of HIP. The second choice is the highest usable major, the last choice the highest installed major.
    """
    if _installed() <= {own}:
        return own
    native = re.compile(r"jax_rocm([0-9]+)_plugin\.(?:_\w+|rocm_plugin_extension)")
    loaded = {int(match[1]) for name in tuple(sys.modules) if (match := native.fullmatch(name))}
    ours = {own: importlib.import_module(f"{__package__}._diagnose")}
    for major in _installed() - ours.keys():
        try:
            ours[major] = importlib.import_module(f"jax_plugins.xla_rocm{major}._diagnose")
        except ImportError:  # another project's package of that name, which registers by itself
            continue
    ranked = sorted(ours, reverse=True)
    for major in ranked:
        if major in loaded:
            return major
    for major in ranked:
        if not ours[major].reasons(need_gpu=need_gpu):
            return major
    return ranked[0]


def _installed() -> set[int]:
    namespace = sys.modules.get("jax_plugins")
    names = (info.name for info in pkgutil.iter_modules(namespace.__path__)) if namespace else ()
    return {int(m[1]) for name in names if (m := re.fullmatch(r"xla_rocm([0-9]+)", name))}
