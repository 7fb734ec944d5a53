"""Device code of mla_layer_decode in Triton: the products around its attention.

    out[z][m, n] = sum_k x[z][m, k] * w[z][n, k],  bf16, sums in fp32

A program has BLOCK_M rows of x and BLOCK_N rows of w of a head z, all of K. What is beyond an edge
is zeros, and not read. The start of a row of w and of the cache is a 64-bit offset. Nothing is
atomic.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

from rfops.attention.mla_decode_triton_kernels import rotate

HALF = tl.constexpr(32)  # of the 64 elements that RoPE turns
NOPE = tl.constexpr(128)
ROPED = tl.constexpr(192)  # of a head of q
LATENT = tl.constexpr(512)
CACHE_ROW = tl.constexpr(576)


@triton.jit
def _rows(
    x,
    w,
    row,
    column,
    rows,
    columns,
    k,
    x_row,
    w_n,
    w_k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the fp32 tile [BLOCK_M, BLOCK_N] of x w^T at rows `row` of x and `column` of w, over
    all of K; rows and columns outside are zeros."""
    at_k = tl.arange(0, BLOCK_K)
    x_ptr = x + row.to(tl.int64)[:, None] * x_row + at_k[None, :]
    w_ptr = w + at_k[:, None] * w_k + column.to(tl.int64)[None, :] * w_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k_begin in range(0, k, BLOCK_K):
        in_bounds = at_k < k - k_begin
        x_tile = tl.load(x_ptr, mask=(row < rows)[:, None] & in_bounds[None, :], other=0.0)
        w_tile = tl.load(w_ptr, mask=in_bounds[:, None] & (column < columns)[None, :], other=0.0)
        acc = tl.dot(x_tile, w_tile, acc)
        x_ptr += BLOCK_K
        w_ptr += BLOCK_K * w_k
    return acc


@triton.jit
def _positions(positions, start, row, m):
    """Return the position of each row: positions[row], or `start` for all where that is None."""
    if positions is not None:
        return tl.load(positions + row, mask=row < m, other=0)
    return row * 0 + start


@triton.jit
def down(
    out,
    cache,
    x,
    w,
    w_other,
    positions,
    lens,
    table,
    m,
    n,
    k,
    start,
    cache_rows,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute x w^T into out [m, n], and x w_other^T into the new row of each sequence's cache;
    write the lengths and a block table of one page per sequence, which mla_decode takes."""
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    position = _positions(positions, start, row, m)
    own_tiles = tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0)
    if tile == 0:
        tl.store(lens + row, position + 1, mask=row < m)
        tl.store(table + row, row, mask=row < m)
    if tile < own_tiles:
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = _rows(x, w, row, column, m, n, k, k, k, 1, BLOCK_M, BLOCK_N, BLOCK_K)
        out_ptr = out + row.to(tl.int64)[:, None] * n + column[None, :]
        tl.store(out_ptr, acc.to(tl.bfloat16), mask=(row < m)[:, None] & (column < n)[None, :])
    else:
        column = (tile - own_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = _rows(x, w_other, row, column, m, CACHE_ROW, k, k, k, 1, BLOCK_M, BLOCK_N, BLOCK_K)
        cache_offset = (row.to(tl.int64) * cache_rows + position) * CACHE_ROW
        out_ptr = cache + cache_offset[:, None] + column[None, :]
        in_bounds = (row < m)[:, None] & (column < CACHE_ROW)[None, :]
        tl.store(out_ptr, acc.to(tl.bfloat16), mask=in_bounds)


@triton.jit
def query(
    nope,
    q,
    x,
    w,
    angles,
    positions,
    m,
    heads,
    k,
    start,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute 64 columns of one head of q: two of three blocks go to nope [m, heads, 128], the
    third is rotated and goes to the end of q's rows [m, heads, 576]."""
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    head, block_idx = tl.program_id(0) // 3, tl.program_id(0) % 3
    q_up_row = tl.program_id(0) * (2 * HALF) + tl.arange(0, HALF)
    columns = heads * ROPED
    low = _rows(x, w, row, q_up_row, m, columns, k, k, k, 1, BLOCK_M, HALF, BLOCK_K)
    high = _rows(x, w, row, q_up_row + HALF, m, columns, k, k, k, 1, BLOCK_M, HALF, BLOCK_K)
    low, high = low.to(tl.bfloat16), high.to(tl.bfloat16)
    d = tl.arange(0, HALF)
    head_row = row.to(tl.int64) * heads + head
    if block_idx < 2:
        out_ptr = nope + head_row * NOPE + block_idx * (2 * HALF)
    else:
        position = _positions(positions, start, row, m).to(tl.int64)
        angle_ptr = angles + position[:, None] * (2 * HALF) + d[None, :]
        cos = tl.load(angle_ptr, mask=(row < m)[:, None], other=0)
        sin = tl.load(angle_ptr + HALF, mask=(row < m)[:, None], other=0)
        low, high = rotate(low, high, cos, sin)
        out_ptr = q + head_row * CACHE_ROW + LATENT
    tl.store(out_ptr[:, None] + d[None, :], low, mask=(row < m)[:, None])
    tl.store(out_ptr[:, None] + HALF + d[None, :], high, mask=(row < m)[:, None])


@triton.jit
def product(
    out,
    x,
    w,
    m,
    n,
    k,
    x_row,
    x_head,
    w_first,
    w_head,
    w_n,
    w_k,
    out_row,
    out_head,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute out = x w^T of one head; w is [n, k] in any strides and begins at element w_first."""
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    head = tl.program_id(2).to(tl.int64)
    acc = _rows(
        x + head * x_head,
        w + w_first + head * w_head,
        row,
        column,
        m,
        n,
        k,
        x_row,
        w_n,
        w_k,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    out_ptr = out + head * out_head + row.to(tl.int64)[:, None] * out_row + column[None, :]
    tl.store(out_ptr, acc.to(tl.bfloat16), mask=(row < m)[:, None] & (column < n)[None, :])
