"""fused_moe with FP8 weights in Triton: kernels/bf16/triton.py with x and h quantized once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.quantization.fp8_blockscale import BLOCK, FNUZ, quant_fp8_blockscale
from rfops.triton.bound import BoundTriton

from ...align_block_size import moe_align_block_size
from ...experts import with_shared
from ...router import moe_router
from ..bf16.triton import ADD_COLUMNS, ADD_KERNELS, FusedMoeTritonConfig, TritonMoe

_KERNELS = "rfops.moe.kernels.fp8.triton_kernels"


class TritonFp8(TritonMoe):
    item_bytes = 1

    def __init__(self) -> None:
        super().__init__(is_table=False)

    def refuses(self, c: Call) -> str | None:
        if reason := super().refuses(c):
            return reason
        if c.w1_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
        if not c.arch.startswith("gfx") and int(c.arch.removeprefix("sm_")) < 89:
            return f"{c.arch} has no FP8"
        return None

    def refuses_config(self, c: Call, config: FusedMoeTritonConfig) -> str | None:
        if config.block_k != BLOCK or config.block_n > 2 * BLOCK:
            return f"block_k must be {BLOCK}, block_n at most {2 * BLOCK}"
        return super().refuses_config(c, config)

    def default(self, c: Call) -> FusedMoeTritonConfig:
        rows = ceil(c.M * (c.K + (c.E - c.R)), max(c.E, 1))
        block_m = min(128, max(16, 1 << (rows - 1).bit_length()))
        stages = 2 if c.arch.startswith("gfx") else 3
        return FusedMoeTritonConfig(block_m, 128, BLOCK, 8, 8 if block_m > 64 else 4, stages)

    def candidates(self, c: Call) -> list[FusedMoeTritonConfig]:
        first = self.default(c)
        heights = sorted({max(16, first.block_m // 2), first.block_m, min(256, 2 * first.block_m)})
        made = [
            FusedMoeTritonConfig(m, n, BLOCK, 8, warps, stages)
            for m in heights
            for n in (64, 128, 256)
            for warps in (4, 8)
            for stages in ((2,) if c.arch.startswith("gfx") else (3, 4))
        ]
        fit = (config for config in made if self.refuses_config(c, config) is None)
        return [first, *(config for config in fit if config != first)]

    def variant(self, c: Call, config: FusedMoeTritonConfig) -> RunOf:
        def run_of(*sizes: int) -> Run:
            return _Launches(c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))), config)

        return run_of


class _Launches:
    """The launches of one call; temporaries come from torch's allocator."""

    def __init__(self, c: Call, config: FusedMoeTritonConfig) -> None:
        self.c, self.config = c, config
        self.gate_n = min(BLOCK, max(16, config.block_n // 2))
        self.down_n = min(BLOCK, config.block_n)

        def gemm(name: str, block_n: int) -> BoundTriton:
            flags = config.block_m, block_n, config.group_m, c.w1_dtype == FNUZ
            return BoundTriton(_KERNELS, name, c.device, flags, config.warps, config.stages)

        self.gate_up, self.down = gemm("gate_up", self.gate_n), gemm("down", self.down_n)
        self.all_k = c.K + c.E - c.R
        self.add = BoundTriton(ADD_KERNELS, "add_rows", c.device, (self.all_k, ADD_COLUMNS))

    def __call__(self, out: Tensor, x: Tensor, *rest: Any) -> None:
        w1, w2, w1_scale, w2_scale, p, ids, router = rest
        c, config = self.c, self.config
        if router is not None:
            p, ids = moe_router(x, router, c.K, c.renormalize, round_scores=c.round_scores)
        all_ids = with_shared(p, ids, c.E, c.E - c.R)[1] if c.E > c.R else ids
        layout = moe_align_block_size(all_ids, config.block_m, c.E, None, True)
        blocks, rows = layout.expert_ids.numel(), c.M * self.all_k
        x_q, x_scale = quant_fp8_blockscale(x, dtype=c.w1_dtype)
        # Padding's rows are quantised too: what is not written must be numbers of some kind.
        h = torch.zeros((layout.sorted_token_ids.numel(), c.I), dtype=x.dtype, device=x.device)
        y = torch.empty((rows, c.D), dtype=x.dtype, device=x.device)
        bytes_of = [t.view(torch.uint8) for t in (x_q, w1, w2)]
        self.gate_up(
            (blocks * ceil(c.I, self.gate_n), 1, 1),
            (h, bytes_of[0], x_scale, bytes_of[1], w1_scale, *layout),
            (rows, blocks, c.I, c.D, self.all_k),
        )
        h_q, h_scale = quant_fp8_blockscale(h, dtype=c.w1_dtype)
        self.down(
            (blocks * ceil(c.D, self.down_n), 1, 1),
            (y, h_q.view(torch.uint8), h_scale, bytes_of[2], w2_scale, *layout),
            (rows, blocks, c.D, c.I),
        )
        self.add((c.M, ceil(c.D, ADD_COLUMNS), 1), (out, y, p, ids), (c.D, c.R, c.K, self.all_k))
