"""Atomic writes of files."""

from __future__ import annotations

import os
from pathlib import Path

from core.os_errors import writes_to


def write_whole(out: Path, data: bytes) -> None:
    """Write a file atomically: until the end, readers see the old content.

    A pipe, a device or a link, such as /dev/stdout, is written to directly and not replaced.
    """
    if out.is_symlink() or (out.exists() and not out.is_file()):
        out.write_bytes(data)
        return
    # Process IDs are not unique: threads share one, and containers that share a folder can have equal ones.
    fresh = out.with_name(f".{out.name}.{os.urandom(8).hex()}")
    try:
        with writes_to(out):
            fresh.write_bytes(data)
        fresh.replace(out)
    finally:
        fresh.unlink(missing_ok=True)
