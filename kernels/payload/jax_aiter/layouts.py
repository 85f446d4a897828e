"""Memory orders of quantised weights and scales for AITER's kernels, with inverses.

A weight is reordered once, when it is quantised, and from then on passed with
preshuffled=True. The orders are those of AITER's aiter/ops/shuffle.py and
aiter/utility/fp4_utils.py.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_aiter import _check

__all__ = ["shuffle_scale", "shuffle_weight", "unshuffle_scale", "unshuffle_weight"]

_SCALE_ROWS = 256
_SCALE_COLUMNS = 8


def shuffle_weight(weight: Array, layout: tuple[int, int] = (16, 16)) -> Array:
    """Reorder a weight into the tiles that a matrix instruction reads.

    A tile has layout[0] rows and 2 * layout[1] elements of each row. It is stored in
    pieces of 16 bytes: the first piece of all its rows, then the second piece, and so
    on.

    Args:
        weight: [..., N, K], of a dtype of one or two bytes; N a multiple of layout[0],
            K of 2 * layout[1]. Packed fp4 counts as bytes.
        layout: LAYOUT of the operation's module: (32, 16) for int8, else (16, 16) or
            (16, 32).

    Returns:
        The reordered weight, of the same shape and dtype.

    Raises:
        ValueError: the shape is not a multiple of the tile.
        TypeError: the dtype has more than two bytes.
    """
    rows, columns, tile, pieces, piece = _tiles("shuffle_weight", weight, layout)
    tiled = weight.reshape(
        -1,
        rows,
        tile,
        columns,
        pieces,
        piece,
    )
    return tiled.transpose(
        0,
        1,
        3,
        4,
        2,
        5,
    ).reshape(weight.shape)


def unshuffle_weight(weight: Array, layout: tuple[int, int] = (16, 16)) -> Array:
    """Invert `shuffle_weight`, with the same arguments and errors."""
    rows, columns, tile, pieces, piece = _tiles("unshuffle_weight", weight, layout)
    tiled = weight.reshape(
        -1,
        rows,
        columns,
        pieces,
        tile,
        piece,
    )
    return tiled.transpose(
        0,
        1,
        4,
        2,
        3,
        5,
    ).reshape(weight.shape)


def shuffle_scale(scale: Array) -> Array:
    """Pad and reorder the e8m0 scales of one factor of an FP4 product.

    Args:
        scale: [rows, K/32], uint8.

    Returns:
        [rows rounded up to 256, K/32 rounded up to 8], uint8; the padding is 0.
    """
    _check.rank("shuffle_scale", "scale", scale, "[rows, K/32]")
    rows, columns = padded_scale(*scale.shape)
    more = (rows - scale.shape[0], columns - scale.shape[1])
    padded = jnp.pad(scale, [(0, count) for count in more])
    tiled = padded.reshape(
        rows // 32,
        2,
        16,
        columns // 8,
        2,
        4,
    )
    return tiled.transpose(
        0,
        3,
        5,
        2,
        4,
        1,
    ).reshape(rows, columns)


def padded_scale(rows: int, columns: int) -> tuple[int, int]:
    """Return the shape of `shuffle_scale`'s result for a scale of this shape."""
    groups = (rows + _SCALE_ROWS - 1) // _SCALE_ROWS
    pieces = (columns + _SCALE_COLUMNS - 1) // _SCALE_COLUMNS
    return groups * _SCALE_ROWS, pieces * _SCALE_COLUMNS


def unshuffle_scale(
    scale: Array,
    rows: int,
    columns: int,
) -> Array:
    """Invert `shuffle_scale`.

    Args:
        scale: [rows rounded up to 256, columns rounded up to 8], uint8.
        rows: number of rows of the factor.
        columns: K/32.

    Returns:
        [rows, columns], uint8.

    Raises:
        ValueError: the shape differs from that of `shuffle_scale`'s result.
    """
    padded = padded_scale(rows, columns)
    text = "[rows up to 256, K/32 up to 8]"
    _check.shape("unshuffle_scale", "scale", scale, text, padded)
    tiled = scale.reshape(
        padded[0] // 32,
        padded[1] // 8,
        4,
        16,
        2,
        2,
    )
    return tiled.transpose(
        0,
        5,
        3,
        1,
        4,
        2,
    ).reshape(padded)[:rows, :columns]


def _tiles(
    operation: str,
    weight: Array,
    layout: tuple[int, int],
) -> tuple[int, int, int, int, int]:
    # Rows and columns of tiles, rows of a tile, its pieces, and elements of a piece.
    leading = getattr(weight, "ndim", 2) - 2
    _check.rank(operation, "weight", weight, f"[{'E, ' * leading}N, K]")
    if weight.dtype.itemsize > 2:
        raise TypeError(
            f"{operation}: weight has the dtype {weight.dtype}; it has to be a dtype of"
            " one or two bytes."
        )
    tile, depth = layout
    rows, columns = weight.shape[-2:]
    _check.multiple(operation, "N", rows, tile)
    _check.multiple(operation, "K", columns, 2 * depth)
    piece = 16 // weight.dtype.itemsize
    return rows // tile, columns // (2 * depth), tile, 2 * depth // piece, piece
