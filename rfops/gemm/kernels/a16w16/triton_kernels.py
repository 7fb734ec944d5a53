"""Device code of gemm_a16w16 and batched_gemm_a16w16 in Triton.

    out[b, m, n] = sum_k x[b, m, k] * w[b, n, k]

A program has a [BN, BM] tile of one batch's transposed result: w is the left operand of the matrix
unit, so that few rows of x cost only a narrow N. Sums are fp32 and in the order of K. Offsets
inside one batch are 32-bit, those of a batch 64-bit. Rows past an edge read the last row instead
and are not stored; K past its end reads zeros.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("b_first", "m_count"))
def tiles(
    out,
    x,
    w,
    b_first,
    m_count,
    n_count,
    k_count,
    out_b,
    out_m,
    out_n,
    x_b,
    x_m,
    x_k,
    w_b,
    w_n,
    w_k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Grid: tiles of n, tiles of m, batches from b_first on."""
    b = (b_first + tl.program_id(2)).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    w_at = w + b * w_b + (tl.minimum(n, n_count - 1) * w_n)[:, None] + (k * w_k)[None, :]
    x_at = x + b * x_b + (tl.minimum(m, m_count - 1) * x_m)[None, :] + (k * x_k)[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    for first_k in range(0, k_count, BK):
        if EVEN_K:
            w_part = tl.load(w_at)
            x_part = tl.load(x_at)
        else:
            in_k = first_k + k < k_count
            w_part = tl.load(w_at, mask=in_k[None, :], other=0.0)
            x_part = tl.load(x_at, mask=in_k[:, None], other=0.0)
        acc = tl.dot(w_part, x_part, acc)
        w_at += BK * w_k
        x_at += BK * x_k
    out_at = out + b * out_b + (n * out_n)[:, None] + (m * out_m)[None, :]
    in_bounds = (n < n_count)[:, None] & (m < m_count)[None, :]
    tl.store(out_at, acc.to(out.dtype.element_ty), mask=in_bounds)
