"""Device code of fused_moe in Triton.

    h[slot] = silu(x[t] Wg[e]) * (x[t] Wu[e]),  y[id] = h[slot] Wd[e],
    out[t]  = sum over j of p[t, j] * y[t * KT + j]

Slots are those of moe_align_block_size: blocks of BLOCK_M routed rows of one expert, each with its
id, t * KT + j. Weights are [K, N] in any strides, of an expert `of_expert` on from the last or,
with IS_TABLE, where a table of addresses says. Rows and columns past an edge read others instead
and are not stored; the start of an expert and of a row is a 64-bit offset. Nothing is atomic.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

from rfops.triton.tile_kernels import (
    expert_slots,
    grouped_tile,
    own_columns,
    store_ids,
    store_slots,
)


@triton.jit
def _of_expert(w, table, expert, of_expert, like, IS_TABLE: tl.constexpr):
    if IS_TABLE:
        return tl.multiple_of(tl.load(table + expert).to(like.dtype), 16)
    return w + expert * of_expert


@triton.jit
def gate_up(
    h,
    x,
    gate,
    up,
    gates,
    ups,
    ids,
    expert_ids,
    num_padded,
    sizes,
    x_m,
    of_expert,
    w_k,
    w_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    IS_TABLE: tl.constexpr,
):
    """h: [slots, n]. gate and up: the first expert's, or any where `gates` and `ups` are tables.
    sizes: num_ids, blocks, n, k, top_k."""
    num_ids, blocks, n, k, top_k = sizes
    block, column = grouped_tile(blocks, tl.cdiv(n, BLOCK_N), GROUP_M)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    row = tl.where(id < num_ids, id // top_k, 0)
    out_columns, read = own_columns(column, n, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    x_at = x + row.to(tl.int64)[:, None] * x_m + at_k[None, :]
    w_at = at_k.to(tl.int64)[:, None] * w_k + read.to(tl.int64)[None, :] * w_n
    g_at = _of_expert(gate, gates, expert, of_expert, gate, IS_TABLE) + w_at
    u_at = _of_expert(up, ups, expert, of_expert, up, IS_TABLE) + w_at
    g = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, k, BLOCK_K):
        if EVEN_K:
            rows, wg, wu = tl.load(x_at), tl.load(g_at), tl.load(u_at)
        else:
            in_bounds = at_k < k - k0
            rows = tl.load(x_at, mask=in_bounds[None, :], other=0.0)
            wg = tl.load(g_at, mask=in_bounds[:, None], other=0.0)
            wu = tl.load(u_at, mask=in_bounds[:, None], other=0.0)
        g = tl.dot(rows, wg, g)
        u = tl.dot(rows, wu, u)
        x_at += BLOCK_K
        g_at += BLOCK_K * w_k
        u_at += BLOCK_K * w_k
    store_slots(h, g, u, h_slot, out_columns, n)


@triton.jit
def down(
    y,
    h,
    w,
    table,
    ids,
    expert_ids,
    num_padded,
    sizes,
    of_expert,
    w_k,
    w_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    IS_TABLE: tl.constexpr,
):
    """y: [ids, n]; h: [slots, k]. sizes: num_ids, blocks, n, k."""
    num_ids, blocks, n, k = sizes
    block, column = grouped_tile(blocks, tl.cdiv(n, BLOCK_N), GROUP_M)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    out_columns, read = own_columns(column, n, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    h_at = h + h_slot.to(tl.int64)[:, None] * k + at_k[None, :]
    w_at = at_k.to(tl.int64)[:, None] * w_k + read.to(tl.int64)[None, :] * w_n
    w_at = _of_expert(w, table, expert, of_expert, w, IS_TABLE) + w_at
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, k, BLOCK_K):
        if EVEN_K:
            rows, tile = tl.load(h_at), tl.load(w_at)
        else:
            in_bounds = at_k < k - k0
            rows = tl.load(h_at, mask=in_bounds[None, :], other=0.0)
            tile = tl.load(w_at, mask=in_bounds[:, None], other=0.0)
        total = tl.dot(rows, tile, total)
        h_at += BLOCK_K
        w_at += BLOCK_K * w_k
    store_ids(y, total, id, out_columns, num_ids, n)


@triton.jit
def add_rows(
    out, y, weights, ids, n, experts, top_k, all_k, TOP: tl.constexpr, COLUMNS: tl.constexpr
):
    """out[t] = the sum of y's rows of t by their weights, in their order; the last all_k - top_k of
    a token have weight 1. Rows of ids outside were never written, and are not read."""
    token = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for j in tl.static_range(0, TOP):
        weight = 1.0
        is_there = j < all_k
        if j < top_k:
            weight = tl.load(weights + token.to(tl.int64) * top_k + j)
            id = tl.load(ids + token.to(tl.int64) * top_k + j)
            is_there = (id >= 0) & (id < experts)
        row = token.to(tl.int64) * all_k + j
        value = tl.load(y + row * n + column, mask=(column < n) & is_there, other=0.0)
        total += tl.where(is_there, weight * value.to(tl.float32), 0.0)
    out_ptrs = out + token.to(tl.int64) * n + column
    tl.store(out_ptrs, total.to(out.dtype.element_ty), mask=column < n)
