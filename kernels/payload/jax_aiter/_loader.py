"""Loading of kernel modules at first use, and registration of their handlers with XLA.

Before anything is registered, every file is compared with its digest, every symbol is
looked up, and the API version of every handler is compared with that of jaxlib: a
handler that is newer than XLA, registered before the GPU is initialised, makes the
whole backend fail. Libraries see each other's symbols only through their own DT_NEEDED
entries.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

import jax

from jax_aiter._errors import ModuleLoadError
from jax_aiter._manifest import Manifest, Module, read_manifest

PLATFORM = "ROCM"
"""Platform that handlers are registered for."""
FOLDER = Path(__file__).resolve().parent / "_kernels"

_SET_ROOT = "jax_aiter_set_root"


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
        """Load a module once.

        Several threads may call this method concurrently.

        Raises:
            ModuleLoadError: a file is missing or changed, a symbol is missing, or a
                handler is newer than jaxlib.
        """
        assert self.manifest is not None
        with self._lock:
            if name not in self._libraries:
                self._libraries[name] = self._load(self.manifest.modules[name])

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
        functions = {}
        for handler in module.handlers:
            if handler.api > framework_api():
                raise ModuleLoadError(
                    f"Module {module.name}: {handler.symbol} of {path} is for FFI API"
                    f" {_dotted(handler.api)}, but the installed jaxlib has"
                    f" {_dotted(framework_api())}: install a newer jaxlib."
                )
            functions[handler.target] = _symbol(module, path, library, handler.symbol)
        set_root = _symbol(module, path, library, _SET_ROOT)
        set_root.argtypes = [ctypes.c_char_p]
        set_root.restype = None
        set_root(os.fsencode(self.root / "hsa"))
        for target, function in functions.items():
            capsule = jax.ffi.pycapsule(function)
            try:
                jax.ffi.register_ffi_target(target, capsule, platform=PLATFORM)
            except Exception as problem:
                raise ModuleLoadError(
                    f"Module {module.name}: {target} of {path} cannot be registered:"
                    f" {problem}"
                ) from problem
        return library


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
        raise ModuleLoadError(
            f"Module {module.name}: {path} has sha256 {sha256}, but the manifest has"
            f" {digest}: the file was changed after the build."
        )


def _symbol(
    module: Module,
    path: Path,
    library: ctypes.CDLL,
    name: str,
) -> Any:
    try:
        return getattr(library, name)
    except AttributeError as problem:
        raise ModuleLoadError(
            f"Module {module.name}: {path} has no symbol {name}: {problem}."
        ) from problem


@cache
def framework_api() -> tuple[int, int]:
    """Return the XLA FFI API (major, minor) of the installed jaxlib's header."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text(encoding="utf-8")
    numbers = dict(
        re.findall(r"^#define XLA_FFI_API_(MAJOR|MINOR) (\d+)$", text, re.MULTILINE)
    )
    return int(numbers["MAJOR"]), int(numbers["MINOR"])


def _dotted(api: tuple[int, int]) -> str:
    return f"{api[0]}.{api[1]}"
