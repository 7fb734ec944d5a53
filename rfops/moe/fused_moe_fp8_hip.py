"""fused_moe with FP8 weights by HIP: four launches, a router one more; no copy to the host.

(router   tokens of each expert                             csrc/moe/moe_router.hip)
prepare   those by ids, and each token quantised once       csrc/moe/moe_fp8_prepare.hip
experts   gate, up and SiLU, quantised again                csrc/moe/moe_experts_fp8.hip
experts   down of them                                      csrc/moe/moe_experts_fp8.hip
add       each token's rows, in a fixed order               csrc/moe/moe_add.hip
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run
from rfops.jit import compile_ops, u32
from rfops.jit.arch import WAVE
from rfops.quantization.fp8_blockscale import BLOCK, BLOCKS_AT_ONCE

from .fused_moe_hip import IN_TYPES, TOKENS, FusedMoeHipConfig, HipMoe, Launches, _bind


@dataclass(frozen=True)
class FusedMoeFp8HipConfig(FusedMoeHipConfig):
    """A variant of csrc/moe/moe_experts_fp8.hip."""

    heights = 64, 128


def _defines(
    rows: int, dtype: torch.dtype, stage: int, experts: int, is_shuffled: bool
) -> dict[str, Any]:
    return {
        "IN": IN_TYPES[dtype],
        "STAGE": stage,
        "ROWS": rows,
        "EACH": ceil(experts, WAVE),
        "SHUFFLED": int(is_shuffled),
    }


@compile_ops(
    "moe_experts_fp8",
    kernel="moe_experts_fp8",
    variants=lambda _arch: [_defines(64, torch.bfloat16, s, 256, False) for s in (1, 2)],
)
def moe_experts_fp8_kernel(
    out: Tensor,
    out_scale: Tensor | None,
    x: Tensor,
    x_scale: Tensor,
    weights: Tensor,
    scales: Tensor,
    lists: Tensor,
    counts: Tensor,
    offsets: Tensor,
    m: u32,
    routed: u32,
    experts: u32,
    all_rows: u32,
    n: u32,
    k: u32,
    groups: u32,
) -> None:
    """csrc/moe/moe_experts_fp8.hip: the shapes stand there."""


@compile_ops(
    "moe_fp8_prepare",
    kernel="moe_fp8_prepare",
    variants=lambda _arch: [{"IN": "bf16", "ID": "i32", "TOP_K": 8}],
)
def moe_fp8_prepare_kernel(
    counts: Tensor,
    lists: Tensor,
    slots: Tensor,
    q: Tensor,
    scale: Tensor,
    topk_ids: Tensor,
    x: Tensor,
    m: u32,
    k: u32,
    experts: u32,
    list_groups: u32,
) -> None:
    """csrc/moe/moe_fp8_prepare.hip: the shapes stand there."""


class HipFp8(HipMoe):
    name = "hip"
    module = "moe_experts_fp8"
    more_modules = ("moe_fp8_prepare", "moe_add")  # and the router's
    Config = FusedMoeFp8HipConfig

    def __init__(self) -> None:
        super().__init__(is_table=False)

    def module_of(self, _arch: str) -> str:
        return self.module

    def refuses(self, c: Call) -> str | None:
        if c.w1_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
        if 2 * c.I * c.D >= MAX_BYTES:
            return "an expert's weights are beyond signed 32-bit offsets (2 GiB)"
        return super().refuses(c)

    def heights(self, _c: Call) -> tuple[int, ...]:
        return self.Config.heights

    def default(self, c: Call) -> FusedMoeFp8HipConfig:
        """The lower tiles where experts have about as many rows."""
        rows = c.M * c.K / max(c.R, 1)
        return FusedMoeFp8HipConfig(64 if rows <= 48 else 128)

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return _defines(config.rows, c.x_dtype, 1, c.E, c.w_layout != "raw")

    def launches(self, c: Call, config: Any) -> Launches:
        return Fp8Launches(c, config)


class Fp8Launches(Launches):
    def __init__(self, c: Call, config: FusedMoeFp8HipConfig) -> None:
        super().__init__(c, config)
        defines = {"IN": IN_TYPES[c.x_dtype], **self.of_ids}
        launch = _bind(c, moe_fp8_prepare_kernel, defines, TOKENS, 7)
        list_groups = 0 if self.is_routed else ceil(c.M, TOKENS)
        groups = list_groups + ceil(c.M * (c.D // BLOCK), BLOCKS_AT_ONCE)
        self.quantise = launch((groups, 1, 1), (c.M, c.D, c.R, list_groups))

    def lists_of_ids(self) -> Run:
        return lambda *_args: None  # with the quantisation

    def prepare(
        self, x: Tensor, ids: Tensor, lists: Tensor, slots: Tensor, counted: Tensor, between: Any
    ) -> None:
        self.quantise(counted, lists, slots, *between[:2], ids, x)

    def kernel(self, stage: int, k: int) -> tuple[Any, Mapping[str, Any], int, tuple[int, ...]]:
        c = self.c
        defines = _defines(self.config.rows, c.x_dtype, stage, c.E, c.w_layout != "raw")
        return moe_experts_fp8_kernel, defines, 9, ()

    def between(self, x: Tensor) -> tuple[Tensor, ...]:
        """x and h: payload and scale of each."""
        c, made = self.c, []
        for rows, columns in ((c.M, c.D), (self.rows, c.I)):
            made.append(torch.empty((rows, columns), dtype=c.w1_dtype, device=x.device))
            shape = rows, columns // BLOCK
            made.append(torch.empty(shape, dtype=torch.float32, device=x.device))
        return tuple(made)

    def multiply(self, y: Tensor, x: Tensor, weights: Any, lists: Any, between: Any) -> None:
        w1, w2, w1_scale, w2_scale = weights
        x_q, h = between[:2], between[2:]
        self.gate_up(*h, *x_q, w1, w1_scale, *lists)
        self.down(y, None, *h, w2, w2_scale, *lists)
