"""Device code of fused_moe with MXFP4 and MX-FP8 weights in Triton.

    gate_up: h[slot] = silu(g) * u,  g, u = x[t] @ gate[e]^T, x[t] @ up[e]^T
    down:    y[id] = h @ w^T

Slots are those of moe_align_block_size: blocks of BLOCK_M routed rows of one expert, each with its
id, t * KT + j; rows are those of triton_product.py. Rows and columns past an edge read others
instead and are not stored; the start of an expert and of a row is a 64-bit offset. Nothing is
atomic.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

from rfops.moe.kernels.mx.triton_product import mx_product, scale_columns
from rfops.triton.tile_kernels import expert_slots, own_columns, store_ids, store_slots


@triton.jit
def gate_up(
    h,
    x,
    w,
    w_scale,
    ids,
    expert_ids,
    num_padded,
    sizes,
    x_m,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP4: tl.constexpr,
    SHUFFLED: tl.constexpr,
    SHUFFLED_SCALES: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """h: [slots, n]; w: [E, 2n, k]; sizes: num_ids, n, k, top_k."""
    num_ids, n, k, top_k = sizes
    block, column = tl.program_id(0), tl.program_id(1)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    row = tl.where(id < num_ids, id // top_k, 0)
    out_columns, read = own_columns(column, n, BLOCK_N)
    w += expert * 2 * n * (k // 2 if FP4 else k)
    w_scale += expert * 2 * n * scale_columns(k, SHUFFLED_SCALES)
    g = mx_product(
        x, row, x_m, w, w_scale, read, k, BLOCK_K, FP4, SHUFFLED, SHUFFLED_SCALES, NATIVE
    )
    u = mx_product(
        x, row, x_m, w, w_scale, n + read, k, BLOCK_K, FP4, SHUFFLED, SHUFFLED_SCALES, NATIVE
    )
    store_slots(h, g, u, h_slot, out_columns, n)


@triton.jit
def down(
    y,
    h,
    w,
    w_scale,
    ids,
    expert_ids,
    num_padded,
    sizes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP4: tl.constexpr,
    SHUFFLED: tl.constexpr,
    SHUFFLED_SCALES: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """y: [ids, n]; h: [slots, k]; w: [E, n, k]; sizes: num_ids, n, k."""
    num_ids, n, k = sizes
    block, column = tl.program_id(0), tl.program_id(1)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    out_columns, read = own_columns(column, n, BLOCK_N)
    w += expert * n * (k // 2 if FP4 else k)
    w_scale += expert * n * scale_columns(k, SHUFFLED_SCALES)
    total = mx_product(
        h, h_slot, k, w, w_scale, read, k, BLOCK_K, FP4, SHUFFLED, SHUFFLED_SCALES, NATIVE
    )
    store_ids(y, total, id, out_columns, num_ids, n)
