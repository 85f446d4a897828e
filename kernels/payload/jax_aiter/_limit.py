"""Limits of custom calls: their type and common numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Limit = tuple[Callable[[Any], bool], str]
"""Condition of a call's facts, and the reason if it is false; {names} are replaced by facts."""

INT = 2**31 - 1
"""Largest size, stride or offset of most kernels."""
BUFFER = 2**32 - 1
"""Bytes within the range of a buffer descriptor."""
