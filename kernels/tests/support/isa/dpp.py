"""Lanes that data-parallel primitives (DPP) read: CDNA3 6.8 and 13.3.9, RDNA3 15.3.8."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = Any
_ROW = 16


@cache
def sources(control: int, lanes: int) -> Array:
    """Return the lane that each lane reads; -1 for none."""
    lane = np.arange(lanes)
    row, column, count = lane & ~15, lane & 15, control & 15
    if control < 0x100:
        return lane & ~3 | control >> 2 * (lane & 3) & 3  # quad_perm
    if 0x101 <= control <= 0x10F:
        return np.where(column + count < _ROW, lane + count, -1)  # row_shl
    if 0x111 <= control <= 0x11F:
        return np.where(column >= count, lane - count, -1)  # row_shr
    if 0x121 <= control <= 0x12F:
        return row | column - count & 15  # row_ror
    if control in (0x140, 0x141):
        return lane ^ (15 if control == 0x140 else 7)  # row_mirror, row_half_mirror
    if control == 0x142:
        return row - 1  # row_bcast:15, the last lane of the row before
    if control == 0x143:
        return np.where(lane >= 32, 31, -1)  # row_bcast:31
    assert 0x150 <= control <= 0x15F, f"DPP control {control:#x} is not known"
    return row | count  # row_newbcast
