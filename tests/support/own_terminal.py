"""Pseudo-terminals as standard output and standard error of this process."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Printed:
    """Text that this process printed on its two terminals."""

    out: str = ""
    err: str = ""


@contextmanager
def own_terminals(columns: int) -> Iterator[Printed]:
    """Connect stdout and stderr to two terminals of this width until the block ends."""
    printed = Printed()
    before = (sys.stdout, sys.stderr)
    streams = []
    threads = []
    texts = (bytearray(), bytearray())
    for text in texts:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # no carriage returns
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        streams.append(
            io.TextIOWrapper(
                os.fdopen(theirs, "wb"), encoding="utf-8", write_through=True
            )
        )
        threads.append(threading.Thread(target=_read, args=(ours, text)))
        threads[-1].start()
    sys.stdout, sys.stderr = streams
    try:
        yield printed
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.close()
        for thread in threads:
            thread.join()
        printed.out, printed.err = (bytes(text).decode() for text in texts)


def _read(terminal: int, data: bytearray) -> None:
    with os.fdopen(terminal, "rb", buffering=0) as file:
        try:
            while chunk := file.read(1 << 16):
                data += chunk
        except OSError:  # Linux reports the end of the last writer like this
            return
