"""Signatures of FFI handlers; the handlers of the published wheels are in tests of the load gate."""

from __future__ import annotations

import _ctypes
import ctypes
import sys
from types import ModuleType
from typing import Any

import pytest

from promotion.gates.load.load_child import module
from promotion.gates.load.signatures import signature

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_CUSTOM_CALL = b"xla._CUSTOM_CALL_TARGET"  # capsules keep its address


def capsule(address: int, name: bytes | None = None) -> object:
    """Return a capsule as jaxlib makes it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made: object = new(address, name, None)
    return made


def test_function_without_checks_is_no_handler() -> None:
    """A handler that accepts a call frame of no size would read the arguments of any call."""
    calls: list[int | None] = []
    function = _HANDLER(calls.append)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    with pytest.raises(ValueError, match="accepts a call frame of 0 bytes"):
        signature({"execute": capsule(address)})
    assert len(calls) == 1


def test_function_without_checks_is_listed_as_no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    function = _HANDLER(lambda _frame: None)
    made: Any = ModuleType("made_handlers")
    made.__file__ = _ctypes.__file__
    made.registrations = lambda: {"lost": capsule(ctypes.cast(function, ctypes.c_void_p).value or 0)}
    monkeypatch.setitem(sys.modules, made.__name__, made)
    text = "no FFI handler: the handler accepts a call frame of 0 bytes (its answer is '')"
    assert module(made.__name__)["tables"] == {"registrations": {"lost": text}}


def test_only_handlers_are_called() -> None:
    """Custom calls take other arguments, and stages before the execution may run without any."""
    assert signature({"execute": capsule(1, _CUSTOM_CALL)}) == "custom call"
    assert signature({"initialize": capsule(1), "instantiate": capsule(1)}) == "initialize, instantiate"
