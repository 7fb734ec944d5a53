"""Device code of mla_decode in Triton.

    out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])

A program has BLOCK_M columns (a query's head) of a sequence and one of `splits` equal parts of its
tokens, BLOCK_N at a time: a tile of the cache is loaded once and is the operand of both products.
Tokens behind the end are zeros, and not read. Then the splits are added up, in their order.
Rows are 64-bit offsets, those within one 32-bit. Nothing is atomic.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

V = tl.constexpr(512)
ROPE = tl.constexpr(64)
HALF = tl.constexpr(32)  # of those
TAIL = tl.constexpr(16)  # tokens at once of those that some column does not see
KEY = tl.constexpr(576)
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _to_bf16(payload, FP8: tl.constexpr, FNUZ: tl.constexpr):
    """Return bytes of FP8 (e4m3fnuz with FNUZ, otherwise e4m3fn) as bf16; without FP8 the
    payload."""
    if FP8:
        kind: tl.constexpr = tl.float8e4b8 if FNUZ else tl.float8e4nv
        values = payload.to(kind, bitcast=True).to(tl.bfloat16)
    else:
        values = payload
    return values


@triton.jit
def rotate(low, high, cos, sin):
    """RoPE of bf16 as torch rounds it: each product and the sum."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    made_low = (low * cos).to(tl.bfloat16).to(tl.float32)
    made_low -= (high * sin).to(tl.bfloat16).to(tl.float32)
    made_high = (high * cos).to(tl.bfloat16).to(tl.float32)
    made_high += (low * sin).to(tl.bfloat16).to(tl.float32)
    return made_low.to(tl.bfloat16), made_high.to(tl.bfloat16)


@triton.jit
def _attend(
    state,
    q_tile,
    cache,
    angles,
    scale,
    begin,
    end,
    kv_end,
    BLOCK_N: tl.constexpr,
    KV_FP8: tl.constexpr,
    FNUZ: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Add the tokens begin .. end - 1. q_tile: the first 512 elements of q, then the last 64; with
    `angles` the two halves of these. With `kv_end` a row sees those before its own alone: NaN
    and inf among the values of tokens that some row does not see are zeros, as 0 times them is NaN;
    a row that sees such a token has a P of NaN, or of 0 where its score is -inf. STAGES: None is
    the launch's."""
    acc, row_max, row_sum = state
    kv, pages, page = cache
    v, rope = tl.arange(0, V), V + tl.arange(0, ROPE)
    low = V + tl.arange(0, HALF)
    for first_token in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        token = first_token + tl.arange(0, BLOCK_N)
        in_bounds = token < end
        rows = in_bounds[:, None]
        row = tl.load(pages + token // page, mask=in_bounds, other=0).to(tl.int64) * page
        row = (row + token % page) * KEY
        k_v = _to_bf16(tl.load(kv + row[:, None] + v[None, :], mask=rows, other=0), KV_FP8, FNUZ)
        score = tl.dot(q_tile[0], tl.trans(k_v))
        if angles is None:
            k_at = kv + row[:, None] + rope[None, :]
            k_rope = _to_bf16(tl.load(k_at, mask=rows, other=0), KV_FP8, FNUZ)
            score = tl.dot(q_tile[1], tl.trans(k_rope), score) * scale
        else:
            k_at = kv + row[:, None] + low[None, :]
            k_low = tl.load(k_at, mask=rows, other=0)
            k_high = tl.load(k_at + HALF, mask=rows, other=0)
            angle = angles + token[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
            cos = tl.load(angle, mask=rows, other=0)
            sin = tl.load(angle + HALF, mask=rows, other=0)
            k_low, k_high = rotate(k_low, k_high, cos, sin)
            score = tl.dot(q_tile[1], tl.trans(k_low), score)
            score = tl.dot(q_tile[2], tl.trans(k_high), score) * scale
        if kv_end is not None:
            score = tl.where(token[None, :] < kv_end[:, None], score, -float("inf"))
            is_hidden = token[:, None] >= tl.min(kv_end, 0)
            is_finite = tl.abs(k_v.to(tl.float32)) < float("inf")
            k_v = tl.where(is_hidden & (is_finite == 0), 0.0, k_v).to(tl.bfloat16)
        else:
            score = tl.where(in_bounds[None, :], score, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(score, 1))
        p = tl.exp2(score - new_max[:, None])
        rescale_factor = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale_factor + tl.sum(p, 1)
        acc = acc * rescale_factor[:, None]
        acc = tl.dot(p.to(tl.bfloat16), k_v, acc)
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def attend_split(
    out,
    lse,
    sums,
    stats,
    q,
    kv,
    kv_indptr,
    kv_indices,
    kv_lens,
    kv_scale,
    q_scale,
    angles,
    qo_indptr,
    columns,
    rows,
    heads,
    hidden,
    page,
    width,
    splits,
    SM_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    KV_FP8: tl.constexpr,
    Q_FP8: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """Attend BLOCK_M query rows to one split of their sequence's tokens, and store partials: sums
    fp32 [rows of out, splits, 512], stats [rows, splits, 2]; with one split out and lse instead.
    `hidden` is how many of the last tokens a sequence's first query does not see; with qo_indptr
    sequences have some number of queries each, and it says causal. Without CAUSAL it is 0."""
    b, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    first_row = b * columns
    if qo_indptr is not None:
        first_query = tl.minimum(tl.load(qo_indptr + b), rows)
        queries = tl.minimum(tl.load(qo_indptr + b + 1), rows) - first_query
        first_row = first_query.to(tl.int64) * heads
        columns = queries * heads
        hidden = hidden * (queries - 1)
    base = tl.program_id(1) * BLOCK_M
    column = base + tl.arange(0, BLOCK_M)
    is_column = column < columns
    scale = SM_SCALE * LOG2E
    value_scale = 1.0
    if kv_scale is not None:
        value_scale = tl.load(kv_scale)
        scale *= value_scale
    if q_scale is not None:
        scale *= tl.load(q_scale)
    if width > 0:
        pages = kv_indices + b * width
    else:
        pages = kv_indices + tl.load(kv_indptr + b)
    if kv_lens is not None:
        length = tl.load(kv_lens + b)
    else:
        length = (tl.load(kv_indptr + b + 1) - tl.load(kv_indptr + b)) * page
    if base >= columns:
        length = 0  # it is longer for others
    blocks = tl.cdiv(length, BLOCK_N)
    per_split = tl.cdiv(blocks, splits)
    token_begin = split * per_split * BLOCK_N
    end = tl.minimum((split + 1) * per_split * BLOCK_N, length)
    common_end = end  # of what all columns see
    if CAUSAL:
        last_column = tl.minimum(base + BLOCK_M, columns) - 1
        end = tl.minimum(end, length - tl.maximum(hidden - last_column // heads, 0))
        common_end = tl.minimum(end, length - tl.maximum(hidden - base // heads, 0))

    v, rope = tl.arange(0, V), V + tl.arange(0, ROPE)
    low = V + tl.arange(0, HALF)
    q_row = (first_row + column) * KEY
    q_v = _to_bf16(
        tl.load(q + q_row[:, None] + v[None, :], mask=is_column[:, None], other=0), Q_FP8, FNUZ
    )
    if angles is None:
        q_at = q + q_row[:, None] + rope[None, :]
        q_tile = q_v, _to_bf16(tl.load(q_at, mask=is_column[:, None], other=0), Q_FP8, FNUZ)
    else:
        q_at = q + q_row[:, None] + low[None, :]
        q_low = _to_bf16(tl.load(q_at, mask=is_column[:, None], other=0), Q_FP8, FNUZ)
        q_high = _to_bf16(tl.load(q_at + HALF, mask=is_column[:, None], other=0), Q_FP8, FNUZ)
        q_tile = q_v, q_low, q_high
    acc = tl.zeros((BLOCK_M, V), tl.float32)
    row_max = tl.full((BLOCK_M,), -1e30, tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    state = acc, row_max, row_sum
    cache = kv, pages, page
    state = _attend(
        state,
        q_tile,
        cache,
        angles,
        scale,
        token_begin,
        common_end,
        None,
        BLOCK_N,
        KV_FP8,
        FNUZ,
        None,
    )
    if CAUSAL:
        kv_end = tl.minimum(end, length - tl.maximum(hidden - column // heads, 0))
        begin = tl.maximum(token_begin, common_end)
        state = _attend(
            state, q_tile, cache, angles, scale, begin, end, kv_end, TAIL, KV_FP8, FNUZ, 1
        )
    acc, row_max, row_sum = state

    row = first_row + column
    if sums is not None:
        partial_idx = row * splits + split
        partial_offset = partial_idx * V
        tl.store(stats + partial_idx * 2, row_max, mask=is_column)
        tl.store(stats + partial_idx * 2 + 1, row_sum, mask=is_column)
        tl.store(sums + partial_offset[:, None] + v[None, :], acc, mask=is_column[:, None])
    else:
        factor = tl.where(row_sum == 0, 0.0, value_scale / row_sum)
        if lse is not None:
            tl.store(lse + row, (row_max + tl.log2(row_sum)) * LN2, mask=is_column)
        out_offset = row * V
        tl.store(
            out + out_offset[:, None] + v[None, :], acc * factor[:, None], mask=is_column[:, None]
        )


@triton.jit
def add_splits(
    out, lse, sums, stats, kv_scale, qo_indptr, splits, batch, heads, SPLITS: tl.constexpr
):
    """Combine the partials of one row of out, and of lse. A row that belongs to no sequence of
    qo_indptr is not written. SPLITS: the least power of two that is not below `splits`."""
    row = tl.program_id(0).to(tl.int64)
    if qo_indptr is not None:
        query = row // heads
        if (query < tl.load(qo_indptr)) | (query >= tl.load(qo_indptr + batch)):
            return
    split = tl.arange(0, SPLITS)
    in_bounds = split < splits
    row_max = tl.load(stats + (row * splits + split) * 2, mask=in_bounds, other=-1e30)
    row_sum = tl.load(stats + (row * splits + split) * 2 + 1, mask=in_bounds, other=0)
    top = tl.max(row_max, 0)
    weight = tl.exp2(row_max - top)
    all_sum = tl.sum(weight * row_sum, 0)
    v = tl.arange(0, V)
    acc = tl.zeros((V,), tl.float32)
    for i in range(0, splits):
        one = tl.exp2(tl.load(stats + (row * splits + i) * 2) - top)
        acc += one * tl.load(sums + (row * splits + i) * V + v)
    value_scale = 1.0
    if kv_scale is not None:
        value_scale = tl.load(kv_scale)
    factor = tl.where(all_sum == 0, 0.0, value_scale / all_sum)
    tl.store(out + row * V + v, acc * factor)
    if lse is not None:
        tl.store(lse + row, (top + tl.log2(all_sum)) * LN2)
