"""How a tensor lies in memory, without the tensor: what a plan may keep of a caller's argument."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_MOST_ALIGN = 16  # bytes, as the keys of plans count addresses (rfops.jit.Plans)


@dataclass(frozen=True, slots=True)
class View:
    """The layout of a tensor. Attributes and methods are named as those of torch.Tensor.

    Where a plan's key counts a stride not at all, that of a dimension of size 1, the view has the
    stride of a contiguous tensor: a decision may depend on a view and on nothing else of a tensor.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: torch.dtype
    device: torch.device
    contiguous: bool = True
    align: int = _MOST_ALIGN  # bytes, at most 16: divides the address

    @classmethod
    def of(cls, tensor: torch.Tensor) -> View:
        """Return the view of a tensor; a dimension of size 1 gets a contiguous tensor's stride."""
        shape, strides = tuple(tensor.shape), list(tensor.stride())
        elements = 1
        for i in range(len(shape) - 1, -1, -1):
            if shape[i] == 1:
                strides[i] = elements
            elements *= max(shape[i], 1)
        address = tensor.data_ptr() | _MOST_ALIGN
        memory = tensor.dtype, tensor.device, tensor.is_contiguous(), address & -address
        return cls(shape, tuple(strides), *memory)

    @classmethod
    def dense(cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> View:
        """That of a contiguous tensor."""
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return cls(tuple(shape), tuple(strides), dtype, device)

    def stride(self, dim: int) -> int:
        """The stride of one dimension in elements."""
        return self.strides[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def is_contiguous(self) -> bool:
        """Whether elements lie in order without gaps."""
        return self.contiguous

    def element_size(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, gaps not counted."""
        return math.prod(self.shape) * self.itemsize


def views_of(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The views of tensors by name; a table of tensors becomes a tuple of views, None stays."""
    return {name: _view_of(value) for name, value in tensors.items()}


def _view_of(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple([View.of(tensor) for tensor in value])
    return value if value is None else View.of(value)
