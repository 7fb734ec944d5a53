"""fused_moe with MXFP4 or MX-FP8 weights in Triton, for GPUs without such matrix instructions: rows
are quantised and widened to bf16, weights in the kernels (triton_kernels.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.tuned_table import serving
from rfops.jit.arch import ROWS
from rfops.triton import launch
from rfops.triton.bound import BoundTriton

from ...align_block_size import moe_align_block_size
from ...experts import with_shared
from ...fused_moe_mx import MXFP4, RAW, Format
from ...fused_moe_tables import chosen
from ..limits import refuses_slots, refuses_weights

_KERNELS, _ADD = "rfops.moe.kernels.mx.triton_kernels", "rfops.moe.kernels.bf16.triton_kernels"
_COLUMNS = 1024  # of a program that adds rows
_BLOCK_N, _BLOCK_K, _MAX_COLUMNS = 64, 128, 65535


class TritonMxMoe(Kernel):
    name = "triton"

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt

    def refuses(self, c: Call) -> str | None:
        reason = launch.missing()
        if reason is not None:
            return reason
        if serving(c.arch) is None:
            return f"no tiles for {c.arch}: {', '.join(ROWS)} and later NVIDIA GPUs have some"
        if reason := refuses_weights(c, self.fmt.bits) or refuses_slots(c):
            return reason
        if ceil(max(c.D, c.I), _BLOCK_N) > _MAX_COLUMNS:
            return f"D={c.D}, I={c.I}: more columns than a grid has"
        return None

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(*sizes: int) -> Run:
            return _Launches(c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))), self.fmt)

        return run_of


class _Launches:
    """The launches of one call; temporaries come from torch's allocator."""

    def __init__(self, c: Call, fmt: Format) -> None:
        self.c, self.fmt, self.all_k = c, fmt, c.K + c.E - c.R
        rows = ceil(c.M * self.all_k, max(c.E, 1))  # of an expert
        self.block_m = min(64, max(16, 1 << (rows - 1).bit_length()))
        layouts = c.w_layout != RAW, c.scale_layout != RAW
        tile = self.block_m, _BLOCK_N, _BLOCK_K, fmt is MXFP4, *layouts
        self.gate_up, self.down = (
            BoundTriton(_KERNELS, name, c.device, tile, 4, 2) for name in ("gate_up", "down")
        )
        self.add = BoundTriton(_ADD, "add_rows", c.device, (self.all_k, _COLUMNS))

    def __call__(self, out: Tensor, x: Tensor, *rest: Any) -> None:
        w1, w2, s1, s2, *choice = rest
        c = self.c
        topk_weights, topk_ids = chosen(c, x, *choice)
        ids = topk_ids
        if c.E > c.R:
            ids = with_shared(topk_weights, topk_ids, c.E, c.E - c.R)[1]
        layout = moe_align_block_size(ids, self.block_m, c.E, None, True)
        blocks, num_ids = layout.expert_ids.numel(), c.M * self.all_k
        h = x.new_empty((layout.sorted_token_ids.numel(), c.I))
        y = x.new_empty((num_ids, c.D))
        rows = self._values(x)
        w1, w2, s1, s2 = (w.view(torch.uint8) for w in (w1, w2, s1, s2))
        self.gate_up(
            (blocks, ceil(c.I, _BLOCK_N), 1),
            (h, rows, w1, s1, *layout),
            (num_ids, c.I, c.D, self.all_k, c.D),
        )
        self.down(
            (blocks, ceil(c.D, _BLOCK_N), 1),
            (y, self._values(h), w2, s2, *layout),
            (num_ids, c.D, c.I),
        )
        self.add(
            (c.M, ceil(c.D, _COLUMNS), 1),
            (out, y, topk_weights, topk_ids),
            (c.D, c.R, c.K, self.all_k),
        )

    def _values(self, x: Tensor) -> Tensor:
        """Quantised and back, in bf16; of MXFP4 those of even places first."""
        values: Tensor = self.fmt.and_back(x, self.c.rounding, torch.bfloat16)
        if self.fmt is MXFP4:
            values = torch.cat([values[:, ::2], values[:, 1::2]], dim=1)
        return values
