"""Report of modules, GPUs and choices."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

from jax_aiter import _choice
from jax_aiter._choice import Choice
from jax_aiter._errors import BackendError, JaxAiterError
from jax_aiter._loader import Loader, framework_api, loader
from jax_aiter._manifest import Manifest
from jax_aiter._table import OPERATIONS
from jax_aiter._tuned import Product

_PREFIX = "JAX_AITER_"


def info(
    function: Callable[..., Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> dict[str, Any]:
    """Return this package's content, the GPUs, and each operation's choice with its reason.

    With a function, such as `jax_aiter.gemm.gemm` or the gradient of a model, also
    return what would run for these arguments: the function is traced, not run, and
    arguments may be `jax.ShapeDtypeStruct`. Without a function, no module is loaded.
    The result can be written as JSON:

        version     of the package; None without kernels
        jax, ffi_api
        folder      of the kernels
        problem     reason why the manifest cannot be used, or None
        targets     gfx targets that the kernels were built for
        attention   its kernels: asm for AITER's assembly alone, common or all of
                    Composable Kernel's
        modules     by name: kind, targets, handlers, loaded
        devices     of this process: id, platform, kind, gfx target, compute units
        options     the JAX_AITER_… variables that are set
        operations  by name: backend, reason (why) and module for the lowered targets;
                    XLA computes shapes and dtypes that a kernel does not support
        choices     with a function: one entry for each different choice, with
                    operation, backend, custom call, kernel, splitk, product and reason
                    (why)
    """
    report = _report()
    if function is not None:
        report["choices"] = _choices(function, args, kwargs)
    return report


def _choices(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def note(
        choice: Choice,
        module: str,
        product: Product | None,
    ) -> None:
        entry: dict[str, Any] = {}
        for name in ("operation", "backend", "call", "kernel", "splitk", "why"):
            entry[name] = getattr(choice, name)
        entry["module"] = module or None
        entry["product"] = str(product) if product else None
        if entry not in found:
            found.append(entry)

    # The new context makes jax.jit trace functions again, which it may have traced
    # before.
    with _choice.observed(note), _TRACE(object()):
        jax.eval_shape(function, *args, **kwargs)
    return found


_TRACE = jax.make_user_context(None)


def _report() -> dict[str, Any]:
    names = sorted(name for name in os.environ if name.startswith(_PREFIX))
    report: dict[str, Any] = {
        "version": None,
        "jax": jax.__version__,
        "ffi_api": list(framework_api()),
        "folder": None,
        "problem": None,
        "targets": [],
        "attention": "asm",
        "modules": {},
        "devices": [_device(device) for device in jax.local_devices()],
        "options": {name: os.environ[name] for name in names},
        "operations": {},
    }
    try:
        kernels = loader()
    except JaxAiterError as problem:
        report["problem"] = str(problem)
        return report
    report["folder"] = str(kernels.root)
    manifest = kernels.manifest
    if manifest is None:
        report["problem"] = f"{kernels.root / 'manifest.json'} does not exist"
    else:
        report["version"] = manifest.version
        report["targets"] = list(manifest.targets)
        report["attention"] = manifest.attention
        report["modules"] = _modules(kernels, manifest)
    report["operations"] = {name: _operation(name, kernels) for name in OPERATIONS}
    return report


def _modules(kernels: Loader, manifest: Manifest) -> dict[str, Any]:
    rows = {}
    for name, module in manifest.modules.items():
        rows[name] = {
            "kind": module.kind,
            "targets": list(module.targets),
            "handlers": [handler.target for handler in module.handlers],
            "loaded": name in kernels.loaded,
        }
    return rows


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
