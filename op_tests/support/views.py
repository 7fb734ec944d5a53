"""Tensors in unusual strides: expanded, overlapping, transposed, with gaps, at offsets, and with
arbitrary strides in dimensions of size 1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

GUARD = 64  # elements of poison before and after a view
FAR = 1 << 20  # a stride that no storage here has room for


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last that strides reach."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def layouts(shape: Sequence[int], size: int) -> Iterator[tuple[str, list[int], int]]:
    """Name, strides and offset of each view of a shape with elements of `size` bytes; the first
    ones are contiguous."""
    dense = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        dense[i] = dense[i + 1] * max(shape[i + 1], 1)
    vector = 16 // size
    yield "at 16 bytes", dense, vector
    yield "at one element", dense, 1
    for stride in (0, 3, FAR):
        ones = [stride if n == 1 else s for n, s in zip(shape, dense, strict=True)]
        if ones != dense:
            yield f"ones {stride}", ones, 0
    for i, n in enumerate(shape):
        if n > 1:
            yield f"expanded {i}", [0 if j == i else s for j, s in enumerate(dense)], 0
    yield "one element", [0] * len(shape), 0
    if len(shape) < 2:
        yield "every second", [2 * s for s in dense], 0
        return
    for pad in (1, vector):
        rows = [s + (pad * s // dense[-2]) for s in dense[:-1]]
        yield f"rows {pad} apart", [*rows, 1], 0
    yield "rows far apart, late", [*(2 * s for s in dense[:-1]), 1], 1
    yield "every second", [2 * s for s in dense], 0
    for step in (1, vector):
        yield f"windows {step}", [*dense[:-2], step, 1], 0
    large = [i for i, n in enumerate(shape) if n > 1]
    for order in itertools.permutations(large):
        if list(order) != large:
            yield f"order {order}", permute_strides(shape, order), 0


def permute_strides(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """The strides of a tensor whose memory has its dimensions in this order; 7 of those of 1."""
    strides, step = [7] * len(shape), 1
    for i in reversed(order):
        strides[i], step = step, step * shape[i]
    return strides


def has_own_places(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two elements are in one place; for the layouts above."""
    reach = 0
    for stride, n in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride <= reach:
            return False
        reach += (n - 1) * stride
    return True


def lay(tensor: torch.Tensor, strides: Sequence[int], offset: int, guard: int = 0) -> torch.Tensor:
    """The values of a tensor in other strides, `offset` elements behind the 16-byte boundary where
    its storage begins (behind `guard` elements of poison); where elements share places, values of
    it in another order. Without a guard the storage ends with the last element."""
    count = extent(tensor.shape, strides)
    raw = torch.empty((offset + count + 2 * guard) * tensor.itemsize + 64, dtype=torch.uint8)
    byte_begin = -raw.data_ptr() % 64
    byte_end = byte_begin + (offset + count + 2 * guard) * tensor.itemsize
    storage = torch.full_like(raw[byte_begin:byte_end], 0xFF).view(tensor.dtype)
    if not guard:  # nothing but the view may be known to the virtual GPU's checks
        storage = _exact(storage, offset + count)
    view = storage.as_strided(tensor.shape, strides, offset + guard)
    if has_own_places(tensor.shape, strides):
        bits(view, copy=False).copy_(bits(tensor))
    elif count:
        flat = bits(tensor).reshape(-1)
        values = flat.repeat(-(-count // flat.numel()))[:count]
        bits(storage, copy=False)[offset + guard : offset + guard + count] = values
    return view


_INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor, copy: bool = True) -> torch.Tensor:
    """The elements as ints of their size, so that copies and comparisons see the bits of NaN and of
    8-bit floats; a copy, contiguous, or the tensor's own memory."""
    return (tensor.contiguous() if copy else tensor).view(_INTS[tensor.itemsize])


def _exact(like: torch.Tensor, count: int) -> torch.Tensor:
    """Memory of so many elements at a 64-byte boundary, whose storage is that and no more."""
    result = torch.empty(count, dtype=like.dtype)
    bits(result, copy=False).fill_(-1 if result.itemsize > 1 else 0xFF)
    return result
