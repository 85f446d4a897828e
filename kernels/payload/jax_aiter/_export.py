"""Programs of jax.export that call kernels: their export and their use in another process."""

from __future__ import annotations

from jax import export

from jax_aiter import _choice, _loader
from jax_aiter._table import TARGETS


def export_checks() -> list[export.DisabledSafetyCheck]:
    """Return `disabled_checks` of jax.export.export, one for each custom call of this package.

    JAX exports custom calls of other packages only if they are named; it has no
    interface to register one as stable. Names and attributes of this package's calls
    change only with its major version.
    """
    return [export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]


def load_kernels() -> tuple[str, ...]:
    """Load all modules that have code for the GPUs, and return the names of the loaded ones.

    Tracing loads the modules that it needs, but a deserialised program is not traced.

    Raises:
        ModuleLoadError: a module cannot be loaded.
    """
    kernels = _loader.loader()
    gpus = _choice.wanted_gpus().gfx
    modules = kernels.manifest.modules.values() if kernels.manifest else ()
    for module in modules:
        if any(map(module.runs_on, gpus)):
            kernels.ensure(module.name)
    return kernels.loaded
