"""Check of AMD's devices without jax, run when jax cannot use them.

It separates faults of the machine from the set's.

The program uses only the standard library. Its arguments are libraries of HIP to try,
whose functions fill and copy memory on each device. The last line of output is JSON:
number of `devices` and `error`. Source: "HIP Runtime API Reference".
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_BYTES = 1 << 20
_FILL = 0x5A
_TO_HOST = 2
"""hipMemcpyDeviceToHost."""


class DriverError(Exception):
    """A function of the driver failed."""


def call(library: Any, name: str, *arguments: object) -> None:  # noqa: ANN401 - a loaded library
    """Call a function that returns 0 for success."""
    if code := getattr(library, name)(*arguments):
        raise DriverError(f"{name} returned {code}")


def check_hip(hip: Any) -> int:  # noqa: ANN401
    """Fill memory on each device with HIP; return the number of devices."""
    call(hip, "hipInit", 0)
    count = ctypes.c_int()
    call(hip, "hipGetDeviceCount", ctypes.byref(count))
    for number in range(count.value):
        address = ctypes.c_void_p()
        data = ctypes.create_string_buffer(_BYTES)
        call(hip, "hipSetDevice", number)
        call(hip, "hipMalloc", ctypes.byref(address), ctypes.c_size_t(_BYTES))
        call(hip, "hipMemset", address, _FILL, ctypes.c_size_t(_BYTES))
        call(hip, "hipDeviceSynchronize")
        call(hip, "hipMemcpy", data, address, ctypes.c_size_t(_BYTES), _TO_HOST)
        call(hip, "hipFree", address)
        if data.raw != bytes([_FILL]) * _BYTES:
            raise DriverError("memory that a device filled has other contents")
    return count.value


def main(names: list[str]) -> dict[str, object]:
    """Check the devices with the first library that loads."""
    reasons = []
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError as problem:
            reasons.append(str(problem))
            continue
        try:
            count = check_hip(library)
        except (DriverError, AttributeError) as problem:
            return {"devices": 0, "error": str(problem)}
        return {"devices": count, "error": "" if count else "the driver has no devices"}
    return {"devices": 0, "error": "; ".join(reasons)}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(main(sys.argv[1:]))}\n")
