"""Signatures of XLA's FFI handlers, which they name in their errors.

A handler checks its call frame before it runs (xla/ffi/api/api.h, Handler::Call): the size of the frame, the numbers of
arguments, results and attributes, then the type of each and the names of the attributes. A call that is wrong in one of
these ends with an error that names the right value. All calls have arguments and results of no valid type, and no XLA
that could be asked for a stream, so that none runs. Programs that the Python of a site runs load this file by its
path. Only the standard library is used.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping

_STAGE, _STAGE_NUMBER = "execute", 3
"""Name of a stage in jaxlib's tables, and its number in XLA_FFI_ExecutionStage (xla/ffi/api/c_api.h)."""
_EXTENSION_METADATA = 1
_CODE_UNKNOWN = 2
_NO_TYPE = 0x7FFFFFFF
_WRONG_COUNT = -1
"""A count that no handler accepts."""
_FUNCTIONS = 64
"""Entries in the table of functions; XLA's has fewer."""
_MOST_VALUES = 256
_COUNT = re.compile(r"Wrong number of (\w+): expected (at least )?(-?\d+)")
_FRAME_SIZE = re.compile(r"XLA_FFI_CallFrame size: expected (\d+)")
_ATTRIBUTE = re.compile(r"Attribute name mismatch: \? vs (\w+?)(?=Attribute name|Wrong |Failed |$)", re.MULTILINE)
_CUSTOM_CALL = b"xla._CUSTOM_CALL_TARGET"
"""Name of the capsules of functions that are not FFI handlers, and take no call frame (jaxlib/ffi_helpers.h)."""


class _Version(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class _Span(ctypes.Structure):
    """XLA_FFI_ByteSpan."""

    _fields_ = (("text", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Error(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("message", ctypes.c_char_p), ("code", ctypes.c_int),
    )  # fmt: skip


class _Details(ctypes.Structure):
    """XLA_FFI_Error_GetDetails_Args."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("error", ctypes.c_void_p), ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )  # fmt: skip


class _Api(ctypes.Structure):
    """XLA_FFI_Api; the first functions are Error_Create and Error_GetDetails."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("version", _Version), ("internal", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * _FUNCTIONS),
    )  # fmt: skip


class _Values(ctypes.Structure):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("count", ctypes.c_int64), ("types", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )  # fmt: skip


class _Attributes(ctypes.Structure):
    """XLA_FFI_Attrs."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("count", ctypes.c_int64), ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p), ("values", ctypes.c_void_p),
    )  # fmt: skip


class _Frame(ctypes.Structure):
    """XLA_FFI_CallFrame, with space for the last fields, which versions of XLA have or have not."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("start", ctypes.c_void_p), ("api", ctypes.c_void_p), ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int), ("arguments", _Values), ("results", _Values), ("attributes", _Attributes),
        ("rest", ctypes.c_uint64 * 16),
    )  # fmt: skip


class _Metadata(ctypes.Structure):
    """XLA_FFI_Metadata; handlers accept a larger one than their own."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32), ("rest", ctypes.c_uint64 * 16),
    )  # fmt: skip


class _MetadataExtension(ctypes.Structure):
    """XLA_FFI_Metadata_Extension."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p), ("metadata", ctypes.c_void_p),
        ("rest", ctypes.c_uint64 * 16),
    )  # fmt: skip


_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Error))
_DESCRIBE = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Details))
_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))


class _Handler:
    """Calls of a handler with a table of functions that only record errors."""

    def __init__(self, address: int) -> None:
        self._call, self._message = _HANDLER(address), ""
        self._functions = _CREATE(self._record), _DESCRIBE(self._describe), _CREATE(lambda _arguments: 1)
        create, describe, fail = (ctypes.cast(function, ctypes.c_void_p).value for function in self._functions)
        table = (ctypes.c_void_p * _FUNCTIONS)(create, describe, *(fail,) * (_FUNCTIONS - 2))
        self._api = _Api(ctypes.sizeof(_Api), None, _Version(ctypes.sizeof(_Version)), None, table)
        self._types = (ctypes.c_int * _MOST_VALUES)(*(_NO_TYPE,) * _MOST_VALUES)
        self._values = (ctypes.c_void_p * _MOST_VALUES)()
        self._name = _Span(b"?", 1)
        self._names = (ctypes.c_void_p * _MOST_VALUES)(*(ctypes.addressof(self._name),) * _MOST_VALUES)
        self._size = 0
        found = _FRAME_SIZE.search(self.error({}))
        if found is None:
            raise ValueError(f"the handler accepts a call frame of 0 bytes (its answer is {self._message!r})")
        self._size = int(found[1])

    def _record(self, error: ctypes._Pointer[_Error]) -> int:
        self._message = (error.contents.message or b"").decode(errors="replace")
        return 1

    @staticmethod
    def _describe(details: ctypes._Pointer[_Details]) -> None:
        details.contents.message, details.contents.code = b"no XLA", _CODE_UNKNOWN

    def error(self, counts: Mapping[str, int], extension: int | None = None) -> str:
        """Call the handler and return its error.

        Args:
            counts: numbers of `arguments`, `results` and `attributes`; others are wrong.
            extension: address of an extension of the call frame.
        """
        types, values = ctypes.addressof(self._types), ctypes.addressof(self._values)
        given = [counts.get(kind, _WRONG_COUNT) for kind in ("arguments", "results", "attributes")]
        size = ctypes.sizeof(_Values)
        frame = _Frame(
            self._size, extension, ctypes.addressof(self._api), None, _STAGE_NUMBER,
            _Values(size, None, given[0], types, values),
            _Values(size, None, given[1], types, values),
            _Attributes(ctypes.sizeof(_Attributes), None, given[2], types, ctypes.addressof(self._names), values),
        )  # fmt: skip
        self._message = ""
        self._call(ctypes.byref(frame))
        return self._message

    def shape(self) -> str:
        """Return the numbers of arguments and results and the names of the attributes."""
        counts: dict[str, int] = {}
        while match := _COUNT.search(message := self.error(counts)):
            if match[2]:  # it takes any number of values, so that a call could run
                return f"any {match[1]}"
            counts[match[1]] = int(match[3])
        attributes = " ".join(_ATTRIBUTE.findall(message))
        return f"{counts.get('arguments', 0)} -> {counts.get('results', 0)}" + (attributes and f" ({attributes})")

    def metadata(self) -> str:
        """Return the version of XLA's FFI API that the handler was compiled with, and its traits if it has any."""
        metadata = _Metadata(ctypes.sizeof(_Metadata))
        extension = _MetadataExtension(
            ctypes.sizeof(_MetadataExtension), _EXTENSION_METADATA, None, ctypes.addressof(metadata)
        )
        if message := self.error({}, ctypes.addressof(extension)):
            raise ValueError(f"the handler does not tell its version: {message}")
        text = f"API {metadata.version.major}.{metadata.version.minor}"
        return text + (f", traits {metadata.traits:#x}" if metadata.traits else "")


def signature(stages: Mapping[str, object]) -> str:
    """Return the signature of a handler, such as `execute 1 -> 2 (lower), API 0.3`, and the names of its other stages.

    It has the numbers of arguments and results, the names of the attributes, and the version of XLA's FFI API. Other
    stages are not called: they may take nothing that a call could lack, and then they run.

    Args:
        stages: stage -> capsule, as extension modules return it.

    Raises:
        ValueError: the handler does not check its call frame.
    """
    capsule = stages.get(_STAGE)
    if capsule is None:
        return ", ".join(sorted(stages))
    if _name(capsule) == _CUSTOM_CALL:
        return "custom call"
    handler = _Handler(address(stages))
    others = sorted(stages.keys() - {_STAGE})
    return ", ".join([f"{_STAGE} {handler.shape()}", handler.metadata(), *others])


def address(stages: Mapping[str, object]) -> int:
    """Return the address of a handler's function."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = stages.get(_STAGE) or next(iter(stages.values()))
    return int(pointer(capsule, _name(capsule)))


def _name(capsule: object) -> bytes | None:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    found: bytes | None = name(capsule)
    return found
