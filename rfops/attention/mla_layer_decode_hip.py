"""mla_layer_decode by HIP: five launches.

down     q_down and kv_down of x, the cache's new rows   csrc/attention/mla_layer_decode.hip,
         of more than 32 sequences                       _down.hip
query    q_up, RoPE of q, and kv_up's half of k into it  csrc/attention/mla_layer_decode_query.hip,
         of more than 32 sequences and many heads        _query_wide.hip
         mla_decode's kernel, which turns keys           csrc/attention/mla_decode_*.hip
value    kv_up's half of v, by heads                     csrc/attention/mla_layer_decode.hip
out      o                                               csrc/attention/mla_layer_decode_out.hip,
         of more than 32 sequences                       mla_layer_decode_wide.hip
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.steps import Step, run_steps

from .mla_layer_parts import (
    CACHE_ROW,
    LATENT,
    ROPE,
    V,
    attention,
    attention_call,
    attention_kernel,
)
from .mla_layer_products import (
    BY_WAVES,
    DOWN_WIDE,
    OUT_WIDE,
    PIECE,
    QUERY_WIDE,
    THREADS,
    TILE,
    WAVES,
    Product,
    mla_layer_decode_down,
    mla_layer_decode_kernel,
    mla_layer_decode_out,
    mla_layer_decode_query,
    mla_layer_decode_query_wide,
    mla_layer_decode_wide,
    products,
    query_defines,
    query_groups,
    query_sums,
)

_BF16, _F32, _I32 = torch.bfloat16, torch.float32, torch.int32


class HipLayer(Kernel):
    """The layer in HIP: the projections of csrc/attention/mla_layer_decode*.hip around mla_decode's
    kernels."""

    name = "hip"
    module = "mla_layer_decode"
    more_modules = (
        "mla_layer_decode_down",
        "mla_layer_decode_query",
        "mla_layer_decode_query_wide",
        "mla_layer_decode_out",
        "mla_layer_decode_wide",
        "mla_decode_flow",
        "mla_decode_shared",
    )
    error = 2.0**-6  # five roundings to bf16, and P

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        if c.D % PIECE or c.R % PIECE:
            return f"D={c.D}, R={c.R}: no multiples of {PIECE}"
        rows = ceil(c.B, TILE) * TILE
        for count, row in (
            (8 * TILE, c.D),
            (8 * TILE, c.V * LATENT // V),
            (rows, c.R),
            (rows, c.V),
            (c.L, ROPE),
        ):
            if 2 * count * row >= MAX_BYTES:
                return f"{count} rows of an operand are beyond signed 32-bit offsets (2 GiB)"
        if c.B * c.L >= 2**31:
            return f"a cache of {c.B * c.L} rows, 2^31 or more"
        kernel, reason = attention_kernel(attention_call(c, page_of(c)), hip=True)
        return None if kernel is not None else f"its attention is not taken: {reason}"

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return products(c)[-1].defines(c.B, c.cu_num)

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda *sizes: self.launches(c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))))

    def launches(self, c: Call) -> Run:
        """The launches of one call."""
        down, value, out = steps = products(c)
        page = page_of(c)
        heads, pages, rows = c.V // V, c.L // page, ceil(c.B, TILE) * TILE
        query = query_defines(c.B, heads, c.R, c.cu_num)
        sums = [p.sums(c.B, p.defines(c.B, c.cu_num)["SPLIT"]) for p in steps]
        sums.append(query_sums(c.B, heads, query))
        tiles = [p.tiles(c.B) * (WAVES if p.stage in BY_WAVES else 1) for p in steps]
        tiles.append(query_groups(c.B, heads, query["M_TILES"]))
        return run_steps(
            c.device,
            self.arguments,
            [
                _down(c, down),
                _query(c, query),
                attention(c, page, hip=True),
                _product(
                    c,
                    value,
                    {"out": "value", "x": "latent", "w": "kv_up", **dict.fromkeys(_OF_DOWN)},
                ),
                _out(c, out),
            ],
            arch=c.arch,
            workspace={
                "lens": (c.B, _I32),
                "table": ((c.B, pages), _I32),
                "q_lora": ((rows, c.R), _BF16),  # packed
                "q": ((c.B, heads, CACHE_ROW), _BF16),
                "latent": ((c.B, heads, LATENT), _BF16),  # what attention gives
                "value": ((rows, heads * V), _BF16),  # packed
                "workspace": (max(sums), _F32),
            },
            zeros={"counts": max(tiles)},
            outer=True,
        )


def page_of(c: Call) -> int:
    """The largest power of two of rows that a sequence's are a multiple of."""
    return c.L & -c.L if c.L else 1


# ---------------------------------------------------------------- the steps

_OF_DOWN = ("cache", "w_other", "positions", "lens", "table")


def _product(c: Call, p: Product, tensors: Mapping[str, str | None]) -> Step:
    return Step(
        mla_layer_decode_kernel,
        p.defines(c.B, c.cu_num),
        THREADS,
        p.groups(c.B, c.cu_num),
        {
            "m": c.B,
            "n": p.n,
            "n_other": p.n_other,
            "heads": p.heads,
            "k": p.k,
            "x_row": p.x_row,
            "x_head": p.x_head,
            "w_first": p.w_first,
            "w_head": p.w_head,
            "start": c.start,
            "cache_rows": c.L,
            "width": c.L // page_of(c),
            **tensors,
        },
    )


def _down(c: Call, p: Product) -> Step:
    """q_lora and the new row of the cache; lens and table for attention."""
    tensors = {"out": "q_lora", "w": "q_down", "w_other": "kv_down"}
    if p.stage != DOWN_WIDE:
        return _product(c, p, tensors)
    return Step(
        mla_layer_decode_down,
        p.defines(c.B, c.cu_num),
        2 * THREADS,
        p.groups(c.B, c.cu_num),
        {
            "m": c.B,
            "n": p.n,
            "n_other": p.n_other,
            "k": p.k,
            "x_row": p.x_row,
            "start": c.start,
            "cache_rows": c.L,
            "width": c.L // page_of(c),
            **tensors,
        },
    )


def _query(c: Call, defines: Mapping[str, int]) -> Step:
    """q of each head, absorbed and rotated."""
    heads = c.V // V
    groups = query_groups(c.B, heads, defines["M_TILES"]) * defines["SPLIT"]
    sizes = {"m": c.B, "heads": heads, "k": c.R, "start": c.start, "length": c.L}
    if defines == QUERY_WIDE:
        return Step(mla_layer_decode_query_wide, {}, 2 * THREADS, groups, sizes)
    return Step(mla_layer_decode_query, defines, THREADS, groups, sizes)


def _out(c: Call, p: Product) -> Step:
    """The layer's result from the values of all heads."""
    is_wide = p.stage == OUT_WIDE
    return Step(
        mla_layer_decode_wide if is_wide else mla_layer_decode_out,
        p.defines(c.B, c.cu_num),
        2 * THREADS if is_wide else THREADS,
        p.groups(c.B, c.cu_num),
        {"m": c.B, "n": p.n, "k": p.k, "x": "value", "w": "o"},
    )
