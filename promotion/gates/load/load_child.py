"""Probes of the parts of a wheel; the Python of a site runs each probe in a separate process.

The program uses only the standard library, and jax in some probes. The arguments are the name of a probe and its paths
or names; the last line of output is the answer in JSON, since loaded libraries may print too. The answer has `error` if
the probe raised an exception; after a crash there is no answer.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
_REGISTERING = ("jax", "jax.experimental.pallas", "jax.experimental.rnn", "jax.experimental.sparse")
"""Modules that register handlers when they are imported."""
_TABLES = ("registrations", "ffi_registrations", "ffi_handlers", "ffi_types")
"""Functions of extension modules that return name -> capsule, or name -> {stage: capsule}."""
_API_HEADER = 40
"""Bytes of PJRT_Api before the function pointers: size, extensions and PJRT_Api_Version."""


class _PjrtVersion(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class _PjrtApi(ctypes.Structure):
    """The beginning of PJRT_Api (xla/pjrt/c/pjrt_c_api.h)."""

    _fields_ = (("size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("version", _PjrtVersion))


class _PjrtExtension(ctypes.Structure):
    """PJRT_Extension_Base (xla/pjrt/c/pjrt_c_api.h)."""

    _fields_ = (("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p))


def dlopen(*paths: str) -> Answer:
    """Load libraries and bind all their symbols."""
    for path in paths:
        sys.stderr.write(f"loading {path}\n")  # names the library if loading it crashes
        sys.stderr.flush()
        ctypes.CDLL(path, mode=os.RTLD_NOW)
    return {}


def api(path: str) -> Answer:
    """Read the API table of a PJRT plugin: version, number of functions, extensions as [type, bytes]."""
    get = ctypes.CDLL(path, mode=os.RTLD_NOW).GetPjrtApi
    get.restype = ctypes.c_void_p
    address = get()
    table = _PjrtApi.from_address(address)
    slots = (ctypes.c_void_p * ((table.size - _API_HEADER) // 8)).from_address(address + _API_HEADER)
    extensions = []
    following = table.extensions
    while following:
        extension = _PjrtExtension.from_address(following)
        extensions.append([extension.type, extension.size])
        following = extension.next
    return {
        "version": [table.version.major, table.version.minor],
        "functions": sum(slot is not None for slot in slots),
        "extensions": sorted(extensions),
    }


def module(name: str) -> Answer:
    """Import an extension module and return table -> name -> stages of the handler."""
    imported = importlib.import_module(name)
    tables = {table: getattr(imported, table)() for table in _TABLES if hasattr(imported, table)}
    stages = {
        table: {name: sorted(value) if isinstance(value, dict) else ["execute"] for name, value in rows.items()}
        for table, rows in tables.items()
    }
    return {"tables": stages}


def package(name: str) -> Answer:
    """Import a package and its version module, and return the entry points that name the package."""
    importlib.import_module(name)
    importlib.import_module(f"{name}.version")
    points = importlib.metadata.entry_points(group="jax_plugins")
    return {"entry_points": [point.name for point in points if point.value == name]}


def handlers(platform: str) -> Answer:
    """Return the handlers that jax registers for a platform: name -> API version."""
    counts: dict[str, int] = {}

    def record(name: Any, _handler: object, _platform: str, api_version: int, *_traits: object) -> None:  # noqa: ANN401
        counts[name.decode() if isinstance(name, bytes) else str(name)] = int(api_version)

    for name in _REGISTERING:
        importlib.import_module(name)
    importlib.import_module("jax._src.lib").xla_client.register_custom_call_handler(platform, record)
    return {"handlers": counts}


def initialize(path: str) -> Answer:
    """Start the plugin through jax and create its client."""
    bridge = importlib.import_module("jax._src.xla_bridge")
    client = importlib.import_module("jax._src.lib").xla_client
    options = client.generate_pjrt_gpu_plugin_options() | {"platform_name": "ROCM"}
    bridge.register_plugin("rocm", priority=500, library_path=path, options=options)
    client_of_plugin = bridge._backend_factories["rocm"].factory()
    return {"devices": client_of_plugin.device_count()}


def loader(platform: str) -> Answer:
    """Request the devices of a platform from jax, as users do."""
    devices = importlib.import_module("jax").devices(platform)
    return {"devices": len(devices)}


PROBES: dict[str, Callable[..., Answer]] = {
    probe.__name__: probe for probe in (dlopen, api, module, package, handlers, initialize, loader)
}


def answer(probe: Callable[[], Answer]) -> Answer:
    """Run a probe and return its answer or error, and the peak memory of this process in KiB."""
    try:
        result = probe()
    except Exception as error:
        result = {"error": str(error)}
    # getrusage would include the memory of the parent before exec.
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").split()
    return {**result, "peak_kib": int(status[status.index("VmHWM:") + 1])}


if __name__ == "__main__":
    line = json.dumps(answer(functools.partial(PROBES[sys.argv[1]], *sys.argv[2:])))
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()
    os._exit(0)  # skips destructors, which may crash without a GPU
