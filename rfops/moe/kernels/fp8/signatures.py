"""The kernels of fused_moe with FP8 weights: their parameters, and what `rfops build` makes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.heuristic import ceil
from rfops.jit import compile_ops, u32
from rfops.jit.arch import WAVE

from ..bf16.hip import IN_TYPES


def experts_defines(
    rows: int, dtype: torch.dtype, stage: int, experts: int, is_shuffled: bool
) -> dict[str, Any]:
    """Return the defines of moe_experts_fp8 for `rows` rows per tile; stage 1 is gate and up, stage
    2 down."""
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
    variants=lambda _arch: [experts_defines(64, torch.bfloat16, s, 256, False) for s in (1, 2)],
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


@compile_ops(
    "moe_fp8_stream_prepare",
    kernel="moe_fp8_stream_prepare",
    variants=lambda _arch: [{"IN": "bf16", "ID": "i32"}],
)
def moe_fp8_stream_prepare_kernel(
    hits: Tensor,
    q: Tensor,
    scale: Tensor,
    topk_ids: Tensor,
    x: Tensor,
    m: u32,
    k: u32,
    count: u32,
    routed: u32,
    experts: u32,
) -> None:
    """csrc/moe/moe_fp8_stream_prepare.hip: the shapes stand there."""


def _stream_defines(**variant_defines: int) -> dict[str, Any]:
    return {"IN": "bf16", "ID": "i32", "TOP_K": 8, "TILES": 1, "SHUFFLED": 0, **variant_defines}


@compile_ops(
    "moe_fp8_stream_up",
    kernel="moe_fp8_stream_up",
    variants=lambda _arch: [_stream_defines(TILES=2, STEPS=2, LINES=2)],
)
def moe_fp8_stream_up_kernel(
    h: Tensor,
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    topk_ids: Tensor,
    hits: Tensor,
    m: u32,
    routed: u32,
    shared: u32,
    n: u32,
    k: u32,
) -> None:
    """csrc/moe/moe_fp8_stream_up.hip: the shapes stand there."""


@compile_ops(
    "moe_fp8_stream_up_tile",
    kernel="moe_fp8_stream_up_tile",
    variants=lambda _arch: [{"IN": "bf16", "ID": "i32", "TOP_K": 8, "SHUFFLED": 0, "SPAN": 4}],
)
def moe_fp8_stream_up_tile_kernel(
    topk_ids: Tensor,
    m: u32,
    routed: u32,
    shared: u32,
    n: u32,
    k: u32,
    w: Tensor,
    x: Tensor,
    w_scale: Tensor,
    h: Tensor,
    hits: Tensor,
) -> None:
    """csrc/moe/moe_fp8_stream_up_tile.hip: the shapes stand there."""


@compile_ops(
    "moe_fp8_stream_down",
    kernel="moe_fp8_stream_down",
    variants=lambda _arch: [_stream_defines(STEPS=2, LINES=2, COLUMNS=14, RAW=1)],
)
def moe_fp8_stream_down_kernel(
    hits: Tensor,
    m: u32,
    routed: u32,
    shared: u32,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w: Tensor,
    n: u32,
    k: u32,
    h: Tensor,
    w_scale: Tensor,
    h_scale: Tensor | None,
    out: Tensor,
) -> None:
    """csrc/moe/moe_fp8_stream_down.hip: the shapes stand there."""
