"""Checks of tensors that lie in any strides: how far they reach, and whether they meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .guards import Guard, describe
from .kernel import Call
from .view import View

Sizes = Sequence[int]


def strides_of(view: View, sizes: Sizes) -> Sizes:
    """Of a tensor of these three sizes that lies as this one does."""
    return (sizes[1] * sizes[2], sizes[2], 1) if view.contiguous else view.strides


def matrix_strides(c: Call, name: str, columns: int) -> tuple[int, int]:
    """Of one of a call's matrices of so many columns: what is contiguous stays so in calls of other
    sizes, others keep their strides."""
    view = c.tensors.get(name)
    if view is None or view.contiguous:
        return columns, 1
    row, column = view.strides
    # The row stride of a single row says nothing; it is that of a contiguous matrix.
    return (columns if view.shape[0] == 1 else row), column


def extent(sizes: Sizes, strides: Sizes, item_size: int) -> int:
    """Bytes from the first element to the end of the one that lies farthest."""
    if 0 in sizes:
        return 0
    pairs = zip(sizes, strides, strict=True)
    return (1 + sum((size - 1) * stride for size, stride in pairs)) * item_size


def extent_of(view: View, sizes: Sizes) -> int:
    """Return how many bytes the view spans with the strides it has for these sizes."""
    return extent(sizes, strides_of(view, sizes), view.itemsize)


def overlaps_itself(sizes: Sizes, strides: Sizes) -> bool:
    """Whether strides put two elements in one place, or may: sorted by stride, each must step over
    all that the smaller ones reach."""
    reach = 0
    dims = zip(sizes, strides, strict=True)
    for stride, size in sorted((stride, size) for size, stride in dims if size > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def check_apart(
    op: str,
    out: torch.Tensor,
    extents: Sizes,
    names: Sequence[str],
    inputs: Sequence[torch.Tensor],
) -> None:
    """`out` shares no byte with an input, which other programs still read; `extents` are the
    inputs', then its own. Between the rows of a strided out an input may lie."""
    start = out.data_ptr()
    end = start + extents[-1]
    for tensor, size in zip(inputs, extents, strict=False):
        address = tensor.data_ptr()
        if start < address + size and address < end and _share_memory(out, tensor):
            name = names[[t is tensor for t in inputs].index(True)]
            shown = f"{describe(out)} in the memory of {name} {describe(tensor)}"
            Guard(op).fail("out", f"apart from {name}", shown, "pass another out, or none")


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an address belongs to both; where that is hard to tell, yes."""
    try:
        return np.shares_memory(_as_addresses(a), _as_addresses(b), 10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _as_addresses(tensor: torch.Tensor) -> np.ndarray:
    """An array in the tensor's place, for its addresses alone: they may be a GPU's."""
    size = tensor.element_size()
    interface = {
        "version": 3,
        "data": (tensor.data_ptr(), True),
        "shape": tuple(tensor.shape),
        "strides": tuple(size * stride for stride in tensor.stride()),
        "typestr": f"|V{size}",
    }
    return np.asarray(type("Place", (), {"__array_interface__": interface})())
