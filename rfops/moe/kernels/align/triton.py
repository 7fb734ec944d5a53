"""moe_align_block_size in Triton: two launches, for GPUs without a HIP kernel."""

from __future__ import annotations

from typing import Any

import torch

from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.workspace import Workspace
from rfops.triton import launch
from rfops.triton.bound import BoundTriton

from ...experts import layout_sizes

_KERNELS = "rfops.moe.kernels.align.triton_kernels"
_PLACED = "sorted_ids expert_ids num_padded ids row_map block_map counts"
MAX_EXPERTS = 8192
ROWS, WARPS = 1024, 4  # of ids that a program looks at at once


class TritonAlign(Kernel):
    """The lists in Triton: a count and a placement, one program per expert."""

    name = "triton"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := launch.missing():
            return reason
        if not 0 < c.E <= MAX_EXPERTS:
            return f"{c.E} experts are none, or more than {MAX_EXPERTS}"
        return None

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(rows: int, experts: int) -> Run:
            bins = 1 << (experts - 1).bit_length()
            grid, sizes = (experts, 1, 1), {"rows": rows, "experts": experts}
            count = BoundTriton(_KERNELS, "count", c.device, {"ROWS": ROWS}, WARPS)
            run_count = count.prepare("counts ids row_map")(grid, **sizes)
            constants = {"ROWS": ROWS, "BINS": max(bins, 2)}
            place_rows = BoundTriton(_KERNELS, "place", c.device, constants, WARPS)
            num_slots, blocks = layout_sizes(rows, c.block_size, experts, c.pad_sorted_ids)
            run_place = place_rows.prepare(_PLACED)(
                grid, block=c.block_size, slots=num_slots, blocks=blocks, **sizes
            )
            scratch = Workspace(c.device, (experts, torch.int32))
            ignores = c.ignore_invalid_experts

            def run(aligned: Any, ids: torch.Tensor, expert_map: torch.Tensor | None) -> None:
                row_map, block_map = (expert_map, None) if ignores else (None, expert_map)
                (counts,) = scratch()
                run_count(counts, ids, row_map)
                run_place(*aligned, ids, row_map, block_map, counts)

            return run

        return run_of
