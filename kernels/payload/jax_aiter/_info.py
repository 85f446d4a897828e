"""Report of modules, GPUs and choices."""

from __future__ import annotations

import os
from typing import Any

import jax

from jax_aiter import _choice
from jax_aiter._errors import BackendError, JaxAiterError
from jax_aiter._loader import Loader, loader
from jax_aiter._probe import framework_api
from jax_aiter._table import OPERATIONS

_PREFIX = "JAX_AITER_"


def info() -> dict[str, Any]:
    """Return the content of this package, the GPUs, and the choice for each operation with its reason.

    No module is loaded. The result can be written as JSON:

        version     of the package; None without kernels
        jax, ffi_api
        folder      of the kernels
        problem     reason why the manifest cannot be used, or None
        targets     gfx targets that the kernels were built for
        modules     by name: kind, targets, handlers, loaded
        devices     of this process: id, platform, kind, gfx target, compute units
        options     the JAX_AITER_… variables that are set
        operations  by name: backend, reason (why) and module for the lowered targets; XLA computes shapes and dtypes
                    that a kernel does not support
    """
    report: dict[str, Any] = {"version": None, "jax": jax.__version__, "ffi_api": list(framework_api())}
    options = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIX)}
    rest = {"devices": [_device(device) for device in jax.local_devices()], "options": options}
    try:
        kernels = loader()
    except JaxAiterError as problem:
        return {**report, "problem": str(problem), "targets": [], "modules": {}, **rest, "operations": {}}
    manifest = kernels.manifest
    return {
        **report,
        "version": manifest.version if manifest else None,
        "folder": str(kernels.root),
        "problem": None if manifest else f"{kernels.root / 'manifest.json'} does not exist",
        "targets": list(manifest.targets) if manifest else [],
        "modules": _modules(kernels),
        **rest,
        "operations": {name: _operation(name, kernels) for name in OPERATIONS},
    }


def _modules(kernels: Loader) -> dict[str, Any]:
    if kernels.manifest is None:
        return {}
    return {
        name: {
            "kind": module.kind,
            "targets": list(module.targets),
            "handlers": [handler.target for handler in module.handlers],
            "loaded": name in kernels.loaded,
        }
        for name in kernels.manifest.load_order
        for module in (kernels.manifest.modules[name],)
    }


def _operation(name: str, kernels: Loader) -> dict[str, Any]:
    try:
        choice, module = _choice.decide(name, kernels=kernels)
    except BackendError as problem:
        return {"backend": None, "why": str(problem), "module": None}
    return {"backend": choice.backend, "why": choice.why, "module": module or None}


def _device(device: Any) -> dict[str, Any]:
    return {
        "id": device.id,
        "platform": device.platform,
        "kind": device.device_kind,
        "gfx": _choice.gfx_of(device),
        "compute_units": getattr(device, "core_count", None),
    }
