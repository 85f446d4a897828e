"""Memory of the interpreted GPU.

Buffers with guards, and the shared memory (LDS) of a workgroup.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
_BASE = 0x7F00_0000_0000
_GUARD = 512


class AccessError(AssertionError):
    """An access that a GPU does not define: outside all buffers, or a race."""


class Memory:
    """Global memory. Each access must be inside a buffer."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._end = _GUARD
        self._bytes: Array = np.zeros(1 << 20, np.uint8)
        self._inside: Array = np.zeros(1 << 20, bool)

    def put(
        self,
        data: bytes,
        margin: int = 0,
    ) -> int:
        """Allocate memory with this content at a multiple of 256; return its address.

        Args:
            margin: bytes after the content that may be accessed too.
        """
        at = -(-self._end // 256) * 256
        self._end = at + len(data) + margin + _GUARD
        assert self._end <= len(self._bytes), "the buffers do not fit into the memory"
        self._bytes[at : at + len(data)] = np.frombuffer(data, np.uint8)
        self._inside[at : at + len(data) + margin] = True
        self._sizes[_BASE + at] = len(data)
        return _BASE + at

    def get(self, address: int) -> bytes:
        """Return the content of allocated memory."""
        at = address - _BASE
        return bytes(self._bytes[at : at + self._sizes[address]].tobytes())

    def fill(
        self,
        address: int,
        value: int,
        size: int,
    ) -> None:
        """Set bytes, as hipMemset does."""
        self.store(np.array([address], np.uint64), np.full((1, size), value, np.uint8))

    def _indices(
        self,
        addresses: Array,
        size: int,
    ) -> Array:
        at = (np.asarray(addresses, np.uint64) - np.uint64(_BASE)).astype(np.int64)[
            :, None
        ] + np.arange(size)
        if at.size and (
            at.min() < 0 or at.max() >= len(self._bytes) or not self._inside[at].all()
        ):
            bad = int(np.asarray(addresses)[0])
            raise AccessError(
                f"an access of {size} bytes is outside all buffers, near {bad:#x}"
            )
        return at

    def load(
        self,
        addresses: Array,
        size: int,
    ) -> Array:
        """Return `size` bytes from each address: uint8[n, size]."""
        return self._bytes[self._indices(addresses, size)]

    def store(
        self,
        addresses: Array,
        data: Array,
    ) -> None:
        """Write uint8[n, size]."""
        self._bytes[self._indices(addresses, data.shape[1])] = data

    def words(
        self,
        address: int,
        count: int,
    ) -> list[int]:
        """Return 32-bit words from one address."""
        return [
            int(one)
            for one in self.load(np.array([address], np.uint64), 4 * count).view(
                np.uint32
            )[0]
        ]


class Share:
    """Shared memory of a workgroup, which reports races.

    Two waves that access a word between the same two barriers, one of them to write it,
    have no defined order.

    Args:
        size: bytes.
        random: source of the initial content.
        races: whether races are errors.
        ordered: whether accesses happen in the order in which the waves issue them.
    """

    def __init__(
        self,
        size: int,
        random: np.random.Generator,
        *,
        races: bool,
        ordered: bool = False,
    ) -> None:
        self.size = size
        self._races = races
        self.ordered = ordered
        self._bytes = random.integers(
            0, 256, size + 16, np.uint8
        )  # nobody clears shared memory
        words = size // 4 + 4
        self._written = np.full(words, -1)
        self._writer = np.full(words, -1)
        self._read = np.full(words, -1)
        self._reader = np.full(words, -1)

    def _indices(
        self,
        addresses: Array,
        size: int,
    ) -> Array:
        at = np.asarray(addresses, np.int64)
        if at.size and (at.min() < 0 or at.max() + size > self.size):
            raise AccessError(
                f"an access at {int(at.max()):#x} is outside the {self.size} bytes of"
                " shared memory"
            )
        return at[:, None] + np.arange(size)

    def load(
        self,
        wave: int,
        epoch: int,
        addresses: Array,
        size: int,
    ) -> Array:
        """Return `size` bytes, a multiple of 4, from each address."""
        at = self._indices(addresses, size)
        words = at[:, ::4] >> 2
        if (
            self._races
            and ((self._written[words] == epoch) & (self._writer[words] != wave)).any()
        ):
            raise AccessError(
                f"race: wave {wave} reads shared memory that another wave wrote after"
                " the same barrier"
            )
        others = (self._read[words] == epoch) & (self._reader[words] != wave)
        self._reader[words] = np.where(others, -2, wave)
        self._read[words] = epoch
        return self._bytes[at]

    def store(
        self,
        wave: int,
        epoch: int,
        addresses: Array,
        data: Array,
    ) -> None:
        """Write uint8[n, size]."""
        at = self._indices(addresses, data.shape[1])
        words = at[:, ::4] >> 2
        for epochs, waves, what in (
            (self._written, self._writer, "wrote"),
            (self._read, self._reader, "read"),
        ):
            if (
                self._races
                and ((epochs[words] == epoch) & (waves[words] != wave)).any()
            ):
                raise AccessError(
                    f"race: wave {wave} writes shared memory that another wave {what}"
                    " after the same barrier"
                )
        self._written[words], self._writer[words] = epoch, wave
        self._bytes[at] = data
