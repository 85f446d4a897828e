"""Registration with jax 0.7 to 0.12; the only module of this package that imports jax."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, NoReturn

import jax
from jax._src import xla_bridge
from jax._src.lib import xla_client
from jaxlib import plugin_support

from . import _diagnosis, _rocm
from ._facts import Facts
from ._problems import Problem, problem

EARLY = ("_linalg", "_prng", "_solver", "_hybrid", "_sparse")
"""Extension modules whose handlers are collected when jax is imported."""
PRIORITY = 500
"""Priority of the platform.

Above cpu (0) and tpu (300), and equal to that of jax's own GPU plugins.
"""


def asked_platforms() -> frozenset[str]:
    """Return the platforms that the user asked for (JAX_PLATFORMS or jax.config).

    Empty if jax may choose.
    """
    platforms = (
        getattr(jax.config, "jax_platforms", None)
        or getattr(jax.config, "jax_platform_name", None)
        or ""
    )
    return frozenset(
        name.strip().lower() for name in platforms.split(",") if name.strip()
    )


def is_taken() -> bool:
    """Return whether the rocm platform is already registered."""
    return "rocm" in xla_bridge._backend_factories


def start(facts: Facts) -> Problem | None:
    """Load ROCm and the XLA plugin, and register the plugin with jax.

    Returns:
        The problem of a failure; None on success.
    """
    plugin = f"jax_rocm{facts.major}_plugin"
    library = facts.library
    try:
        _rocm.set_variables(facts.layouts)
        _rocm.preload(facts.info, facts.layouts, library.parent)
        extension = importlib.import_module(f"{plugin}.rocm_plugin_extension")
        options = xla_client.generate_pjrt_gpu_plugin_options() | {
            "platform_name": "ROCM"
        }
        api = xla_bridge.register_plugin(
            "rocm", priority=PRIORITY, library_path=str(library), options=options
        )
        _hand_over(extension, api)
        _introduce(plugin)
    except Exception as error:  # every failure is reported in the same message
        # The doctor loads the plugin too, and reports the same problem first.
        found = _diagnosis.load(facts)
        return found[0] if found else _diagnosis.not_loadable(facts, error)
    return None


def broken_modules(facts: Facts) -> list[Problem]:
    """Return the problem of an extension module that jaxlib has silently skipped."""
    for name in EARLY:
        module = f"jax_rocm{facts.major}_plugin.{name}"
        try:
            importlib.import_module(module)
        except ImportError as error:
            reason = f"{module} cannot be imported ({error})"
            command = facts.install_rocm()
            return [problem("plugin-broken", reason=reason, command=command)]
    return []


def refuse(text: str) -> None:
    """Register a rocm platform that raises `text` when requested and is else skipped."""

    def factory(*_args: object, **_options: object) -> NoReturn:
        raise RuntimeError(text)

    xla_bridge.register_backend_factory(
        "rocm", factory, priority=PRIORITY, fail_quietly=True, make_topology=factory
    )


def _hand_over(extension: ModuleType, api: object) -> None:
    # The extension module passes custom calls and FFI types to the plugin through the
    # plugin's C API.
    xla_client.register_custom_call_handler(
        "ROCM", functools.partial(extension.register_custom_call_target, api)
    )
    if not hasattr(extension, "ffi_handlers"):  # jax 0.7
        xla_client.register_custom_type_id_handler(
            "ROCM", functools.partial(extension.register_custom_type_id, api)
        )
        _add_handlers(extension.ffi_registrations())
        return
    xla_client.register_custom_type_handler(
        "ROCM", functools.partial(extension.register_custom_type, api)
    )
    for name, value in extension.ffi_types().items():
        xla_client.register_custom_type(name, value, platform="ROCM")
    _add_handlers(extension.ffi_handlers())


def _introduce(plugin: str) -> None:
    """Make jaxlib use the extension modules of a ROCm major that is too new for its list.

    jaxlib finds modules that it imports later by the added name. The handlers of the
    modules in `EARLY`, which were collected when jax was imported, are added here.
    """
    names = plugin_support._PLUGIN_MODULE_NAMES["rocm"]
    if plugin in names:
        return
    names.insert(0, plugin)
    for module in EARLY:
        try:
            _add_handlers(importlib.import_module(f"{plugin}.{module}").registrations())
        except ImportError:  # `broken_modules` reports it
            continue


def _add_handlers(handlers: dict[str, Any]) -> None:
    for name, value in handlers.items():
        xla_client.register_custom_call_target(
            name, value, platform="ROCM", api_version=1
        )
