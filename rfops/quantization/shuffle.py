"""Orders of weights and their scales in memory that matrix operands are read from best, as aiter
has them.

    shuffle_weight, "16x16": [rows, bytes] as tiles of 16 rows by 16 bytes, row after row, those of
        16 rows one after the other. 64 lanes that load 16 bytes each read 1 KB in a row: 16 rows by
        64 bytes, which are 128 elements of FP4.
    shuffle_scale, "32x8": e8m0 [rows, K/32], padded to multiples of 256 rows by 8 blocks, as tiles
        of 32 rows by 8 blocks; in a tile byte ((b % 4) * 16 + row % 16) * 4 + b / 4 * 2 + row / 16.
        A lane's dword holds its scales of two operands of 16 rows and of two steps of 128 along K.

What they return is a type of its own (rfops.dispatch.layout.Shuffled), which no op takes for plain
rows. It is unwrapped by one isinstance, also under torch.compile; as a subclass of Tensor it would
send each call through torch's dispatcher. What keeps weights as plain tensors, as the parameters of
vLLM and SGLang are, says the order where it calls: Shuffled(parameter, "16x16"), or by the names
and flags of rfops.compat.
"""

from __future__ import annotations

import torch

from rfops.dispatch.declare import DTYPES
from rfops.dispatch.guards import describe
from rfops.dispatch.layout import Shuffled
from rfops.jit.errors import show

__all__ = ["shuffle_scale", "shuffle_weight", "unshuffle_scale", "unshuffle_weight"]

WEIGHT, SCALE = "16x16", "32x8"
SCALE_ROWS, SCALE_BLOCKS = 256, 8  # multiples that scales are padded to
TILE_ROWS = 32  # the multiple of rows that they must be padded to
_PAD = 127  # of scales: 1


def shuffle_weight(w: torch.Tensor, layout: tuple[int, int] = (16, 16)) -> Shuffled:
    """Weights in the order "16x16" of this module, for ops that read weights more than once.

    w : [..., rows, columns] of FP8, of two FP4 a byte (uint8), or of 16 bits, any strides; rows,
        and the bytes of one, are multiples of 16.
    layout : (16, 16), the one order there is; the argument is that of aiter.

    Returns a Shuffled of w's shape and dtype, on its device. Raises ValueError for what does not
    fit.

    Source: the layout of aiter's shuffle_weight.
    """
    fits = isinstance(w, torch.Tensor) and w.dim() >= 2 and w.itemsize <= 2
    if layout != (16, 16) or not fits or w.shape[-2] % 16 or w.shape[-1] * w.itemsize % 16:
        raise ValueError(
            "shuffle_weight: w must be a [..., 16 n, 16 k] tensor of FP8, or of two FP4 a byte, or "
            "[..., 16 n, 8 k] of 16 bits, and layout (16, 16), got "
            f"{describe(w)} and {show(layout)}; pad it with zeros"
        )
    w = w.contiguous()
    *lead, rows, columns = w.view(torch.uint8).shape
    tiles = w.view(torch.uint8).view(*lead, rows // 16, 16, columns // 16, 16)
    return Shuffled(tiles.transpose(-3, -2).reshape(*lead, rows, columns).view(w.dtype), WEIGHT)


def unshuffle_weight(w: torch.Tensor | Shuffled) -> torch.Tensor:
    """The rows of what shuffle_weight made: a plain tensor of w's shape and dtype.

    w : a Shuffled, or a plain tensor [..., rows, columns] in the order "16x16". Raises torch's
    RuntimeError where rows, or the bytes of one, are no multiples of 16.

    Source: the inverse of aiter's shuffle_weight.
    """
    data = w.data if isinstance(w, Shuffled) else w
    stored = data.contiguous().view(torch.uint8)
    *lead, rows, columns = stored.shape
    tiles = stored.view(*lead, rows // 16, columns // 16, 16, 16)
    return tiles.transpose(-3, -2).reshape(stored.shape).view(data.dtype)


def padded_scale(rows: int, blocks: int, multiple: int = SCALE_ROWS) -> tuple[int, int]:
    """The sizes of what shuffle_scale makes of [rows, blocks]."""
    return -(-rows // multiple) * multiple, -(-blocks // SCALE_BLOCKS) * SCALE_BLOCKS


def shuffle_scale(scale: torch.Tensor) -> Shuffled:
    """Scales in the order "32x8" of this module, padded to multiples of 256 rows by 8 blocks.

    scale : [rows, K/32] e8m0, uint8 or float8_e8m0fnu, any strides.

    Returns a Shuffled of the padded shape and the same dtype; padding is 1, byte 127. Raises
    ValueError for another shape or dtype.

    Source: the layout of aiter's e8m0_shuffle. That leaves padding as it finds it, so kernels read
    none of it.
    """
    if not isinstance(scale, torch.Tensor) or scale.dim() != 2 or scale.dtype not in DTYPES["e8m0"]:
        expected = "a [rows, K/32] tensor of float8_e8m0fnu or uint8"
        raise ValueError(
            f"shuffle_scale: scale must be {expected}, got {describe(scale)}; "
            "shuffle each matrix by itself"
        )
    rows, blocks = scale.shape
    padded = scale.new_full(padded_scale(rows, blocks), _PAD, dtype=torch.uint8)
    padded[:rows, :blocks] = scale.view(torch.uint8)
    tiles = padded.view(padded.shape[0] // 32, 2, 16, padded.shape[1] // 8, 2, 4)
    tiles = tiles.permute(0, 3, 5, 2, 4, 1)
    return Shuffled(tiles.reshape(padded.shape).view(scale.dtype), SCALE)


def unshuffle_scale(scale: torch.Tensor | Shuffled, rows: int, blocks: int) -> torch.Tensor:
    """The [rows, blocks] that shuffle_scale was given: a plain tensor of its dtype, a byte each.

    scale : a Shuffled, or a plain tensor in the order "32x8", padded to multiples of at least 32
    rows by 8 blocks. Raises ValueError for another shape.

    Source: the inverse of aiter's e8m0_shuffle.
    """
    data = scale.data if isinstance(scale, Shuffled) else scale
    min_rows, columns = padded_scale(rows, blocks, TILE_ROWS)
    if data.dim() != 2 or data.shape[0] < min_rows or data.shape[1] != columns:
        raise ValueError(
            f"unshuffle_scale: scale must be a [{min_rows} or more, {columns}] tensor for {rows} x "
            f"{blocks} scales, got {describe(data)}; pass what shuffle_scale made of them"
        )
    m, n = data.shape
    tiles = data.contiguous().view(torch.uint8).view(m // 32, n // 8, 4, 16, 2, 2)
    scales: torch.Tensor = tiles.permute(0, 5, 3, 1, 4, 2).reshape(m, n)
    return scales[:rows, :blocks].view(data.dtype)
