"""Lanes that data-parallel primitives (DPP) read: CDNA3 6.8 and 13.3.9, RDNA3 15.3.8."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = Any


@cache
def sources(control: int, lanes: int) -> Array:
    """Return the lane that each lane reads."""
    lane = np.arange(lanes)
    if control < 0x100:
        return lane & ~3 | control >> 2 * (lane & 3) & 3  # quad_perm
    assert 0x150 <= control <= 0x15F, f"DPP control {control:#x} is not known"
    return lane & ~15 | control & 15  # row_newbcast
