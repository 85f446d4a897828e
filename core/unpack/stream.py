"""Chunks as a file that is read once, and a digest that is known before they come."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownDigest:
    """A digest that was made before, and stays what it is."""

    text: str

    def update(self, data: bytes | memoryview, /) -> None:
        """Nothing happens."""

    def digest(self) -> bytes:
        """As `hashlib` has it."""
        return bytes.fromhex(self.text)

    def hexdigest(self) -> str:
        """As `hashlib` has it."""
        return self.text


class Feed(io.RawIOBase):
    """Chunks as a file that is read once.

    Args:
        halt: called when it is closed, so that whoever waits for a chunk waits no more.
    """

    def __init__(self, chunks: Iterator[bytes | memoryview], halt: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._chunks, self._halt = chunks, halt
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] # a buffer of any kind
        """The next bytes; 0 at the end."""
        while not self._left:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._left = memoryview(chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        self.count += count
        return count

    def close(self) -> None:
        """Nobody reads any more."""
        if not self.closed:
            self._halt()
        super().close()
