"""Loading of kernel modules at first use, and registration of their handlers with XLA.

Before anything is registered, every file is compared with its digest, every symbol is
looked up, and every handler is queried for its API version. Libraries see each other's
symbols only through their own DT_NEEDED entries.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import jax

from jax_aiter._errors import ModuleLoadError
from jax_aiter._manifest import Handler, Manifest, Module, read_manifest
from jax_aiter._probe import framework_api, probe

PLATFORM = "ROCM"
"""Platform that handlers are registered for."""
FOLDER = Path(__file__).resolve().parent / "_kernels"

_SET_ROOT = "jax_aiter_set_root"
_BUILD_INFO = "jax_aiter_build_info"


class Loader:
    """The modules of one folder.

    Attributes:
        root: folder with manifest.json, lib and hsa.
        manifest: content of manifest.json; None for a package without kernels.
    """

    def __init__(self, root: Path) -> None:
        """Read the manifest.

        Raises:
            ManifestError: the manifest is damaged.
        """
        self.root = root
        self.manifest: Manifest | None
        try:
            self.manifest = read_manifest(root / "manifest.json")
        except FileNotFoundError:
            self.manifest = None
        self._lock = threading.RLock()
        self._libraries: dict[str, ctypes.CDLL] = {}

    @property
    def loaded(self) -> tuple[str, ...]:
        """Names of the loaded modules, in the order of loading."""
        return tuple(self._libraries)

    def ensure(self, name: str) -> None:
        """Load a module and the modules that it needs, once.

        Several threads may call this method concurrently.

        Raises:
            ModuleLoadError: a file is missing or changed, a symbol is missing, or a
                handler does not fit this jaxlib.
        """
        assert self.manifest is not None
        with self._lock:
            for module in self.manifest.closure(name):
                if module.name not in self._libraries:
                    self._libraries[module.name] = self._load(module)

    def _load(self, module: Module) -> ctypes.CDLL:
        path = self.root / module.library
        _check(module, path, module.sha256)
        for file, digest in module.objects.items():
            _check(module, self.root / "hsa" / file, digest)
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as problem:
            raise ModuleLoadError(
                f"Module {module.name}: {path} cannot be loaded: {problem}."
            ) from problem
        self._introduce(module, path, library)
        handlers = [
            (handler, self._handler(module, path, library, handler))
            for handler in module.handlers
        ]
        for handler, function in handlers:
            try:
                jax.ffi.register_ffi_target(
                    handler.target, jax.ffi.pycapsule(function), platform=PLATFORM
                )
            except Exception as problem:
                text = (
                    f"Module {module.name}: {handler.target} of {path} cannot be"
                    f" registered: {problem}"
                )
                raise ModuleLoadError(text) from problem
        return library

    def _introduce(self, module: Module, path: Path, library: ctypes.CDLL) -> None:
        build_info = _symbol(module, path, library, _BUILD_INFO)
        build_info.argtypes = []
        build_info.restype = ctypes.c_char_p
        try:
            info = json.loads(build_info() or b"")
            name = info["module"]
        except (ValueError, TypeError, KeyError) as problem:
            raise ModuleLoadError(
                f"Module {module.name}: {_BUILD_INFO} of {path} names no module."
            ) from problem
        if name != module.name:
            raise ModuleLoadError(
                f"Module {module.name}: {path} is the library of module {name!r}."
            )
        set_root = _symbol(module, path, library, _SET_ROOT)
        set_root.argtypes = [ctypes.c_char_p]
        set_root.restype = None
        set_root(os.fsencode(self.root / "hsa"))

    def _handler(
        self, module: Module, path: Path, library: ctypes.CDLL, handler: Handler
    ) -> Any:
        function = _symbol(module, path, library, handler.symbol)
        metadata = probe(function)
        where = f"Module {module.name}: {handler.symbol} of {path}"
        if isinstance(metadata, str):
            raise ModuleLoadError(
                f"{where} is not an FFI handler: {metadata.rstrip('.')}."
            )
        if (metadata.api, metadata.command_buffer) != (
            handler.api,
            handler.command_buffer,
        ):
            raise ModuleLoadError(
                f"{where} is for FFI API {_dotted(metadata.api)}"
                f" {_captured(metadata.command_buffer)}; the manifest declares"
                f" {_dotted(handler.api)} {_captured(handler.command_buffer)}."
            )
        installed = framework_api()
        if metadata.api > installed:
            raise ModuleLoadError(
                f"{where} is for FFI API {_dotted(metadata.api)}, but the installed"
                f" jaxlib has {_dotted(installed)}. Install a newer jaxlib, or a"
                " jax_aiter for this jaxlib."
            )
        return function


@cache
def loader() -> Loader:
    """Return the loader of this package; every call raises the error of a damaged manifest."""
    return Loader(FOLDER)


def _check(module: Module, path: Path, digest: str) -> None:
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise ModuleLoadError(
            f"Module {module.name}: {path} cannot be read: {problem.strerror}."
        ) from problem
    if sha256 != digest:
        text = (
            f"Module {module.name}: {path} has sha256 {sha256}, but the manifest has"
            f" {digest}"
        )
        raise ModuleLoadError(f"{text}: the file was changed after the build.")


def _symbol(module: Module, path: Path, library: ctypes.CDLL, name: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError as problem:
        raise ModuleLoadError(
            f"Module {module.name}: {path} has no symbol {name}: {problem}."
        ) from problem


def _dotted(api: tuple[int, int]) -> str:
    return f"{api[0]}.{api[1]}"


def _captured(command_buffer: bool) -> str:
    return "with command buffers" if command_buffer else "without command buffers"
