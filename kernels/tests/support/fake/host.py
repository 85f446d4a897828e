"""The portable kernels on the host: the original source, with the threads of a block as coroutines (`gpu_host.h`)."""

from __future__ import annotations

import ctypes
from pathlib import Path

_GUARD = 0xA5


class HostMachine:
    """A machine that runs kernels compiled for the host.

    Args:
        library: the compiled kernels.
        seed: seed of the order in which threads run between two barriers; 0 keeps their own order.
    """

    def __init__(self, library: Path, seed: int) -> None:
        self._library, self._seed = ctypes.CDLL(str(library)), seed
        self._memory: dict[int, tuple[ctypes.Array[ctypes.c_char], int]] = {}

    def put(self, data: bytes, shift: int = 0) -> int:
        """Allocate memory with this content and with guards around it."""
        whole = ctypes.create_string_buffer(len(data) + 1024)
        base = ctypes.addressof(whole)
        address = (base + 511) // 256 * 256 + shift
        ctypes.memset(base, _GUARD, len(whole))
        ctypes.memmove(address, data, len(data))
        self._memory[address] = whole, len(data)
        return address

    def get(self, address: int) -> bytes:
        """Return the content of memory after checking that its guards are intact."""
        whole, size = self._memory[address]
        at, data = address - ctypes.addressof(whole), whole.raw
        assert {*data[:at], *data[at + size :]} == {_GUARD}, "something was written beside a buffer"
        return data[at : at + size]

    def launch(self, kernel: str, arguments: bytes, blocks: int, threads: int) -> None:
        """Run a kernel until it ends."""
        self._library[kernel](ctypes.c_char_p(arguments), blocks, threads, self._seed)

    def clear(self) -> None:
        """Free all memory."""
        self._memory.clear()
