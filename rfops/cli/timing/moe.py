"""aiter's fused-MoE code objects: arguments and grid of a row, and the routing that steers them.

The first stage computes act(x @ gate^T) * (x @ up^T) of each routed token; one stage computes the
whole expert layer. Routing is random as in the tuner that made the published times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rfops.cli.timing.launches import Launch, New, Skip, Tile, ceil_div, up
from rfops.cli.timing.rows import Row

ONE_STAGE = (
    "O X GU XC D XQ GUQ DQ SMQ STP SW SEP dim inter_dim token_cnt eprt_cnt Xs GUs Ds Os eGUs eDs "
    "eGUQs eDQs eSMQs topk total_tgs ps_deno"
)
STAGE_1 = (
    "O X GU XC XQ GUQ SMQ STP SEP dim hidden_dim token_cnt eprt_cnt Xs GUs Os eGUs eGUQs eSMQs "
    "topk splitk activation SW"
)
# In the names of kernels that take x as bf16 and quantize it themselves.
QUANTIZE_X = ("blockscaleBf16", "_a16_", "MXfp4_g1u1_flat")
ACTIVATIONS = {"Silu": 0, "Gelu": 1, "Swiglu": 2}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a published fused-MoE row."""

    tokens: int
    dim: int
    inter: int
    experts: int
    topk: int

    @classmethod
    def of(cls, row: Row) -> Sizes:
        """Read the sizes of a row. Raises KeyError if the row lacks one."""
        return cls(*(row.sizes[name] for name in ("tokens", "dim", "inter", "E", "topk")))


def route(s: Sizes) -> np.ndarray:
    """Each token's experts, [tokens, topk]: those with the best of random scores."""
    scores = np.random.default_rng(0).standard_normal((s.tokens, s.experts), np.float32)
    return np.argpartition(-scores, s.topk - 1, 1)[:, : s.topk].astype(np.int32)


def max_rows(s: Sizes, block: int) -> int:
    """As many as sorted rows can be: each expert's last block may have one row."""
    return s.tokens * s.topk + s.experts * block - s.topk


def sort(ids: np.ndarray, s: Sizes, block: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Routed rows by expert, each expert's padded to blocks: (slot << 24 | token) of each, the
    expert of each block, and how many rows are in use. The grid is for as many as could be."""
    num_blocks = ceil_div(max_rows(s, block), block)
    rows = np.full(num_blocks * block, s.topk << 24 | s.tokens, np.int32)
    experts = np.zeros(num_blocks, np.int32)
    begin = 0
    order = np.argsort(ids, axis=None, kind="stable")
    bounds = np.searchsorted(ids.ravel()[order], np.arange(s.experts + 1))
    for expert in range(s.experts):
        expert_rows = order[bounds[expert] : bounds[expert + 1]]
        rows[begin : begin + len(expert_rows)] = expert_rows % s.topk << 24 | expert_rows // s.topk
        blocks = ceil_div(len(expert_rows), block)
        experts[begin // block : begin // block + blocks] = expert
        begin += blocks * block
    return rows, experts, begin


def _scales(row: Row, s: Sizes, bits: int) -> tuple[int, int, int]:
    """Bytes of the scales of x, and of an expert's two weights."""
    kind = row.words.get("q", "")
    if kind in ("per_Token", "per_Tensor"):
        return s.tokens * 4, s.inter * 2 * 4, s.dim * 4
    if kind == "per_1x128":
        blocks = s.dim // 128 * (s.inter // 128)
        return s.tokens * s.dim // 128 * 4, blocks * 2 * 4, blocks * 4
    if kind == "per_1x32" and bits == 4:
        return s.tokens * s.dim // 32, s.inter * 2 * s.dim // 32, s.dim * s.inter // 32
    raise Skip(f"quantization {kind} is not known here")


def one_stage(row: Row, tile: Tile, new: New) -> Launch:
    """The whole layer. The published test clears the output, to which the kernel adds parts."""
    s = Sizes.of(row)
    bits = 4 if "float4" in row.words.get("qw", "") else 8
    x_size = 2 if any(name_ in row.kernel for name_ in QUANTIZE_X) else 1
    xq, guq, dq = _scales(row, s, bits)
    if bits == 4:  # of the sorted rows, in the layout of mxfp4_moe_sort
        xq = up(max_rows(s, tile.m), 32) * up(s.dim // 32, 8)
    gate_up, down = s.dim * s.inter * 2 * bits // 8, s.dim * s.inter * bits // 8
    steps = ceil_div(s.inter, tile.n)
    persistent = tile.persistent * row.cu
    values = {
        "O": new(s.tokens * s.dim * 2 + s.tokens * 8),
        "X": new(s.tokens * s.dim * x_size),
        "GU": new(s.experts * gate_up),
        "D": new(s.experts * down),
        "XQ": new(xq),
        "GUQ": new(s.experts * guq),
        "DQ": new(s.experts * dq),
        "dim": s.dim,
        "inter_dim": s.inter,
        "token_cnt": s.tokens,
        "eprt_cnt": s.experts,
        "Xs": s.dim * x_size,
        "GUs": s.dim * bits // 8,
        "Ds": s.inter * bits // 8,
        "Os": s.dim * 2,
        "eGUs": gate_up,
        "eDs": down,
        "eGUQs": guq,
        "eDQs": dq,
        "eSMQs": s.inter * 4,
        "topk": s.topk,
        "ps_deno": steps,
        "total_tgs": persistent // steps * steps,
    }
    ids = route(s)
    cleared_bytes = s.tokens * s.dim * 2
    if tile.flat:  # such a kernel reads what the router gives
        values |= dict.fromkeys(("STP", "SEP", "XC"), new(ids))
        values["SW"] = new(np.full(ids.size, 1 / s.topk, np.float32))
        grid = (persistent, 1, 1) if tile.flat == 2 else (steps, s.topk, s.tokens)
        return Launch(ONE_STAGE, values, grid, cleared_bytes)
    blocks = _sorted(values, ids, s, tile.m, new)
    grid = (persistent, 1, 1) if values["total_tgs"] else (steps, blocks, 1)
    return Launch(ONE_STAGE, values, grid, cleared_bytes)


def stage_1(row: Row, tile: Tile, new: New) -> Launch:
    """Gate and up projection with the activation."""
    s = Sizes.of(row)
    xq, guq, _ = _scales(row, s, 8)
    blockscale = row.words["q"] == "per_1x128"  # its output is FP8, its scales behind it
    rows = s.tokens + ceil_div(s.tokens * 4, 128) if blockscale else s.tokens
    out = s.topk * s.inter * (1 if blockscale else 2)
    activation = next((n for name_, n in ACTIVATIONS.items() if name_ in row.words), None)
    if activation is None:
        raise Skip(f"activation: expected one of {', '.join(ACTIVATIONS)} in the shape")
    gate_up = s.dim * s.inter * 2
    values = {
        "O": new(rows * out),
        "X": new(s.tokens * s.dim),
        "GU": new(s.experts * gate_up),
        "XQ": new(xq),
        "GUQ": new(s.experts * guq),
        "dim": s.dim,
        "hidden_dim": s.inter,
        "token_cnt": s.tokens,
        "eprt_cnt": s.experts,
        "Xs": s.dim,
        "GUs": s.dim,
        "Os": out,
        "eGUs": gate_up,
        "eGUQs": guq,
        "eSMQs": s.inter * 4,
        "topk": s.topk,
        "activation": activation,
    }
    blocks = _sorted(values, route(s), s, tile.m, new)
    if "doweight" not in row.kernel:
        values["SW"] = 0
    return Launch(STAGE_1, values, (ceil_div(s.inter, tile.n), blocks, 1))


def _sorted(values: dict[str, int], ids: np.ndarray, s: Sizes, block: int, new: New) -> int:
    """Adds the sorted layout's pointers; how many blocks of rows the grid is for."""
    rows, experts, num_used = sort(ids, s, block)
    values |= {
        "STP": new(rows),
        "SEP": new(experts),
        "XC": new(np.array([num_used, s.tokens], np.int32)),
        "SW": new(np.full(rows.size, 1 / s.topk, np.float32)),
    }
    return len(experts)
