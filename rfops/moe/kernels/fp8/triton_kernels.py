"""Device code of fused_moe with FP8 weights in Triton.

    h[slot] = silu(g) * u,  g, u = x[t] @ gate[e]^T, x[t] @ up[e]^T,  y[id] = h[slot] @ w2[e]^T

each product of FP8 payloads a block of 128 of K at a time, times the two scales of the block. Slots
are those of moe_align_block_size. Payloads come as bytes, so that no Triton refuses a dtype; all
is contiguous, N and K are multiples of 128. Rows past an edge read others instead and are not
stored; the start of an expert and of a row is a 64-bit offset. Nothing is atomic.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

from rfops.triton.tile_kernels import expert_slots, grouped_tile

BLOCK = tl.constexpr(128)  # of K, and of rows of w, that share a scale


@triton.jit
def gate_up(
    h,
    x,
    x_scale,
    w,
    w_scale,
    ids,
    expert_ids,
    num_padded,
    sizes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """h: [slots, n]; w: [E, 2 n, k], gate's rows and then up's; sizes: num_ids, blocks, n, k,
    top_k."""
    num_ids, blocks, n, k, top_k = sizes
    FP8: tl.constexpr = tl.float8e4b8 if FNUZ else tl.float8e4nv
    block, column = grouped_tile(blocks, tl.cdiv(n, BLOCK_N), GROUP_M)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    row = tl.where(id < num_ids, id // top_k, 0).to(tl.int64)
    out_columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k, steps = tl.arange(0, BLOCK), k // BLOCK
    x_at = x + row[:, None] * k + at_k[None, :]
    g_at = w + expert * 2 * n * k + out_columns.to(tl.int64)[None, :] * k + at_k[:, None]
    u_at = g_at + n.to(tl.int64) * k
    scale_at = x_scale + row * steps
    scale_block = (column * BLOCK_N) // BLOCK
    g_scale = w_scale + (expert * 2 * (n // BLOCK) + scale_block) * steps
    u_scale = g_scale + (n // BLOCK) * steps
    g = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, steps):
        rows = tl.load(x_at).to(FP8, bitcast=True)
        scale = tl.load(scale_at)
        of_g, of_u = scale * tl.load(g_scale), scale * tl.load(u_scale)
        g += tl.dot(rows, tl.load(g_at).to(FP8, bitcast=True)) * of_g[:, None]
        u += tl.dot(rows, tl.load(u_at).to(FP8, bitcast=True)) * of_u[:, None]
        x_at += BLOCK
        g_at += BLOCK
        u_at += BLOCK
        scale_at += 1
        g_scale += 1
        u_scale += 1
    activated = g / (1.0 + tl.exp(-g)) * u
    tl.store(
        h + h_slot.to(tl.int64)[:, None] * n + out_columns[None, :],
        activated.to(h.dtype.element_ty),
    )


@triton.jit
def down(
    y,
    h,
    h_scale,
    w,
    w_scale,
    ids,
    expert_ids,
    num_padded,
    sizes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """y: [ids, n]; h: [slots, k]; w: [E, n, k]; sizes: num_ids, blocks, n, k."""
    num_ids, blocks, n, k = sizes
    FP8: tl.constexpr = tl.float8e4b8 if FNUZ else tl.float8e4nv
    block, column = grouped_tile(blocks, tl.cdiv(n, BLOCK_N), GROUP_M)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    out_columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k, steps = tl.arange(0, BLOCK), k // BLOCK
    h_at = h + h_slot.to(tl.int64)[:, None] * k + at_k[None, :]
    w_at = w + expert * n * k + out_columns.to(tl.int64)[None, :] * k + at_k[:, None]
    scale_at = h_scale + h_slot.to(tl.int64) * steps
    w_scale_at = w_scale + (expert * (n // BLOCK) + (column * BLOCK_N) // BLOCK) * steps
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, steps):
        rows = tl.load(h_at).to(FP8, bitcast=True)
        scale = tl.load(scale_at) * tl.load(w_scale_at)
        total += tl.dot(rows, tl.load(w_at).to(FP8, bitcast=True)) * scale[:, None]
        h_at += BLOCK
        w_at += BLOCK
        scale_at += 1
        w_scale_at += 1
    y_ptrs = y + id.to(tl.int64)[:, None] * n + out_columns[None, :]
    tl.store(y_ptrs, total.to(y.dtype.element_ty), mask=(id < num_ids)[:, None])
