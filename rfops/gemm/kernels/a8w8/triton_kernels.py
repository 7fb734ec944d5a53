"""Device code of gemm_a8w8_blockscale in Triton.

    out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x[m, k] * w[n, k]

A program sums a tile of the result, a block of 128 of K at a time: one product of FP8 on the matrix
unit, whose sum is then scaled in fp32. With W_LEFT the tile is transposed: w has rows enough for
the matrix unit's M, and few rows of x cost only a narrow N. Payloads come as bytes, so that no
Triton refuses a dtype. Any strides. Rows past an edge read the last row instead and are not stored;
the start of a tile is a 64-bit offset, those inside a tile are 32-bit. Nothing is atomic.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

from rfops.triton.tile_kernels import rows_of_tile

BLOCK = tl.constexpr(128)  # of K, and of rows of w, that share a scale


@triton.jit
def gemm(
    out,
    x,
    w,
    x_scale,
    w_scale,
    m,
    n,
    blocks,
    per_split,
    out_m,
    strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    W_LEFT: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """out: [M, N], or fp32 [splits, M, N] where the grid has splits. strides: of x, w, x_scale and
    w_scale, those of rows and along K."""
    FP8: tl.constexpr = tl.float8e4b8 if FNUZ else tl.float8e4nv
    first_m, row_m, read_m, first_n, row_n, read_n = rows_of_tile(m, n, BLOCK_M, BLOCK_N, GROUP_M)
    x_m, x_k = strides[0]
    w_n, w_k = strides[1]
    xs_m, xs_k = strides[2]
    ws_n, ws_k = strides[3]
    k = tl.arange(0, BLOCK)
    block_begin = tl.program_id(1) * per_split
    block_end = tl.minimum(block_begin + per_split, blocks)

    x += first_m.to(tl.int64) * x_m + block_begin.to(tl.int64) * BLOCK * x_k
    w += first_n.to(tl.int64) * w_n + block_begin.to(tl.int64) * BLOCK * w_k
    x_scale += first_m.to(tl.int64) * xs_m + block_begin.to(tl.int64) * xs_k
    w_scale += (first_n // BLOCK).to(tl.int64) * ws_n + block_begin.to(tl.int64) * ws_k
    if W_LEFT:
        x_at = read_m[None, :] * x_m + k[:, None] * x_k
        w_at = read_n[:, None] * w_n + k[None, :] * w_k
        total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        x_at = read_m[:, None] * x_m + k[None, :] * x_k
        w_at = read_n[None, :] * w_n + k[:, None] * w_k
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(block_begin, block_end):
        x_tile = tl.load(x + x_at).to(FP8, bitcast=True)
        w_tile = tl.load(w + w_at).to(FP8, bitcast=True)
        scale = tl.load(x_scale + read_m * xs_m)
        if BLOCK_N <= BLOCK:
            scale *= tl.load(w_scale)
            if W_LEFT:
                total += tl.dot(w_tile, x_tile) * scale[None, :]
            else:
                total += tl.dot(x_tile, w_tile) * scale[:, None]
        else:
            w_own = tl.load(w_scale + read_n // BLOCK * ws_n)
            total += tl.dot(x_tile, w_tile) * (scale[:, None] * w_own[None, :])
        x += BLOCK * x_k
        w += BLOCK * w_k
        x_scale += xs_k
        w_scale += ws_k

    out += tl.program_id(1).to(tl.int64) * m * out_m + first_m.to(tl.int64) * out_m + first_n
    is_m, is_n = row_m < m - first_m, row_n < n - first_n
    total = total.to(out.dtype.element_ty)
    if W_LEFT:
        offset = row_m[None, :] * out_m + row_n[:, None]
        tl.store(out + offset, total, mask=is_m[None, :] & is_n[:, None])
    else:
        offset = row_m[:, None] * out_m + row_n[None, :]
        tl.store(out + offset, total, mask=is_m[:, None] & is_n[None, :])
