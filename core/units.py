"""Parsing and formatting of sizes and URLs."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from core.errors import RequestError

_POWERS = {"b": 0, "kb": 1, "mb": 2, "gb": 3, "tb": 4}


def human(size: float) -> str:
    """Return a size as text: 154.4 MB (powers of 1000, as package indexes show them)."""
    for unit in ("B", "kB", "MB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def parse_size(text: str, origin: str = "") -> int:
    """Return the bytes of a size such as 60GB, 500 MB or 1000 (powers of 1000).

    Raises:
        RequestError: the text is not a size.
    """
    match = re.fullmatch(
        r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?B)?\s*", text, re.IGNORECASE
    )
    if match is None:
        raise RequestError(
            f"{f'{origin}: ' if origin else ''}{text!r} is not a size.",
            hint="Write it like 60GB.",
        )
    return int(float(match[1]) * 1000 ** _POWERS[(match[2] or "B").lower()])


def parse_url(text: str, origin: str = "") -> SplitResult:
    """Split a URL into its parts.

    Raises:
        RequestError: the URL has an incomplete IPv6 address, or a port that is not a
            number.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise RequestError(
            f"{f'{origin}: ' if origin else ''}{text!r} is not a URL: {error}.",
            hint="Write it like https://host:443/path.",
        ) from error
    return parts
