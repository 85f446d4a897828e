"""Numbers as people write them."""

from __future__ import annotations


def human(size: float) -> str:
    """A size in bytes as people write it: 154.4 MB (powers of 1000, as package indexes show them)."""
    for unit in ("B", "kB", "MB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
