"""Device code of the MX-FP8 GEMMs in Triton: dense and grouped.

    out[m, n] = sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in b} x[m, k] * w[n, k]

b counts blocks of 32 along K. Payloads and scales come as bytes, so that no Triton refuses a dtype
that its GPU lacks. A program sums a [BLOCK_N, BLOCK_M] tile of the transposed result (w is the left
operand: it has rows enough for a matrix instruction) in one of three ways, METHOD:

"scaled"  tl.dot_scaled over BLOCK_K, on gfx950 the matrix instruction that scales. Not elsewhere:
          there Triton multiplies payload by scale in bf16 first, which overflows beyond 2^119, is
          slower (17 to 21 us against 11 to 13 at M = 16 on an H200), and fails to compile for
          gfx942 in Triton 3.6.
"blocks"  BLOCK_K / 32 products of one block each, side by side as a batch so that warps share out
          K; payloads as f16 (exact), each product scaled in fp32.
"exact"   the same with scales in two halves, right for every pair of them; "blocks" goes over to
          it where a tile has scales whose product could overflow, or the NaN scale.

For many rows, `expand_kernel` writes payload * scale in bf16 (exact) and `matmul_kernel` multiplies
that; where some product leaves bf16's normal range, gemm_kernel with "exact" does it all again.

Promises: the order of sums depends on config and shape alone, there are no atomics. Rows may start
anywhere; columns of a row are contiguous. The start of a tile is a 64-bit offset; those inside a
tile are 32-bit, or 64-bit with WIDE.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

from rfops.triton.tile_kernels import grouped_tile

BLOCK = tl.constexpr(32)  # elements of K that share a scale
ONE = tl.constexpr(127)  # the e8m0 byte of 1.0
NAN = tl.constexpr(255)
LARGEST_SUM = tl.constexpr(254 + 127)  # of two scale bytes whose product is a number in fp32
# Scales with which every payload but zero is a normal number in bf16.
BF16_LEAST, BF16_MOST = tl.constexpr(127 - 117), tl.constexpr(127 + 119)


@triton.jit
def _factor(byte):
    """2^(byte - 127) for bytes below 255: the exponent field, and for 0 the one denormal."""
    return tl.maximum(byte << 23, 1 << 22).to(tl.float32, bitcast=True)


@triton.jit
def _halves(byte):
    """2^(byte - 127) as two factors with exponents within -64..64; NaN for 255."""
    exponent = byte - ONE
    low = exponent >> 1
    a = _factor(exponent - low + ONE)
    return tl.where(byte == NAN, float("nan"), a), _factor(low + ONE)


@triton.jit
def _as_f16(code):
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def _scaled_tile(w_operand, x_operand, k_begin, k_end, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr):
    """The sum over k_begin..k_end with tl.dot_scaled; rows that are not ok count as zeros. An
    operand is its payload, the offsets of its rows, which of them are ok, its scales and their
    offsets."""
    w, w_off, w_ok, ws, ws_off = w_operand
    x, x_off, x_ok, xs, xs_off = x_operand
    k = tl.arange(0, BLOCK_K)
    b = tl.arange(0, BLOCK_K // BLOCK)
    total = tl.zeros((w_off.shape[0], x_off.shape[0]), tl.float32)
    for start in range(k_begin, k_end, BLOCK_K):
        w_mask, x_mask = w_ok[:, None], x_ok[None, :]
        ws_mask, xs_mask = w_ok[:, None], x_ok[:, None]
        if not EVEN_K:
            w_mask &= (start + k < k_end)[None, :]
            x_mask &= (start + k < k_end)[:, None]
            ws_mask &= (start + b * BLOCK < k_end)[None, :]
            xs_mask &= (start + b * BLOCK < k_end)[None, :]
        w_code = tl.load(w + start + w_off[:, None] + k[None, :], mask=w_mask, other=0)
        x_code = tl.load(x + start + x_off[None, :] + k[:, None], mask=x_mask, other=0)
        at = start // BLOCK
        w_scale = tl.load(ws + at + ws_off[:, None] + b[None, :], mask=ws_mask, other=ONE)
        x_scale = tl.load(xs + at + xs_off[:, None] + b[None, :], mask=xs_mask, other=ONE)
        total = tl.dot_scaled(w_code, w_scale, "e4m3", x_code, x_scale, "e4m3", total)
    return total


@triton.jit
def _load_scales(scales, off, ok, start, k_end, b, EVEN_K: tl.constexpr):
    """[blocks, rows] scale bytes of a step; 1.0 for what lies outside."""
    mask = ok[None, :] & (start < k_end)
    if not EVEN_K:
        mask &= (start + b * BLOCK < k_end)[:, None]
    return tl.load(scales + start // BLOCK + off[None, :] + b[:, None], mask=mask, other=ONE)


@triton.jit
def _blocks_tile(
    w_operand,
    x_operand,
    k_begin,
    k_end,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    EXACT: tl.constexpr,
):
    """The sum over k_begin..k_end, BLOCK_K / 32 partial sums side by side until the end; and the
    largest scale bytes met, of w and of x."""
    w, w_off, w_ok, ws, ws_off = w_operand
    x, x_off, x_ok, xs, xs_off = x_operand
    k = tl.arange(0, BLOCK)
    b = tl.arange(0, BLOCK_K // BLOCK)
    bk = b[:, None, None] * BLOCK
    total = tl.zeros((BLOCK_K // BLOCK, w_off.shape[0], x_off.shape[0]), tl.float32)
    # Scales are loaded a step ahead: a byte is too narrow for the asynchronous copies of payloads.
    w_scale = _load_scales(ws, ws_off, w_ok, k_begin, k_end, b, EVEN_K)
    x_scale = _load_scales(xs, xs_off, x_ok, k_begin, k_end, b, EVEN_K)
    w_most, x_most = w_scale, x_scale
    for start in range(k_begin, k_end, BLOCK_K):
        w_mask, x_mask = w_ok[None, :, None], x_ok[None, None, :]
        if not EVEN_K:
            left = (start + b * BLOCK < k_end)[:, None, None]
            w_mask &= left
            x_mask &= left
        w_at = w + start + w_off[None, :, None] + bk + k[None, None, :]
        x_at = x + start + x_off[None, None, :] + bk + k[None, :, None]
        w_code = tl.load(w_at, mask=w_mask, other=0)
        x_code = tl.load(x_at, mask=x_mask, other=0)
        w_now, x_now = w_scale.to(tl.int32), x_scale.to(tl.int32)
        w_most, x_most = tl.maximum(w_most, w_scale), tl.maximum(x_most, x_scale)
        w_scale = _load_scales(ws, ws_off, w_ok, start + BLOCK_K, k_end, b, EVEN_K)
        x_scale = _load_scales(xs, xs_off, x_ok, start + BLOCK_K, k_end, b, EVEN_K)
        dots = tl.dot(_as_f16(w_code), _as_f16(x_code))
        if EXACT:
            w_hi, w_lo = _halves(w_now)
            x_hi, x_lo = _halves(x_now)
            # hi with lo: each product is within 2^+-127, so a zero never meets an infinity
            dots *= w_hi[:, :, None] * x_lo[:, None, :]
            total += dots * (w_lo[:, :, None] * x_hi[:, None, :])
        else:
            total += dots * (_factor(w_now)[:, :, None] * _factor(x_now)[:, None, :])
    w_most, x_most = w_most.to(tl.int32), x_most.to(tl.int32)
    return tl.sum(total, axis=0), tl.max(tl.max(w_most, 1), 0), tl.max(tl.max(x_most, 1), 0)


@triton.jit
def _tile(w, x, k_begin, k_end, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, METHOD: tl.constexpr):
    if METHOD == "scaled":
        total = _scaled_tile(w, x, k_begin, k_end, BLOCK_K, EVEN_K)
    else:
        total, w_most, x_most = _blocks_tile(
            w, x, k_begin, k_end, BLOCK_K, EVEN_K, METHOD == "exact"
        )
        if METHOD == "blocks":
            if (w_most + x_most > LARGEST_SUM) | (w_most == NAN) | (x_most == NAN):
                total, _, _ = _blocks_tile(w, x, k_begin, k_end, BLOCK_K, EVEN_K, True)
    return total


# A size that only masks rows is not worth a variant of its own.
@triton.jit(do_not_specialize=["M"])
def gemm_kernel(
    out,  # [M, N] of any float, or with several splits [splits, M, N] fp32
    x,  # [M, K] e4m3 bytes
    w,  # [N, K] e4m3 bytes
    xs,  # [M, K/32] e8m0
    ws,  # [N, K/32] e8m0
    needed,  # int32: where it is 0 nothing is done; or nothing
    M,
    N,
    K,
    k_split,  # k_split: elements of K of a split, a multiple of BLOCK_K
    stride_o,
    stride_x,
    stride_w,
    stride_xs,
    stride_ws,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    METHOD: tl.constexpr,
    GROUP_M: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One BLOCK_M x BLOCK_N tile of out, summed over one split of K."""
    if needed is not None:
        if tl.load(needed) == 0:
            return
    pid_m, pid_n = grouped_tile(tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    split = tl.program_id(1)
    m0, n0 = (pid_m * BLOCK_M).to(tl.int64), (pid_n * BLOCK_N).to(tl.int64)
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    m_ok, n_ok = m < M - pid_m * BLOCK_M, n < N - pid_n * BLOCK_N
    if WIDE:  # the rows of one tile span 2 GiB
        m, n = m.to(tl.int64), n.to(tl.int64)
    k_begin = split * k_split
    w_rows = w + n0 * stride_w, n * stride_w, n_ok, ws + n0 * stride_ws, n * stride_ws
    x_rows = x + m0 * stride_x, m * stride_x, m_ok, xs + m0 * stride_xs, m * stride_xs
    k_end = tl.minimum(k_begin + k_split, K)
    total = _tile(w_rows, x_rows, k_begin, k_end, BLOCK_K, EVEN_K, METHOD)
    start = out + (split.to(tl.int64) * M + m0) * stride_o + n0
    at = start + m[None, :] * stride_o + n[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=m_ok[None, :] & n_ok[:, None])


@triton.jit
def expand_kernel(
    out,  # [rows, K] bf16
    codes,  # [rows, K] e4m3 bytes
    scales,  # [rows, K/32] e8m0
    out_of_range,  # int32, set to 1 where bf16 cannot hold a product
    K,
    stride_c,
    stride_s,
    BLOCKS: tl.constexpr,
):
    """out = payload * scale; a program does BLOCKS blocks of a row."""
    row = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    at = b[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    ok = b < K // BLOCK
    code = tl.load(codes + row * stride_c + at, mask=ok[:, None], other=0)
    byte = tl.load(scales + row * stride_s + b, mask=ok, other=ONE).to(tl.int32)
    factor = tl.where(byte == NAN, float("nan"), _factor(byte))
    values = _as_f16(code).to(tl.float32) * factor[:, None]
    tl.store(out + row * K + at, values.to(tl.bfloat16), mask=ok[:, None])
    extreme = ((byte > BF16_MOST) & (byte != NAN)) | (byte < BF16_LEAST)
    lost = extreme & (tl.max((code & 0x7F).to(tl.int32), 1) > 0)
    if tl.max(lost.to(tl.int32), 0) > 0:
        tl.store(out_of_range, 1)  # all writers write the same


@triton.jit(do_not_specialize=["M"])
def matmul_kernel(
    out,  # [M, N] of any float
    x,  # [M, K] bf16
    w,  # [N, K] bf16
    M,
    N,
    K,
    stride_o,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One BLOCK_M x BLOCK_N tile of out from bf16 operands, summed over all of K."""
    pid_m, pid_n = grouped_tile(tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    m0, n0 = (pid_m * BLOCK_M).to(tl.int64), (pid_n * BLOCK_N).to(tl.int64)
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    m_ok, n_ok = m < M - pid_m * BLOCK_M, n < N - pid_n * BLOCK_N
    # Rows beyond the edge read the last one's: without a mask the copies are plain.
    x_row, w_row = tl.minimum(m, M - 1 - pid_m * BLOCK_M), tl.minimum(n, N - 1 - pid_n * BLOCK_N)
    if WIDE:
        m, x_row, w_row = m.to(tl.int64), x_row.to(tl.int64), w_row.to(tl.int64)
    x_at = x + m0 * K + x_row[:, None] * K + k[None, :]
    w_at = w + n0 * K + w_row[None, :] * K + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a, b = tl.load(x_at), tl.load(w_at)
        else:
            left = k < K - start
            a = tl.load(x_at, mask=left[None, :], other=0.0)
            b = tl.load(w_at, mask=left[:, None], other=0.0)
        total = tl.dot(a, b, total)
        x_at += BLOCK_K
        w_at += BLOCK_K
    at = out + m0 * stride_o + n0 + m[:, None] * stride_o + n[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=m_ok[:, None] & n_ok[None, :])


@triton.jit(do_not_specialize=["num_valid", "num_ids", "blocks", "block_m", "a_div", "E"])
def grouped_kernel(
    out,  # [num_valid, N] of any float
    a,  # [rows, K] e4m3 bytes
    w,  # [E, N, K] e4m3 bytes
    a_scale,  # [rows, K/32] e8m0
    ws,  # [E, N, K/32] e8m0
    sorted_ids,  # [num_ids] int32: flat ids, those from num_valid on are padding
    expert_ids,  # [blocks] int32: of each block_m rows of sorted_ids; no expert: rows are zeroed
    num_padded,  # [1] int32: how many of sorted_ids count
    weights,  # [num_valid] fp32 by flat id, or nothing
    E,
    N,
    K,
    num_valid,
    num_ids,
    blocks,
    block_m,
    a_div,
    stride_o,
    stride_a,
    stride_as,
    stride_we,
    stride_w,
    stride_wse,
    stride_ws,
    METHOD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One BLOCK_M x BLOCK_N tile of out: rows of sorted_ids, all of one expert."""
    parts = tl.cdiv(block_m, BLOCK_M)  # tiles of a block
    pid_m, pid_n = grouped_tile(blocks * parts, tl.cdiv(N, BLOCK_N), GROUP_M)
    block, part = pid_m // parts, pid_m % parts
    if block * block_m >= tl.load(num_padded):
        return
    row = part * BLOCK_M + tl.arange(0, BLOCK_M)
    in_block = (row < block_m) & (row < num_ids - block * block_m)
    ids = tl.load(sorted_ids + block * block_m + row, mask=in_block, other=-1)
    ok = (ids >= 0) & (ids < num_valid)
    if tl.max(ok.to(tl.int32), axis=0) == 0:
        return
    ids = tl.where(ok, ids, 0)
    a_row = ids // a_div
    n = tl.arange(0, BLOCK_N)
    if WIDE:  # gathered rows lie anywhere, so a tile can span all of a and out
        ids, a_row, n = ids.to(tl.int64), a_row.to(tl.int64), n.to(tl.int64)
    n0 = (pid_n * BLOCK_N).to(tl.int64)
    n_ok = n < N - pid_n * BLOCK_N
    expert = tl.load(expert_ids + block).to(tl.int64)
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if (expert >= 0) & (expert < E):
        w += expert * stride_we + n0 * stride_w
        ws += expert * stride_wse + n0 * stride_ws
        w_rows = w, n * stride_w, n_ok, ws, n * stride_ws
        a_rows = a, a_row * stride_a, ok, a_scale, a_row * stride_as
        total = _tile(w_rows, a_rows, 0, K, BLOCK_K, EVEN_K, METHOD)
        if weights is not None:
            total *= tl.load(weights + ids, mask=ok, other=0.0)[None, :]
    at = out + n0 + ids[None, :] * stride_o + n[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=ok[None, :] & n_ok[:, None])
