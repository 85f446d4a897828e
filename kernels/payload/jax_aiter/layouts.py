"""The orders in which AITER's kernels want quantised weights and scales, as jnp functions with their inverses.

A weight is reordered once, when it is quantised, and passed with preshuffled=True from then on. The orders are those
of AITER's aiter/ops/shuffle.py and aiter/utility/fp4_utils.py.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_aiter import _check

__all__ = ["shuffle_scale", "shuffle_weight", "unshuffle_scale", "unshuffle_weight"]

_SCALE_ROWS, _SCALE_COLUMNS = 256, 8


def shuffle_weight(weight: Array, layout: tuple[int, int] = (16, 16)) -> Array:
    """Reorder a weight into the tiles that a matrix instruction reads.

    Each tile of layout[0] rows and 2 * layout[1] bytes of a row is stored as pieces of 16 bytes, piece by piece of all
    rows.

    Args:
        weight: [N, bytes of K], of a dtype of one byte; N a multiple of layout[0], K of 2 * layout[1].
        layout: (32, 16) for int8, (16, 16) and (16, 32) for the others; see the operation.

    Returns:
        The same shape and dtype.

    Raises:
        ValueError: the shape is no multiple of the tile.
        TypeError: the dtype is not of one byte.
    """
    rows, columns, tile, pieces = _tiles("shuffle_weight", weight, layout)
    tiled = weight.reshape(rows // tile, tile, columns // (16 * pieces), pieces, 16)
    return tiled.transpose(0, 2, 3, 1, 4).reshape(rows, columns)


def unshuffle_weight(weight: Array, layout: tuple[int, int] = (16, 16)) -> Array:
    """Invert `shuffle_weight`, with the same arguments and errors."""
    rows, columns, tile, pieces = _tiles("unshuffle_weight", weight, layout)
    tiled = weight.reshape(rows // tile, columns // (16 * pieces), pieces, tile, 16)
    return tiled.transpose(0, 3, 1, 2, 4).reshape(rows, columns)


def shuffle_scale(scale: Array) -> Array:
    """Pad and reorder the e8m0 scales of one factor of a FP4 product.

    Args:
        scale: [rows, K/32], uint8.

    Returns:
        [rows rounded up to 256, K/32 rounded up to 8], uint8; what is padded is 0.
    """
    _check.rank("shuffle_scale", "scale", scale, "[rows, K/32]")
    rows, columns = scale.shape
    padded = jnp.pad(scale, ((0, -rows % _SCALE_ROWS), (0, -columns % _SCALE_COLUMNS)))
    tiled = padded.reshape(padded.shape[0] // 32, 2, 16, padded.shape[1] // 8, 2, 4)
    return tiled.transpose(0, 3, 5, 2, 4, 1).reshape(padded.shape)


def unshuffle_scale(scale: Array, rows: int, columns: int) -> Array:
    """Invert `shuffle_scale`.

    Args:
        scale: [rows rounded up to 256, columns rounded up to 8], uint8.
        rows: of the factor.
        columns: K/32.

    Returns:
        [rows, columns], uint8.

    Raises:
        ValueError: the shape is not the one that `shuffle_scale` gives.
    """
    _check.rank("unshuffle_scale", "scale", scale, "[rows, K/32]")
    padded = (rows + -rows % _SCALE_ROWS, columns + -columns % _SCALE_COLUMNS)
    _check.equal("unshuffle_scale", "scale", scale.shape, padded, "[rows up to 256, K/32 up to 8]")
    tiled = scale.reshape(padded[0] // 32, padded[1] // 8, 4, 16, 2, 2)
    return tiled.transpose(0, 5, 3, 1, 4, 2).reshape(padded)[:rows, :columns]


def _tiles(operation: str, weight: Array, layout: tuple[int, int]) -> tuple[int, int, int, int]:
    _check.rank(operation, "weight", weight, "[N, K]")
    if weight.dtype.itemsize != 1:
        raise TypeError(f"{operation}: weight is of {weight.dtype}; it has to be of a dtype of one byte.")
    tile, depth = layout
    rows, columns = weight.shape
    _check.multiple(operation, "N", rows, tile)
    _check.multiple(operation, "K in bytes", columns, 2 * depth)
    return rows, columns, tile, 2 * depth // 16
