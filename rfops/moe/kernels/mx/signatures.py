"""The kernels of fused_moe with MX weights: their parameters, and what `rfops build` makes."""

from __future__ import annotations

from torch import Tensor

from rfops.jit import compile_ops, u32


@compile_ops(
    "moe_mx_prepare",
    kernel="moe_mx_prepare",
    variants=lambda _arch: [
        {"IN": "bf16", "ID": "i32", "TOP_K": 8, "FORMAT": "Mxfp4", "BUMP": 0x200000, "CHUNK": 4}
    ],
)
def moe_mx_prepare_kernel(
    topk_ids: Tensor,
    x: Tensor,
    m: u32,
    k: u32,
    x_row: u32,
    steps: u32,
    experts: u32,
    list_groups: u32,
    q: Tensor,
    counts: Tensor,
    lists: Tensor,
    scale: Tensor,
) -> None:
    """csrc/moe/moe_mx_prepare.hip: the shapes stand there."""


def _experts_arguments(
    counts: Tensor,
    m: u32,
    routed: u32,
    experts: u32,
    n: u32,
    k: u32,
    out_steps: u32,
    groups: u32,
    lists: Tensor,
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    offsets: Tensor,
    out: Tensor,
    out_scale: Tensor,
    w_row: u32,
    w_scale_row: u32,
) -> None:
    """csrc/moe/moe_mx_experts.hip and moe_mx_gate_up.hip: the shapes stand there."""


EXPERTS: dict[str, int | str] = {
    "HALF": "bf16",
    "FORMAT": "Mxfp4",
    "BUMP": 0x200000,
    "M_TILES": 1,
    "CHUNK": 4,
    "OUT_CHUNK": 1,
    "SHUFFLED": 1,
    "SHUFFLED_SCALES": 1,
    "TAIL": 0,
    "EACH": 5,
    "TOP_K": 8,
    "STAGE": 1,
    "N_WAVES": 1,
    "K_WAVES": 4,
    "TILED_H": 1,
    "AHEAD": 1,
}


moe_mx_experts_kernel = compile_ops(
    "moe_mx_experts", kernel="moe_mx_experts", variants=lambda _arch: [EXPERTS]
)(_experts_arguments)
RING = {
    **{name: EXPERTS[name] for name in ("HALF", "BUMP", "OUT_CHUNK", "TOP_K", "TILED_H")},
    "N_WAVES": 4,
}
moe_mx_gate_up_kernel = compile_ops(
    "moe_mx_gate_up", kernel="moe_mx_gate_up", variants=lambda _arch: [RING]
)(_experts_arguments)


DOWN: dict[str, int | str] = {
    "HALF": "bf16",
    "ID": "i32",
    "FORMAT": "Mxfp4",
    "TILES": 2,
    "ROW_TILES": 1,
    "STEPS": 1,
    "WAVES": 8,
    "CHUNK": 1,
    "SHUFFLED": 1,
    "SHUFFLED_SCALES": 1,
    "TAIL": 0,
    "EACH": 5,
    "TOP_K": 8,
    "SHARED": 1,
}
STAGED_DOWN: dict[str, int | str] = {
    **{name: value for name, value in DOWN.items() if name not in ("SHARED", "ROW_TILES")},
    "SLOTS": 4,
}
DEEP_DOWN: dict[str, int | str] = {**STAGED_DOWN, "ROW_TILES": 2, "STEPS": 8, "CHUNK": 8}


def _down_arguments(
    rows_of: Tensor,
    m: u32,
    routed: u32,
    experts: u32,
    n: u32,
    weights: Tensor,
    ids: Tensor,
    h: Tensor,
    h_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    lists: Tensor,
    counts: Tensor,
    out: Tensor,
    k: u32,
    w_row: u32,
    w_scale_row: u32,
) -> None:
    """csrc/moe/moe_mx_down.hip, _sums.hip and _deep.hip: the shapes stand there."""


moe_mx_down_kernel = compile_ops(
    "moe_mx_down", kernel="moe_mx_down", variants=lambda _arch: [DOWN]
)(_down_arguments)
moe_mx_down_deep_kernel = compile_ops(
    "moe_mx_down_deep", kernel="moe_mx_down_deep", variants=lambda _arch: [DEEP_DOWN]
)(_down_arguments)
moe_mx_down_sums_kernel = compile_ops(
    "moe_mx_down_sums", kernel="moe_mx_down_sums", variants=lambda _arch: [STAGED_DOWN]
)(_down_arguments)
