"""The portable kernels on the host: the very source, a block's threads as coroutines (`gpu_host.h`)."""

from __future__ import annotations

import ctypes
from pathlib import Path

_GUARD = 0xA5


class HostMachine:
    """Runs kernels that were compiled for the host.

    Args:
        library: what they were compiled to.
        seed: of the order in which threads run between two meetings; 0 is their own order.
    """

    def __init__(self, library: Path, seed: int) -> None:
        self._library, self._seed = ctypes.CDLL(str(library)), seed
        self._memory: dict[int, tuple[ctypes.Array[ctypes.c_char], int]] = {}

    def put(self, data: bytes, shift: int = 0) -> int:
        """Memory with that content and guards around it."""
        whole = ctypes.create_string_buffer(len(data) + 1024)
        base = ctypes.addressof(whole)
        address = (base + 511) // 256 * 256 + shift
        ctypes.memset(base, _GUARD, len(whole))
        ctypes.memmove(address, data, len(data))
        self._memory[address] = whole, len(data)
        return address

    def get(self, address: int) -> bytes:
        """Its content; its guards have to be as they were."""
        whole, size = self._memory[address]
        at, data = address - ctypes.addressof(whole), whole.raw
        assert {*data[:at], *data[at + size :]} == {_GUARD}, "something was written beside a buffer"
        return data[at : at + size]

    def launch(self, kernel: str, arguments: bytes, blocks: int, threads: int) -> None:
        """Run a kernel to its end."""
        self._library[kernel](ctypes.c_char_p(arguments), blocks, threads, self._seed)

    def clear(self) -> None:
        """Forget all memory."""
        self._memory.clear()
