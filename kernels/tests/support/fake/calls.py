"""Calls of the real FFI handlers as XLA makes them, with FakeHip below them and its records.

A process has one FakeHip, since handlers look up HIP by its soname once; tests start
one process for each machine.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DTYPES = {
    "s8": 2,
    "s32": 4,
    "u8": 6,
    "u32": 8,
    "f16": 10,
    "f32": 11,
    "bf16": 16,
    "f8e4m3fn": 20,
    "f8e4m3fnuz": 25,
}
"""XLA_FFI_DataType."""
_S32 = 4
_F32 = 11
_PRED = 1
LOAD = 0
MEMSET = 1
LAUNCH = 2
LONGER, MOVED, NO_NAME = 1, 2, 3
"""Device structures that FakeHip can return instead of the known one."""


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class _Value(ctypes.Union):
    _fields_ = (
        ("s32", ctypes.c_int32),
        ("f32", ctypes.c_float),
        ("pred", ctypes.c_bool),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("value", _Value),
        ("text", ctypes.c_char_p),
    )


class _Record(ctypes.Structure):
    _fields_ = (
        ("what", ctypes.c_int),
        ("device", ctypes.c_int),
        ("capture_mode", ctypes.c_int),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("image", ctypes.c_void_p),
        ("image_size", ctypes.c_uint64),
        ("kernel", ctypes.c_char_p),
        ("argument_bytes", ctypes.c_uint64),
        ("arguments", ctypes.c_ubyte * 1024),
        ("to", ctypes.c_void_p),
        ("value", ctypes.c_int),
        ("bytes", ctypes.c_uint64),
    )


@dataclass(frozen=True, kw_only=True)
class Record:
    """A recorded call of FakeHip.

    Attributes:
        what: LOAD, MEMSET or LAUNCH.
        capture_mode: capture mode of the thread: 1 is thread-local, HIP's default, 2 is
            relaxed.
        sha256: digest of the code object.
        to, value, size: arguments of a memset.
    """

    what: int
    device: int
    capture_mode: int
    sha256: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    arguments: bytes
    to: int
    value: int
    size: int


@dataclass(frozen=True)
class Tensor:
    """A buffer of a call: dtype, shape, and an address that is never accessed."""

    dtype: str
    shape: tuple[int, ...]
    address: int


class CallError(Exception):
    """A handler's error, with its code and message."""

    def __init__(
        self,
        code: int,
        message: str,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class FakeMachine:
    """Eight fake GPUs.

    Args:
        folder: folder with libamdhip64.so.7 (FakeHip) and drive.so.
    """

    def __init__(self, folder: Path) -> None:
        self.hip = ctypes.CDLL(str(folder / "libamdhip64.so.7"), mode=ctypes.RTLD_LOCAL)
        self.driver = ctypes.CDLL(str(folder / "drive.so"))
        self.hip.fake_hip_stream.restype = ctypes.c_void_p
        self.hip.fake_hip_record.restype = ctypes.POINTER(_Record)

    def device(
        self,
        ordinal: int,
        arch: str,
        compute_units: int,
        wave: int = 64,
    ) -> None:
        """Set the properties of a device, which handlers read once."""
        self.hip.fake_hip_device(ordinal, arch.encode(), compute_units, wave)

    def layout(self, kind: int) -> None:
        """Set the device structure that HIP returns."""
        self.hip.fake_hip_layout(kind)

    def fail(
        self,
        function: str,
        error: int,
    ) -> None:
        """Make a function of HIP return an error code; 0 makes it succeed."""
        self.hip.fake_hip_fail(function.encode(), error)

    def records(self) -> list[Record]:
        """Return the calls since the previous call of this method."""
        found = []
        for at in range(self.hip.fake_hip_count()):
            one = self.hip.fake_hip_record(at).contents
            image = ctypes.string_at(one.image, one.image_size) if one.image else b""
            found.append(
                Record(
                    what=one.what,
                    device=one.device,
                    capture_mode=one.capture_mode,
                    sha256=hashlib.sha256(image).hexdigest() if image else "",
                    kernel=(one.kernel or b"").decode(),
                    grid=tuple(one.grid),
                    block=tuple(one.block),
                    shared=one.shared,
                    arguments=bytes(one.arguments[: one.argument_bytes]),
                    to=one.to or 0,
                    value=one.value,
                    size=one.bytes,
                )
            )
        self.hip.fake_hip_forget()
        return found

    def metadata(
        self,
        library: Library,
        symbol: str,
    ) -> tuple[int, int, int]:
        """Return the API major, API minor and traits that a handler declares."""
        major = ctypes.c_int()
        minor = ctypes.c_int()
        traits = ctypes.c_uint()
        text = ctypes.create_string_buffer(4096)
        pointers = (ctypes.byref(major), ctypes.byref(minor), ctypes.byref(traits))
        code = self.driver.drive_metadata(
            library.handler(symbol), *pointers, text, ctypes.c_size_t(len(text))
        )
        if code:
            raise CallError(code, text.value.decode())
        return major.value, minor.value, traits.value

    def call(
        self,
        library: Library,
        symbol: str,
        args: Sequence[Tensor],
        results: Sequence[Tensor],
        attributes: Mapping[str, object] | None = None,
        *,
        device: int = 0,
    ) -> None:
        """Call a handler.

        Raises:
            CallError: the handler returned an error.
        """
        text = ctypes.create_string_buffer(8192)
        packed = [
            _attribute(name, value)
            for name, value in sorted((attributes or {}).items())
        ]
        code = self.driver.drive(
            library.handler(symbol),
            ctypes.c_void_p(self.hip.fake_hip_stream(device)),
            _buffers(args),
            len(args),
            _buffers(results),
            len(results),
            (_Attribute * len(packed))(*packed),
            len(packed),
            text,
            ctypes.c_size_t(len(text)),
        )
        if code:
            raise CallError(code, text.value.decode())


class Library:
    """A library of kernels, loaded as the package loads it."""

    def __init__(
        self,
        path: Path,
        root: Path | None,
    ) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.jax_aiter_build_info.restype = ctypes.c_char_p
        if root is not None:
            self.set_root(root)

    def set_root(self, root: Path) -> None:
        """Set the folder of the code objects."""
        self.library.jax_aiter_set_root(str(root).encode())

    def build_info(self) -> str:
        """Return the build information of the library."""
        return str(self.library.jax_aiter_build_info().decode())

    def handler(self, symbol: str) -> ctypes.c_void_p:
        """Return the address of a handler."""
        return ctypes.cast(self.library[symbol], ctypes.c_void_p)


def tensors(
    *specs: tuple[str, tuple[int, ...]], start: int = 0x7F00_0000_0000
) -> list[Tensor]:
    """Return buffers at distant addresses, multiples of 256, so that no two can be confused."""
    return [
        Tensor(dtype, shape, start + at * 0x1_0000_0000_00)
        for at, (dtype, shape) in enumerate(specs)
    ]


def _buffers(of: Sequence[Tensor]) -> ctypes.Array[_Buffer]:
    rows = []
    for tensor in of:
        dims = (ctypes.c_int64 * max(1, len(tensor.shape)))(*tensor.shape)
        rows.append(
            _Buffer(DTYPES[tensor.dtype], len(tensor.shape), dims, tensor.address)
        )
    return (_Buffer * len(rows))(*rows)


def _attribute(name: str, value: object) -> _Attribute:
    if isinstance(value, str):
        return _Attribute(name.encode(), 0, _Value(), value.encode())
    if isinstance(value, bool):
        return _Attribute(name.encode(), _PRED, _Value(pred=value), None)
    if isinstance(value, float):
        return _Attribute(name.encode(), _F32, _Value(f32=value), None)
    assert isinstance(value, int)
    return _Attribute(name.encode(), _S32, _Value(s32=value), None)
