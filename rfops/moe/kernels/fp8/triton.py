"""fused_moe with FP8 weights in Triton: kernels/bf16/triton.py with x and h quantized once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run
from rfops.quantization.fp8_blockscale import BLOCK, FNUZ, quant_fp8_blockscale
from rfops.triton.bound import BoundTriton

from ...align_block_size import moe_align_block_size
from ...experts import layout_sizes, with_shared
from ...router import moe_router
from ..bf16.triton import LAYOUT, FusedMoeTritonConfig, TritonMoe, add_rows

_KERNELS = "rfops.moe.kernels.fp8.triton_kernels"


class TritonFp8(TritonMoe):
    """Experts of FP8 weights with 128 x 128 scales in Triton."""

    item_bytes = 1
    blocks = ((64, BLOCK), (128, BLOCK), (256, BLOCK))

    def __init__(self) -> None:
        super().__init__(is_table=False)

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        if c.w1_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
        if not c.arch.startswith("gfx") and int(c.arch.removeprefix("sm_")) < 89:
            return f"{c.arch} has no FP8"
        return None

    def unsupported_config_reason(self, c: Call, config: FusedMoeTritonConfig) -> str | None:
        if config.block_k != BLOCK or config.block_n > 2 * BLOCK:
            return f"block_k must be {BLOCK}, block_n at most {2 * BLOCK}"
        return super().unsupported_config_reason(c, config)

    def default(self, c: Call) -> FusedMoeTritonConfig:
        rows = ceil(c.M * (c.K + (c.E - c.R)), max(c.E, 1))
        block_m = min(128, max(16, 1 << (rows - 1).bit_length()))
        stages = 2 if c.arch.startswith("gfx") else 3
        return FusedMoeTritonConfig(block_m, 128, BLOCK, 8, 8 if block_m > 64 else 4, stages)

    def launches(self, c: Call, config: FusedMoeTritonConfig) -> Run:
        return _Launches(c, config)


class _Launches:
    """The launches of one call; temporaries come from torch's allocator."""

    def __init__(self, c: Call, config: FusedMoeTritonConfig) -> None:
        self.c, self.config = c, config
        gate_n, down_n = min(BLOCK, max(16, config.block_n // 2)), min(BLOCK, config.block_n)

        def gemm(name: str, block_n: int) -> BoundTriton:
            constants = {
                "BLOCK_M": config.block_m,
                "BLOCK_N": block_n,
                "GROUP_M": config.group_m,
                "FNUZ": c.w1_dtype == FNUZ,
            }
            return BoundTriton(_KERNELS, name, c.device, constants, config.warps, config.stages)

        all_k = c.K + c.E - c.R
        self.num_ids = c.M * all_k
        self.num_slots, blocks = layout_sizes(self.num_ids, config.block_m, c.E, True)
        self.gate_up = gemm("gate_up", gate_n).prepare(f"h x x_scale w w_scale {LAYOUT}")(
            (blocks * ceil(c.I, gate_n), 1, 1), sizes=(self.num_ids, blocks, c.I, c.D, all_k)
        )
        self.down = gemm("down", down_n).prepare(f"y h h_scale w w_scale {LAYOUT}")(
            (blocks * ceil(c.D, down_n), 1, 1), sizes=(self.num_ids, blocks, c.D, c.I)
        )
        self.add = add_rows(c)

    def __call__(self, out: Tensor, x: Tensor, *operands: Any) -> None:
        w1, w2, w1_scale, w2_scale, p, ids, router = operands
        c, config = self.c, self.config
        if router is not None:
            p, ids = moe_router(x, router, c.K, c.renormalize, round_scores=c.round_scores)
        all_ids = with_shared(p, ids, c.E, c.E - c.R)[1] if c.E > c.R else ids
        layout = moe_align_block_size(all_ids, config.block_m, c.E, None, True)
        x_q, x_scale = quant_fp8_blockscale(x, dtype=c.w1_dtype)
        # Padding's rows are quantised too: what is not written must be numbers of some kind.
        h = torch.zeros((self.num_slots, c.I), dtype=x.dtype, device=x.device)
        y = torch.empty((self.num_ids, c.D), dtype=x.dtype, device=x.device)
        x_q, w1, w2 = (t.view(torch.uint8) for t in (x_q, w1, w2))
        self.gate_up(h, x_q, x_scale, w1, w1_scale, *layout)
        h_q, h_scale = quant_fp8_blockscale(h, dtype=c.w1_dtype)
        self.down(y, h_q.view(torch.uint8), h_scale, w2, w2_scale, *layout)
        self.add(out, y, p, ids)
