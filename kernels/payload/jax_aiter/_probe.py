"""Query of the API that an FFI handler was compiled against, in the way XLA does at registration.

The structures are those of xla/ffi/api/c_api.h. A handler that is called with the
metadata extension fills in a structure and does nothing else. XLA refuses handlers that
are newer than XLA. A newer handler registered before the GPU is initialised makes the
whole backend fail, so handlers are queried before their registration.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import jax

_METADATA = 1
_COMMAND_BUFFER = 1


class _Extension(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
    ]


class _Version(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _Metadata(ctypes.Structure):
    # The tail leaves room for fields of later versions.
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("api_version", _Version),
        ("traits", ctypes.c_uint32),
        ("state_type_id", ctypes.c_int64),
        ("later", ctypes.c_byte * 512),
    ]


class _MetadataExtension(ctypes.Structure):
    _fields_: ClassVar = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class _CallFrame(ctypes.Structure):
    # After `ctx` come the stage, the arguments and so on, all zero here.
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("api", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
        ("rest", ctypes.c_byte * 1024),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    ]


class _Api(ctypes.Structure):
    # Only create_error is set: handlers call it if the size of a structure is wrong.
    _fields_: ClassVar = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("api_version", _Version),
        ("internal_api", ctypes.c_void_p),
        ("create_error", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 128),
    ]


_CREATE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))
_CALL_FRAME_SIZE = 168
"""XLA_FFI_CallFrame_STRUCT_SIZE of all versions so far (0.1 to 0.5).

Handlers require exactly this size.
"""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata of a handler.

    Attributes:
        api: XLA FFI API that the handler was compiled against, (major, minor).
        command_buffer: whether the handler may be captured into a command buffer.
    """

    api: tuple[int, int]
    command_buffer: bool


def probe(function: Any) -> Metadata | str:
    """Return the metadata of a handler, or the reason why the symbol is not a handler.

    Args:
        function: symbol of a library that was loaded by ctypes.
    """
    metadata = _Metadata(struct_size=ctypes.sizeof(_Metadata))
    metadata.api_version.struct_size = ctypes.sizeof(_Version)
    metadata.api_version.major = metadata.api_version.minor = -1
    base = _Extension(struct_size=ctypes.sizeof(_MetadataExtension), type=_METADATA)
    extension = _MetadataExtension(base=base, metadata=ctypes.pointer(metadata))
    messages: list[str] = []

    def create_error(arguments: Any) -> int:
        messages.append((arguments.contents.message or b"").decode(errors="replace"))
        return 1

    callback = _CREATE_ERROR(create_error)
    api = _Api(
        struct_size=ctypes.sizeof(_Api),
        create_error=ctypes.cast(callback, ctypes.c_void_p),
    )
    frame = _CallFrame(struct_size=_CALL_FRAME_SIZE)
    frame.extension_start = ctypes.addressof(extension)
    frame.api = ctypes.addressof(api)
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
        ctypes.cast(function, ctypes.c_void_p).value or 0
    )
    error = call(ctypes.addressof(frame))
    version = (metadata.api_version.major, metadata.api_version.minor)
    if error is not None or min(version) < 0:
        return messages[0] if messages else "it does not report its API version"
    return Metadata(version, bool(metadata.traits & _COMMAND_BUFFER))


@cache
def framework_api() -> tuple[int, int]:
    """Return the XLA FFI API (major, minor) of the installed jaxlib's header."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text(encoding="utf-8")
    numbers = dict(
        re.findall(r"^#define XLA_FFI_API_(MAJOR|MINOR) (\d+)$", text, re.MULTILINE)
    )
    return int(numbers["MAJOR"]), int(numbers["MINOR"])
