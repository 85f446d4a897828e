"""Reasons why ROCm cannot be used, each with its remedy.

This module neither imports jax nor starts HIP.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import shlex
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from . import _gpus, _majors, _rocm, _versions, build_info

LIBRARY = Path(__file__).with_name("xla_rocm_plugin.so")
EARLY = ("_linalg", "_prng", "_solver", "_hybrid", "_sparse")
"""Extension modules whose handlers are collected when jax is imported."""
SMALL_SHM_MIB = 64
"""Docker's default size of /dev/shm in MiB, which is too small for RCCL."""


def reasons(*, need_gpu: bool = True) -> tuple[str, ...]:
    """Return the reasons why ROCm cannot be used, each with its remedy.

    Besides a missing GPU, only packages that do not fit are reported: they matter
    wherever the environment is copied.
    """
    gpus, nothing = _find_gpus() if need_gpu else ((), "")
    packages = (_own_file(), _jaxlib(), _plugin())
    machine = () if nothing else (_targets(gpus), _libraries())
    return tuple(filter(None, (nothing, *packages, *machine)))


def sentence(found: Iterable[str]) -> str:
    """Return the common text of the warning and of the error."""
    return (
        f"{_distribution('pjrt')} {build_info.VERSION} cannot use ROCm:"
        f" {' Also: '.join(found)}"
    )


def advice() -> tuple[str, ...]:
    """Return problems that do not prevent ROCm from starting but cause failures later."""
    gpus, _ = _find_gpus()
    remarks = []
    if len(gpus) > 1 and (size := _gpus.shm_mib()) <= SMALL_SHM_MIB:
        remarks.append(
            f"There are {len(gpus)} GPUs, but {_gpus.SHM} has only {size:.0f} MiB,"
            " which may be too small for RCCL; a container needs --shm-size=64g."
        )
    poor = sorted({gpu.name for gpu in gpus if not _can_use(gpu)})
    if poor:
        remarks.append(
            f"GPU {', '.join(poor)} cannot run this wheel; hide such GPUs with"
            " HIP_VISIBLE_DEVICES."
        )
    lame = _lame_modules()
    if lame:
        remarks.append(
            f"Parts of jax, such as jax.numpy.linalg, will not work on the GPU: {lame}"
            f" {_where_to_get_rocm()}"
        )
    return tuple(remarks)


def _lame_modules() -> str:
    # jaxlib silently skips a module that cannot be imported.
    lacking = _rocm.missing(
        importlib.import_module(f"{_plugin_name()}.build_info").needed(),
        _rocm.layouts(),
    )
    if lacking:
        return f"{_be(lacking)} missing."
    for name in EARLY:
        try:
            importlib.import_module(f"{_plugin_name()}.{name}")
        except ImportError as error:
            return f"{_plugin_name()}.{name} cannot be imported ({error})."
    return ""


def _find_gpus() -> tuple[tuple[_gpus.Gpu, ...], str]:
    there = _gpus.installed()
    if not there:
        return (
            (),
            (
                f"no AMD GPU was found (looked at {_gpus.NODES} and {_gpus.DXG}). Load"
                " the amdgpu driver; a container needs --device=/dev/kfd"
                " --device=/dev/dri."
            ),
        )
    names = ", ".join(sorted({gpu.name or "an AMD GPU" for gpu in there}))
    if there != (_gpus.Gpu(),) and not _gpus.may_open():
        return (
            (),
            (
                f"{names} was found, but {_gpus.KFD}"
                f" {'may not be opened' if _gpus.KFD.exists() else 'does not exist'}."
                " Join the groups render and video (sudo usermod -aG render,video"
                " $USER, then log in again); a container needs --device=/dev/kfd"
                " --device=/dev/dri."
            ),
        )
    gpus, mask = _gpus.visible(there)
    if not gpus:
        return (
            (),
            (
                f"{names} was found, but is hidden by {mask}. Unset"
                f" {mask.partition('=')[0]}."
            ),
        )
    return gpus, ""


def _own_file() -> str:
    return "" if LIBRARY.is_file() else f"{LIBRARY} is missing. {_reinstall('pjrt')}"


def _jaxlib() -> str:
    try:
        version: str = importlib.import_module("jaxlib.version").__version__
    except ImportError as error:
        return f"jaxlib cannot be imported ({error}). {_reinstall()}"
    if _versions.accepts(build_info.REQUIRES_JAXLIB, version):
        return ""
    return (
        f"it requires jaxlib {build_info.REQUIRES_JAXLIB}, but jaxlib {version} is"
        f" installed. {_reinstall()}"
    )


def _plugin() -> str:
    name = _plugin_name()
    if find_spec(name) is None:
        return f"{_distribution('plugin')} is not installed. {_reinstall()}"
    try:
        version: str = importlib.import_module(f"{name}.version").__version__
    except ImportError as error:
        return (
            f"{_distribution('plugin')} cannot be imported ({error})."
            f" {_reinstall('plugin')}"
        )
    if version == build_info.VERSION:
        return ""
    return (
        f"{_distribution('plugin')} {version} is installed, but the versions must be"
        f" equal. {_reinstall()}"
    )


def _targets(gpus: Sequence[_gpus.Gpu]) -> str:
    if not gpus or any(map(_can_use, gpus)):
        return ""
    names = sorted({gpu.name for gpu in gpus})
    if not any(_xla_accepts(gpu) for gpu in gpus):
        accepted = ", ".join(build_info.XLA_TARGETS)
        return (
            f"XLA of jax {build_info.JAX_VERSION} does not accept GPU"
            f" {', '.join(names)}. It accepts {accepted}."
        )
    return (
        f"GPU {', '.join(names)} is not among this wheel's targets"
        f" ({', '.join(build_info.TARGETS)}). Install a wheel set for this GPU, or"
        " build one: python3 build/ci_build release --local"
        f" --targets={','.join(names)}."
    )


def _can_use(gpu: _gpus.Gpu) -> bool:
    # A GPU without a known name is assumed to be usable.
    covered = _gpus.has_code(gpu.name, build_info.TARGETS, build_info.COVERS)
    return not gpu.name or (covered and _xla_accepts(gpu))


def _xla_accepts(gpu: _gpus.Gpu) -> bool:
    return not build_info.XLA_TARGETS or gpu.name in build_info.XLA_TARGETS


def _libraries() -> str:
    where = _rocm.layouts()
    lacking = _rocm.missing(build_info.needed(), where)
    if not lacking:
        return ""
    others = [str(path) for name in lacking for path in _rocm.relatives(name, where)]
    others_found = f" Another ROCm release has {', '.join(others)}." if others else ""
    return (
        f"{_be(lacking)} missing; searched: {_places(where)}.{others_found}"
        f" {_where_to_get_rocm()}"
    )


def not_loadable(error: Exception, where: Sequence[_rocm.Layout]) -> str:
    """Return the message about a ROCm with which the plugin cannot be loaded."""
    return (
        f"it could not be loaded: {error}; searched for ROCm: {_places(where)}."
        f" {_where_to_get_rocm()}"
    )


def _places(where: Sequence[_rocm.Layout]) -> str:
    return "; ".join([*map(str, where), "the system's own folders"])


def _be(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _where_to_get_rocm() -> str:
    return (
        f"Install ROCm {build_info.ROCM_VERSION}, for example with pip install"
        f" 'rocm[libraries]=={build_info.ROCM_VERSION.partition('.')[0]}.*' from AMD's"
        " package index for your GPU, or export ROCM_PATH=/path/to/rocm."
    )


def _reinstall(damaged: str = "") -> str:
    """Return the command that installs the packages which do not fit this one.

    `ci_build doctor` prints it too.

    Args:
        damaged: part whose files are replaced if its version fits.
    """
    wanted = _versions.fitting(build_info.DATA, _majors.own_major(str(__package__)))
    have: dict[str, str] = {}
    for name in wanted:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            have[name] = importlib.metadata.version(name)
    name = _distribution(damaged)
    options: tuple[str, ...] = ()
    if damaged and have.get(name) == build_info.VERSION:
        wanted = {name: wanted[name]}
        have = {}
        options = ("--force-reinstall", "--no-deps")
    words = (*options, *_versions.install_words(wanted, have))
    where = f" ({_versions.INDEX} is the index that {_distribution('pjrt')} came from)"
    return (
        "Run: pip install"
        f" {shlex.join(words)}{where if _versions.INDEX in words else ''}."
    )


def _plugin_name() -> str:
    return f"jax_rocm{_majors.own_major(str(__package__))}_plugin"


def _distribution(part: str) -> str:
    return f"jax-rocm{_majors.own_major(str(__package__))}-{part}"
