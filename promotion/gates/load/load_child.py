"""Probes of the parts of a wheel; the Python of a site runs each probe in a separate process.

The program uses only the standard library, and jax in some probes. The arguments are
the name of a probe and its paths or names; the last line of output is the answer in
JSON, since loaded libraries may print too. The answer has `error` if the probe raised
an exception; after a crash there is no answer. Most probes only load a library, so that
modules which few probes need are imported late.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
_REGISTERING = (
    "jax",
    "jax.experimental.pallas",
    "jax.experimental.rnn",
    "jax.experimental.sparse",
)
"""Modules that register handlers when they are imported."""
_TYPES = "ffi_types"
_TABLES = ("registrations", "ffi_registrations", "ffi_handlers", _TYPES)
"""Functions of extension modules that return name -> capsule, or name -> {stage: capsule}."""
_CUSTOM_CALL = b"xla._CUSTOM_CALL_TARGET"
"""Name of the capsules of functions that are not FFI handlers (jaxlib/ffi_helpers.h)."""
_API_HEADER = 40
"""Bytes of PJRT_Api before the function pointers: size, extensions and PJRT_Api_Version."""


class _PjrtVersion(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("start", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _PjrtApi(ctypes.Structure):
    """The beginning of PJRT_Api (xla/pjrt/c/pjrt_c_api.h)."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("version", _PjrtVersion),
    )


class _PjrtExtension(ctypes.Structure):
    """PJRT_Extension_Base (xla/pjrt/c/pjrt_c_api.h)."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
    )


class _Wrapper(ctypes.Structure):
    """Argument of __hipRegisterFatBinary (clang, CodeGen/CGCUDANV.cpp)."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("bundle", ctypes.c_uint64),
    )


def dlopen(*paths: str) -> Answer:
    """Load libraries, bind all their symbols, and return their device code that HIP's stand-in saw.

    `flushes` is the first library that makes the process flush denormal numbers.
    Linkers add such start-up code with -ffast-math, and published wheels had it
    (gevent/gevent#1864, llvm/llvm-project#57589).
    """
    for path in paths:
        sys.stderr.write(f"loading {path}\n")  # names the library if loading it crashes
        sys.stderr.flush()
        ctypes.CDLL(path, mode=os.RTLD_NOW)
        if not sys.float_info.min / 2:
            return {"flushes": path}
    return _registrations()


def _registrations() -> Answer:
    """Return registered: file -> address of a bundle in the file -> facts.

    The facts are magic, version, number of kernels, and SHA-256 of their names.
    The answer is empty if HIP is not the stand-in of `promotion/gates/common/stubs.py`.
    """
    files = _mapped_files()
    tables: dict[int, ctypes.c_uint64] = {}
    for path in dict.fromkeys(path for _, _, path in files if ".so" in path):
        with contextlib.suppress(
            OSError, ValueError
        ):  # the library has no such variable
            table = ctypes.c_uint64.in_dll(ctypes.CDLL(path), "jax_rocm_registrations")
            tables[ctypes.addressof(table)] = table
    if not tables and any("/libamdhip64.so" in path for _, _, path in files):
        return {}
    found: dict[str, dict[str, list[Any]]] = {}
    rows: list[tuple[int, ...]] = []
    for address, table in tables.items():
        calls = (ctypes.c_uint64 * 8 * table.value).from_address(address + 64)
        rows += [tuple(call) for call in calls]
    kernels: dict[int, set[bytes]] = {row[1]: set() for row in rows if row[0] == 0}
    for function, handle, _, name, *_ in rows:
        if handle not in kernels:
            text = ctypes.string_at(name).decode(errors="replace")
            raise ValueError(
                f"it registers {text} for the bundle {handle:#x}, which it did not"
                " register"
            )
        if function == 1:
            kernels[handle].add(ctypes.string_at(name))
    for address, names in kernels.items():
        wrapper = _Wrapper.from_address(address)
        path = next(path for start, end, path in files if start <= address < end)
        base = min(start for start, _, other in files if other == path)
        facts = [wrapper.magic, wrapper.version, len(names), _digest(names)]
        found.setdefault(path, {})[hex(wrapper.bundle - base)] = facts
    return {"registered": found}


def _mapped_files() -> list[tuple[int, int, str]]:
    """Return start, end and path of each mapped part of a file."""
    maps = [
        line.split(maxsplit=5)
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ]
    ends = [(row[0].partition("-"), row[5]) for row in maps if len(row) == 6]
    return [(int(start, 16), int(end, 16), path) for (start, _, end), path in ends]


def _digest(names: set[bytes]) -> str:
    import hashlib  # late: it loads OpenSSL

    return hashlib.sha256(b"\n".join(sorted(names))).hexdigest()


def api(path: str) -> Answer:
    """Read the API table of a PJRT plugin.

    Version, number of functions, extensions as [type, bytes].
    """
    get = ctypes.CDLL(path, mode=os.RTLD_NOW).GetPjrtApi
    get.restype = ctypes.c_void_p
    address = get()
    table = _PjrtApi.from_address(address)
    slots = (ctypes.c_void_p * ((table.size - _API_HEADER) // 8)).from_address(
        address + _API_HEADER
    )
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
    """Import an extension module and return table -> name -> type of the handler.

    The type of a handler is the list of its stages, such as `execute, instantiate`, or
    `custom call`.
    """
    imported = importlib.import_module(name)
    tables: dict[str, dict[str, str]] = {}
    for table in (table for table in _TABLES if hasattr(imported, table)):
        rows = tables.setdefault(table, {})
        for key, value in getattr(imported, table)().items():
            if table == _TYPES:
                rows[key] = " ".join(sorted(value))
            else:
                rows[key] = _handler_type(
                    value if isinstance(value, dict) else {"execute": value}
                )
    return {"tables": tables}


def _handler_type(stages: dict[str, object]) -> str:
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype = ctypes.c_char_p
    name_of.argtypes = [ctypes.py_object]
    execute = stages.get("execute")
    if execute is not None and name_of(execute) == _CUSTOM_CALL:
        return "custom call"
    return ", ".join(sorted(stages))


def package(name: str, distribution: str, *names: str) -> Answer:
    """Import a package and its modules, and return its entry points and the values of its versions.

    The packages of this project are imported without jax, as jax itself imports them.

    Args:
        distribution: project of the wheel.
        names: modules of the wheel.
    """
    import importlib.metadata  # late: it takes as long as the rest of most probes

    ours = f"{name}.build_info" in names
    rows = _imported(names) if ours else modules(*names)
    # Python accepts a namespace package, and jax 0.7.1 to 0.9.2 were published with
    # one.
    if ours and importlib.import_module(name).__file__ is None:
        raise ImportError(f"No module named '{name}.__init__'")
    version = importlib.import_module(f"{name}.version").__version__
    points = importlib.metadata.entry_points(group="jax_plugins")
    data = importlib.import_module(f"{name}.build_info").DATA if ours else {}
    metadata = importlib.metadata.distribution(distribution)
    return {
        "entry_points": [point.name for point in points if point.value == name],
        "version": str(version),
        "info": data,
        "metadata": {"version": metadata.version, "requires": metadata.requires or []},
        **rows,
    }


def modules(*names: str) -> Answer:
    """Import modules after jax and return the error of each, empty without one."""
    importlib.import_module("jax")
    return _imported(names)


def _imported(names: tuple[str, ...]) -> Answer:
    errors = {}
    for name in names:
        sys.stderr.write(
            f"importing {name}\n"
        )  # names the module if importing it crashes
        sys.stderr.flush()
        errors[name] = ""
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return {"modules": errors}


def handlers(platform: str) -> Answer:
    """Return the handlers that jax registers for a platform: name -> API version."""
    counts: dict[str, int] = {}

    def record(
        name: Any,  # noqa: ANN401
        _handler: object,
        _platform: str,
        api_version: int,
        *_traits: object,
    ) -> None:
        counts[name.decode() if isinstance(name, bytes) else str(name)] = int(
            api_version
        )

    for name in _REGISTERING:
        importlib.import_module(name)
    importlib.import_module("jax._src.lib").xla_client.register_custom_call_handler(
        platform, record
    )
    return {"handlers": counts}


def initialize(path: str) -> Answer:
    """Start the plugin through jax and create its client."""
    bridge = importlib.import_module("jax._src.xla_bridge")
    client = importlib.import_module("jax._src.lib").xla_client
    options = client.generate_pjrt_gpu_plugin_options() | {"platform_name": "ROCM"}
    bridge.register_plugin("rocm", priority=500, library_path=path, options=options)
    client_of_plugin = bridge._backend_factories["rocm"].factory()
    return {"devices": client_of_plugin.device_count()}


PROBES: dict[str, Callable[..., Answer]] = {
    probe.__name__: probe
    for probe in (dlopen, api, module, package, modules, handlers, initialize)
}


def answer(probe: Callable[[], Answer]) -> Answer:
    """Run a probe and return its answer or error."""
    try:
        return probe()
    except Exception as error:
        return {"error": str(error)}


if __name__ == "__main__":
    line = json.dumps(answer(functools.partial(PROBES[sys.argv[1]], *sys.argv[2:])))
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()
    os._exit(0)  # skips destructors, which may crash without a GPU
