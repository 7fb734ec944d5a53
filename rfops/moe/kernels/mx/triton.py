"""fused_moe with MXFP4 or MX-FP8 weights in Triton, for GPUs without such matrix instructions: rows
are quantised and widened to bf16, weights in the kernels (triton_kernels.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import TritonKernel

from ...align_block_size import moe_align_block_size
from ...experts import layout_sizes, with_shared
from ...fused_moe_mx import MXFP4, RAW, Format
from ...moe_op import chosen
from ..bf16.triton import LAYOUT, add_rows
from ..limits import refuses_slots, refuses_weights

_KERNELS = "rfops.moe.kernels.mx.triton_kernels"
_BLOCK_N, _BLOCK_K, _MAX_COLUMNS = 64, 128, 65535


class TritonMxMoe(TritonKernel):
    """Experts of MX weights in Triton, for every architecture."""

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
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
        constants = {
            "BLOCK_M": self.block_m,
            "BLOCK_N": _BLOCK_N,
            "BLOCK_K": _BLOCK_K,
            "FP4": fmt is MXFP4,
            "SHUFFLED": c.w_layout != RAW,
            "SHUFFLED_SCALES": c.scale_layout != RAW,
            "NATIVE": not c.arch.startswith("gfx"),
        }
        gate_up, down = (
            BoundTriton(_KERNELS, name, c.device, constants, 4, 2) for name in ("gate_up", "down")
        )
        self.num_ids = c.M * self.all_k
        self.num_slots, blocks = layout_sizes(self.num_ids, self.block_m, c.E, True)
        self.gate_up = gate_up.prepare(f"h x w w_scale {LAYOUT}")(
            (blocks, ceil(c.I, _BLOCK_N), 1),
            sizes=(self.num_ids, c.I, c.D, self.all_k),
            x_m=c.D,
        )
        self.down = down.prepare(f"y h w w_scale {LAYOUT}")(
            (blocks, ceil(c.D, _BLOCK_N), 1), sizes=(self.num_ids, c.D, c.I)
        )
        self.add = add_rows(c)

    def __call__(self, out: Tensor, x: Tensor, *args: Any) -> None:
        w1, w2, s1, s2, *choice = args
        c = self.c
        topk_weights, topk_ids = chosen(c, x, *choice)
        ids = topk_ids
        if c.E > c.R:
            ids = with_shared(topk_weights, topk_ids, c.E, c.E - c.R)[1]
        layout = moe_align_block_size(ids, self.block_m, c.E, None, True)
        h, y = x.new_empty((self.num_slots, c.I)), x.new_empty((self.num_ids, c.D))
        rounding = self.c.rounding
        rows = self.fmt.operand(x, rounding)
        w1, w2, s1, s2 = (w.view(torch.uint8) for w in (w1, w2, s1, s2))
        self.gate_up(h, rows, w1, s1, *layout)
        self.down(y, self.fmt.operand(h, rounding), w2, s2, *layout)
        self.add(out, y, topk_weights, topk_ids)
