"""Device code of batched_gemm_a16w8_blockscale in Triton.

    out[b, m, n] = sum_j w_scale[b, n / 128, j] * sum_{k in block j} x[b, m, k] * w[b, n, k]

`rows`   few rows of x: no matrix unit, no padding. A program owns `BN` rows of w (of one batch, or
         of each of `BB` batches), reads each byte of them once in 16-byte pieces, all pieces of a
         step in flight at once, and sums in fp32.
`tiles`  more rows, on the matrix unit. With w on the left its rows fill the unit's M and few rows
         of x cost only a narrow N; the tile is stored transposed. With x on the left (X_LEFT) a
         program converts each weight once and shares it through shared memory, which on sm_90
         takes a third fewer instructions from 64 rows on.
`one_block` is `tiles` for a K of one scale's block.
`sum_splits` adds what `tiles` left for each split of K, in the splits' order.
`dequantise` writes w * w_scale in x's type, for torch.bmm.

e4m3 is exact in bf16 and fp16, and so are products in fp32: only sums and the scale round. Nothing
is atomic: a config's result does not change from run to run. Offsets inside one batch are 32-bit,
those of a batch 64-bit. Rows of w past an edge read the last row instead and are not stored.
Batches are along the grid's last axis, b_first is the first of a launch.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

SCALE_BLOCK = tl.constexpr(128)
# Else each of them that is 1, or a multiple of 16, would be a kernel of its own.
_PLAIN = ("b_first", "b_count", "m_count")


@triton.jit(do_not_specialize=_PLAIN)
def rows(
    out,
    x,
    w,
    scale,
    b_first,
    b_count,
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
    s_b,
    s_n,
    s_k,
    ROWS: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """ROWS (M to a power of two) of x against BN rows of w; ROWS or BB is 1, BN divides 128."""
    GROUPS: tl.constexpr = BK // SCALE_BLOCK if BK > SCALE_BLOCK else 1
    first_n = tl.program_id(0) * BN
    first_b = b_first + tl.program_id(2) * BB
    row = tl.arange(0, BB * ROWS)  # of the result: a batch, or a row of x
    row_b, row_m = first_b + row // ROWS, row % ROWS
    row_read = tl.minimum(row_b, b_count - 1).to(tl.int64) * x_b
    row_read += tl.minimum(row_m, m_count - 1) * x_m
    b_read = tl.minimum(first_b + tl.arange(0, BB), b_count - 1).to(tl.int64)
    n = first_n + tl.arange(0, BN)
    n_read = tl.minimum(n, n_count - 1)
    k = tl.arange(0, BK)
    group = tl.arange(0, GROUPS)

    x_at = x + row_read[:, None, None] + (k * x_k)[None, None, :]
    w_at = w + (b_read * w_b)[:, None, None] + (n_read * w_n)[None, :, None]
    w_at += (k * w_k)[None, None, :]
    s_at = scale + (b_read * s_b)[:, None, None] + first_n // SCALE_BLOCK * s_n
    acc = tl.zeros((BB * ROWS, BN), tl.float32)
    for first_k in range(0, k_count, BK):
        in_block = first_k // SCALE_BLOCK + group
        s_here = s_at + (in_block * s_k)[None, None, :]
        if EVEN_K:
            w_part = tl.load(w_at, eviction_policy="evict_first")
            x_part = tl.load(x_at)
            s = tl.load(s_here)
        else:
            in_k = (first_k + k < k_count)[None, None, :]
            w_part = tl.load(w_at, mask=in_k, other=0.0, eviction_policy="evict_first")
            x_part = tl.load(x_at, mask=in_k, other=0.0)
            s = tl.load(s_here, mask=(in_block * SCALE_BLOCK < k_count)[None, None, :], other=0.0)
        product = w_part.to(tl.float32) * x_part.to(tl.float32)
        if GROUPS == 1:
            sums = tl.sum(product, 2)[:, :, None]
        else:
            sums = tl.sum(product.reshape(BB * ROWS, BN, GROUPS, SCALE_BLOCK), 3)
        acc += tl.sum(sums * s, 2)
        w_at += BK * w_k
        x_at += BK * x_k

    out_at = out + (row_b.to(tl.int64) * out_b + row_m * out_m)[:, None] + (n * out_n)[None, :]
    inside = (row_b < b_count)[:, None] & (row_m < m_count)[:, None] & (n < n_count)[None, :]
    tl.store(out_at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scales_at(scale, first_n, n_count, s_n, BN: tl.constexpr):
    """Return the pointers to the scales of BN rows of w for the first block of K: one, or [BN,
    1]."""
    if BN <= SCALE_BLOCK:
        at = scale + tl.minimum(first_n, n_count - 1) // SCALE_BLOCK * s_n
    else:
        n_read = tl.minimum(first_n + tl.arange(0, BN), n_count - 1)
        at = scale + (n_read // SCALE_BLOCK * s_n)[:, None]
    return at


@triton.jit
def _load(at, mask, EVEN: tl.constexpr):
    """Load with zeros where the mask is false; with EVEN there is no mask."""
    if EVEN:
        values = tl.load(at)
    else:
        values = tl.load(at, mask=mask, other=0.0)
    return values


@triton.jit
def _product(w_part, x_part, X_LEFT: tl.constexpr):
    """[BN, BM], w being [BN, BK] and x [BK, BM].

    w goes by way of fp32: on sm_90 e4m3 to bf16 directly is one instruction an element, of an
    eighth of the others' rate. Moving its bits (a byte permute, a shift and two masks for two
    elements, then a product with 2^120) keeps the half-rate pipe busy for twice as long.
    """
    w_part = w_part.to(tl.float32).to(x_part.dtype)
    if X_LEFT:
        product = tl.trans(tl.dot(tl.trans(x_part), tl.trans(w_part)))
    else:
        product = tl.dot(w_part, x_part)
    return product


@triton.jit(do_not_specialize=_PLAIN)
def tiles(
    out,
    x,
    w,
    scale,
    b_first,
    m_count,
    n_count,
    k_count,
    out_s,
    out_b,
    out_m,
    out_n,
    x_b,
    x_m,
    x_k,
    w_b,
    w_n,
    w_k,
    s_b,
    s_n,
    s_k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP_N: tl.constexpr,
    SPLIT_K: tl.constexpr,
    X_LEFT: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    ONE_M: tl.constexpr,
):
    """A [BN, BM] tile of one batch's transposed result; BK divides 128. Grid: tiles, splits of K,
    batches.

    ONE_M: m_count is at most BM. GROUP_N tiles of n share their rows of x in the last-level cache
    before m moves on. Split s is stored at out + s * out_s.
    """
    b = (b_first + tl.program_id(2)).to(tl.int64)
    if ONE_M:
        first_m = 0
        first_n = tl.program_id(0) * BN
    else:
        tiles_m = tl.cdiv(m_count, BM)
        tiles_n = tl.cdiv(n_count, BN)
        group = tl.program_id(0) // (GROUP_N * tiles_m)
        group_n = tl.minimum(tiles_n - group * GROUP_N, GROUP_N)
        tile = tl.program_id(0) % (GROUP_N * tiles_m)
        first_n = (group * GROUP_N + tile % group_n) * BN
        first_m = tile // group_n * BM

    n = first_n + tl.arange(0, BN)
    m = first_m + tl.arange(0, BM)
    n_read = tl.minimum(n, n_count - 1)
    k = tl.arange(0, BK)
    s_at = _scales_at(scale + b * s_b, first_n, n_count, s_n, BN)
    w_at = w + b * w_b + (n_read * w_n)[:, None]
    x_at = x + b * x_b + (m * x_m)[None, :]
    in_m = (m < m_count)[None, :]
    steps = tl.cdiv(k_count, BK)
    per_split = tl.cdiv(steps, SPLIT_K)
    first = tl.program_id(1) * per_split
    last = tl.minimum(first + per_split, steps)
    w_at += ((first * BK + k) * w_k)[None, :]
    x_at += ((first * BK + k) * x_k)[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    # One step ahead: its latency would else follow that of w in each step.
    s = tl.load(s_at + tl.minimum(first, steps - 1) * BK // SCALE_BLOCK * s_k)
    for step in range(first, last):
        left = k_count - step * BK
        w_part = _load(w_at, (k < left)[None, :], EVEN_K)
        x_part = _load(x_at, in_m & (k < left)[:, None], EVEN_K and EVEN_M)
        following = tl.minimum(step + 1, last - 1)
        s_next = tl.load(s_at + following * BK // SCALE_BLOCK * s_k)
        acc += _product(w_part, x_part, X_LEFT) * s
        s = s_next
        w_at += BK * w_k
        x_at += BK * x_k

    out_at = out + tl.program_id(1).to(tl.int64) * out_s + b * out_b
    out_at = out_at + (n * out_n)[:, None] + (m * out_m)[None, :]
    inside = (n < n_count)[:, None] & (m < m_count)[None, :]
    tl.store(out_at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_PLAIN)
def one_block(
    out,
    x,
    w,
    scale,
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
    s_b,
    s_n,
    s_k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TILES: tl.constexpr,
    X_LEFT: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """`tiles` for K of at most BK: a program keeps the tile of x and goes through TILES tiles of w,
    loading one while it stores another. Grid: groups of tiles of n, tiles of m,
    batches."""
    b = (b_first + tl.program_id(2)).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    in_k = k < k_count
    x_at = x + b * x_b + (m * x_m)[None, :] + (k * x_k)[:, None]
    w_at = w + b * w_b + (k * w_k)[None, :]
    out_at = out + b * out_b + (m * out_m)[None, :]
    first_n = tl.program_id(0) * (TILES * BN)
    x_part = _load(x_at, (m < m_count)[None, :] & in_k[:, None], EVEN_K and EVEN_M)
    for tile in range(TILES):
        n = first_n + tile * BN + tl.arange(0, BN)
        n_read = tl.minimum(n, n_count - 1)
        s = tl.load(_scales_at(scale + b * s_b, first_n + tile * BN, n_count, s_n, BN))
        w_part = _load(w_at + (n_read * w_n)[:, None], in_k[None, :], EVEN_K)
        acc = _product(w_part, x_part, X_LEFT) * s
        inside = (n < n_count)[:, None] & (m < m_count)[None, :]
        tl.store(out_at + (n * out_n)[:, None], acc.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_PLAIN)
def sum_splits(
    out,
    part,
    m_count,
    n_count,
    part_s,
    out_b,
    out_m,
    out_n,
    SPLIT_K: tl.constexpr,
    BN: tl.constexpr,
):
    """BN elements of a row of out from part, [SPLIT_K, B, M, N] fp32 and contiguous."""
    tiles_n = tl.cdiv(n_count, BN)
    row = (tl.program_id(0) // tiles_n).to(tl.int64)
    n = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    inside = n < n_count
    total = tl.zeros((BN,), tl.float32)
    for split in tl.static_range(SPLIT_K):
        total += tl.load(part + split * part_s + row * n_count + n, mask=inside, other=0.0)
    out_at = out + row // m_count * out_b + row % m_count * out_m + n * out_n
    tl.store(out_at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_PLAIN)
def dequantise(
    out, w, scale, b_first, n_count, k_count, w_b, w_n, w_k, s_b, s_n, s_k, BN: tl.constexpr
):
    """out[b] = w[b_first + b] * scale, out contiguous; a program takes BN rows, a divisor of 128,
    by 128 of K."""
    tiles_n = tl.cdiv(n_count, BN)
    tiles_k = tl.cdiv(k_count, SCALE_BLOCK)
    tile = tl.program_id(0)
    block_k, tile = tile % tiles_k, tile // tiles_k
    first_n, b = tile % tiles_n * BN, (tile // tiles_n).to(tl.int64)
    n = first_n + tl.arange(0, BN)
    k = block_k * SCALE_BLOCK + tl.arange(0, SCALE_BLOCK)
    inside = (n < n_count)[:, None] & (k < k_count)[None, :]
    w_at = w + (b_first + b) * w_b + (n * w_n)[:, None] + (k * w_k)[None, :]
    s = tl.load(scale + (b_first + b) * s_b + first_n // SCALE_BLOCK * s_n + block_k * s_k)
    values = tl.load(w_at, mask=inside, other=0.0).to(tl.float32) * s
    out_at = out + b * n_count * k_count + (n * k_count)[:, None] + k[None, :]
    tl.store(out_at, values.to(out.dtype.element_ty), mask=inside)
