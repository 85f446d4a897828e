"""Digests of bytes and files."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path


def sha256_of(data: bytes | mmap.mmap | Path) -> str:
    """Return the SHA-256 of bytes or of a file as 64 hexadecimal digits."""
    if isinstance(data, Path):
        with data.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(data).hexdigest()
