"""Check after each test that the worker's devices still work, by the loaded driver.

An invalid access of a kernel makes every later call of its process fail, often in other
tests. The driver waits for the kernels of the finished test, and reports their errors
and the free memory.
Nothing is loaded, and no device is started.

Sources: "CUDA Driver API", primary context management; "HIP Runtime API Reference",
device and context management.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from typing import Any

_NOT_STARTED = (3, 4)
"""CUDA_ERROR_NOT_INITIALIZED and CUDA_ERROR_DEINITIALIZED, with the same numbers in HIP."""

LASTING = re.compile(
    r"(?:CUDA_ERROR|hipError|HIP_ERROR)_?(?:ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE"
    r"|INVALID_PC|LAUNCH_FAILED|LAUNCH_FAILURE|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR|ASSERT|ECC_UNCORRECTABLE|CONTAINED"
    r"|ECC_?NOT_?CORRECTABLE|IllegalAddress|IllegalInstruction|MisalignedAddress|LaunchFailure|LaunchTimeOut"
    r"|Assert|ECCNotCorrectable)\b"
    r"|an illegal memory access was encountered|unspecified launch"
    r" failure|uncorrectable ECC error"
    r"|HSA_STATUS_ERROR_(?:MEMORY_FAULT|MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION|EXCEPTION)"
)
"""Errors after which every call of the process fails.

See "CUDA Runtime API", error handling; HIP has the same errors.
"""

# Copies of functions that tests may replace or mock.
_load = ctypes.CDLL
_integer = ctypes.c_int
_pointer = ctypes.c_void_p
_text = ctypes.c_char_p
_byref = ctypes.byref
_size = ctypes.c_size_t


class Driver:
    """Driver of the devices that this process uses.

    Attributes:
        error: error of a device that this process cannot use any more; "" without one.
        free: free bytes of the devices; None if the process uses none.
    """

    def __init__(self) -> None:
        self.error = ""
        self.free: int | None = None
        for name, check in (
            ("libcuda.so.1", self._cuda),
            ("libamdhip64.so.7", self._hip),
            ("libamdhip64.so.6", self._hip),
        ):
            # A library of tests may lack functions.
            with contextlib.suppress(OSError, AttributeError):
                check(_load(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD))

    def _cuda(self, cuda: Any) -> None:  # noqa: ANN401 - a loaded library
        for number in range(_count(cuda.cuDeviceGetCount)):
            device = _integer()
            context = _pointer()
            if cuda.cuDeviceGet(_byref(device), number) or not _active(
                cuda.cuDevicePrimaryCtxGetState, device
            ):
                continue
            code = cuda.cuDevicePrimaryCtxRetain(_byref(context), device)
            if not code and not (code := cuda.cuCtxPushCurrent_v2(context)):
                code = cuda.cuCtxSynchronize()
                if not code:
                    self._add(cuda.cuMemGetInfo_v2)
                cuda.cuCtxPopCurrent_v2(_byref(context))
                cuda.cuDevicePrimaryCtxRelease_v2(device)
            if code not in (0, *_NOT_STARTED):
                name = _text()
                cuda.cuGetErrorName(code, _byref(name))
                self.error = f"{(name.value or b'CUDA error').decode()} ({code})"

    def _hip(self, hip: Any) -> None:  # noqa: ANN401
        current = _integer()
        if hip.hipGetDevice(_byref(current)):
            return
        for number in range(_count(hip.hipGetDeviceCount)):
            if not _active(hip.hipDevicePrimaryCtxGetState, number):
                continue
            code = hip.hipSetDevice(number) or hip.hipDeviceSynchronize()
            if not code:
                self._add(hip.hipMemGetInfo)
            if code not in (0, *_NOT_STARTED):
                hip.hipGetErrorName.restype = _text
                name = hip.hipGetErrorName(code) or b"HIP error"
                self.error = f"{name.decode()} ({code})"
        hip.hipSetDevice(current)

    def _add(self, function: Any) -> None:  # noqa: ANN401
        """Add the free bytes of the current device."""
        free = _size()
        total = _size()
        if not function(_byref(free), _byref(total)):
            self.free = (self.free or 0) + free.value


def _count(function: Any) -> int:  # noqa: ANN401
    count = _integer()
    return 0 if function(_byref(count)) else count.value


def _active(function: Any, device: object) -> bool:  # noqa: ANN401
    """Return whether the process uses a device."""
    flags = _integer()
    active = _integer()
    return not function(device, _byref(flags), _byref(active)) and bool(active.value)
