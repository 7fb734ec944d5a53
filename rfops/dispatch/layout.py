"""Weights that are stored in another order than their sizes say, as a type of their own.

    w = Shuffled(data, "16x16")  # what a shuffle function returns
    tensor, layout = unwrap(w)  # in a public function; its Op has a value `w_layout: raw|16x16`

Such a tensor is never taken for a plain one: it is none. A kernel refuses layouts as it does sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Shuffled:
    """`data` holds the elements of a tensor of the same sizes in the order that `layout` names."""

    data: torch.Tensor
    layout: str

    @property
    def shape(self) -> torch.Size:
        """The shape of the stored data."""
        return self.data.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored data."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        """The device of the stored data."""
        return self.data.device

    def to(self, *args: Any, **options: Any) -> Shuffled:
        """As torch.Tensor.to, of the data."""
        return Shuffled(self.data.to(*args, **options), self.layout)

    def __repr__(self) -> str:
        return f"Shuffled({list(self.shape)} {self.dtype} on {self.device}, {self.layout})"


def shuffled(data: torch.Tensor, layout: str, layouts: Sequence[str]) -> Shuffled:
    """A tensor in one of the `layouts` layouts. Raises ValueError."""
    if layout not in layouts:
        raise ValueError(
            f"Shuffled: layout must be one of {', '.join(layouts)}, got {layout!r}; "
            "use the op's own shuffle function"
        )
    return Shuffled(data, layout)


def unwrap(weight: torch.Tensor | Shuffled) -> tuple[torch.Tensor, str]:
    """The tensor and its layout, `raw` for a plain one."""
    return (weight.data, weight.layout) if isinstance(weight, Shuffled) else (weight, "raw")
