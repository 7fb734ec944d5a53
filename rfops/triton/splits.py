"""Split-K for Triton GEMMs: fp32 partials of each split of K, and their sum.

    run = in_splits(device, splits, m, n, gemm)  # gemm(partials or out, *inputs) launches

Partials are [splits, M, N] fp32 in a workspace that is kept from call to call.
"""

from __future__ import annotations

import torch

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Run
from rfops.dispatch.workspace import Workspace

from .bound import BoundTriton

_COLUMNS = 256  # of a row, a program


def in_splits(device: torch.device, splits: int, m: int, n: int, gemm: Run) -> Run:
    """Return the launch of a GEMM into out [M, N], with any stride between rows: `gemm` itself with
    one split, otherwise `gemm` into partials and their sum in the order of splits."""
    if splits == 1:
        return gemm
    workspace = Workspace(device, ((splits, m, n), torch.float32))
    constants = {"SPLITS": splits, "COLUMNS": _COLUMNS}
    add = BoundTriton("rfops.triton.split_kernels", "add_splits", device, constants)
    launch = add.prepare("out partials", strides={"out": "out_m _"})
    run_add = launch((m, ceil(n, _COLUMNS), 1), m=m, n=n)

    def run(out: torch.Tensor, *inputs: torch.Tensor) -> None:
        (partials,) = workspace()
        gemm(partials, *inputs)
        run_add(out, partials)

    return run
