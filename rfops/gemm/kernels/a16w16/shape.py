"""Sizes and strides of a product of 16-bit operands, of one batch or several."""

from __future__ import annotations

from typing import NamedTuple

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call

from ..variant import TILE

Strides = tuple[int, int, int]


class Shape(NamedTuple):
    """b of [m, k] x [n, k]."""

    b: int
    m: int
    n: int
    k: int

    def sizes_of(self, name: str) -> tuple[int, int, int]:
        """Return the sizes of x, w or out, batches first."""
        rows, columns = {"x": (self.m, self.k), "w": (self.n, self.k), "out": (self.m, self.n)}[
            name
        ]
        return self.b, rows, columns

    def tiles(self, m_tiles: int, n_tiles: int) -> int:
        """Return the number of output tiles of so many matrix tiles, in all batches."""
        return self.b * ceil(self.m, TILE * m_tiles) * ceil(self.n, TILE * n_tiles)


def shape_of(*sizes: int) -> Shape:
    """Return the shape of (M, N, K) or of (B, M, N, K)."""
    return Shape(1, *sizes) if len(sizes) == 3 else Shape(*sizes)


def strides(c: Call, name: str, shape: Shape) -> Strides:
    """Return the strides in elements of x, w or out of a call like `c` of these sizes: contiguous
    tensors stay contiguous, others keep their strides."""
    view, (_, rows, columns) = c.tensors.get(name), shape.sizes_of(name)
    if view is None or view.contiguous:
        return rows * columns, columns, 1
    return (0, *view.strides)[-3:]
