"""Triton GEMMs whose programs share out K: fp32 sums of each part, and their sum.

    run = in_splits(device, splits, m, n, gemm)  # gemm(parts or out, *inputs) launches

Parts are [splits, M, N] in scratch memory that is kept from call to call.
"""

from __future__ import annotations

import torch

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Run
from rfops.dispatch.workspace import Workspace

from .bound import BoundTriton

_COLUMNS = 256  # of a row, a program


def in_splits(device: torch.device, splits: int, m: int, n: int, gemm: Run) -> Run:
    """A launch of `gemm` into out[M, N], of any distance from row to row."""
    if splits == 1:
        return gemm
    workspace = Workspace(device, ((splits, m, n), torch.float32))
    add = BoundTriton("rfops.triton.split_kernels", "add_splits", device, (splits, _COLUMNS))
    grid = (m, ceil(n, _COLUMNS), 1)

    def run(out: torch.Tensor, *inputs: torch.Tensor) -> None:
        (parts,) = workspace()
        gemm(parts, *inputs)
        add(grid, (out, parts), (m, n, out.stride(0)))

    return run
