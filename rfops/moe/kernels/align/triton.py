"""moe_align_block_size in Triton: two launches, for GPUs without a HIP kernel."""

from __future__ import annotations

from typing import Any

import torch

from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.workspace import Workspace
from rfops.triton import launch
from rfops.triton.bound import BoundTriton

_KERNELS = "rfops.moe.kernels.align.triton_kernels"
MAX_EXPERTS = 8192
ROWS, WARPS = 1024, 4  # of ids that a program looks at at once


class TritonAlign(Kernel):
    name = "triton"

    def refuses(self, c: Call) -> str | None:
        if reason := launch.missing():
            return reason
        if not 0 < c.E <= MAX_EXPERTS:
            return f"{c.E} experts are none, or more than {MAX_EXPERTS}"
        return None

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(rows: int, experts: int) -> Run:
            bins = 1 << (experts - 1).bit_length()
            count = BoundTriton(_KERNELS, "count", c.device, (ROWS,), WARPS)
            place = BoundTriton(_KERNELS, "place", c.device, (ROWS, max(bins, 2)), WARPS)
            scratch = Workspace(c.device, (experts, torch.int32))
            ignores = c.ignore_invalid_experts

            def run(aligned: Any, ids: torch.Tensor, expert_map: torch.Tensor | None) -> None:
                row_map, block_map = (expert_map, None) if ignores else (None, expert_map)
                (counts,) = scratch()
                grid = experts, 1, 1
                count(grid, (counts, ids, row_map), (rows, experts))
                slots, blocks = aligned[0].shape[0], aligned[1].shape[0]
                place(
                    grid,
                    (*aligned, ids, row_map, block_map, counts),
                    (rows, experts, c.block_size, slots, blocks),
                )

            return run

        return run_of
