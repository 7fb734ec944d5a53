"""Device code of fused_moe with biases and with every activation of act_mul, in Triton.

    gate_up: h[slot] = activation(g + bias's gate, u + bias's up),  g, u = x[t] @ w[e]^T
    down:    y[id] = h[slot] @ w[e]^T + bias[e]

Slots are those of moe_align_block_size: blocks of BLOCK_M routed rows of one expert, each with its
id, t * KT + j. Column i of h has gate's row i * pair_step of w and up's up_offset further on. Sums,
biases and activation are fp32; h and y are rounded once.

| FORM | rows | weights |
|---|---|---|
| 16-bit | bf16 or f16 | of the same type |
| mxfp4, mxfp8 | values in bf16, as mx/triton_product.py takes them | bytes and e8m0 scales |
| mxfp4_native, mxfp8_native | the same for a GPU that multiplies bf16 | the same |
| fp8, fp8_fnuz | bytes with a scale for 1 x 128 | bytes with a scale for 128 x 128 |

Rows and columns past an edge read others instead and are not stored; the start of an expert and of
a row is a 64-bit offset. Nothing is atomic.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

from rfops.moe.kernels.mx.triton_product import mx_product, scale_columns
from rfops.triton.tile_kernels import expert_slots, own_columns, store_ids

GROUP = tl.constexpr(128)  # of K, and of rows of w, that share an FP8 scale


@triton.jit
def _offsets(at_n, at_k, k, CHUNK: tl.constexpr, SHUFFLED: tl.constexpr):
    """[K, N] offsets within a matrix of rows of k elements, CHUNK of which have 16 bytes."""
    if SHUFFLED:
        of_n = at_n // 16 * 16 * k + at_n % 16 * CHUNK
        of_k = at_k // CHUNK * 16 * CHUNK + at_k % CHUNK
    else:
        of_n, of_k = at_n * k, at_k
    return of_n[None, :] + of_k[:, None]


@triton.jit
def _product_16bit(x, row, w, at_n, k, BLOCK_K: tl.constexpr, SHUFFLED: tl.constexpr):
    x_at = x + row.to(tl.int64)[:, None] * k
    total = tl.zeros((row.shape[0], at_n.shape[0]), tl.float32)
    for start in range(0, k, BLOCK_K):
        at_k = start + tl.arange(0, BLOCK_K)
        in_bounds = at_k < k
        rows = tl.load(x_at + at_k[None, :], mask=in_bounds[None, :], other=0.0)
        w_at = w + _offsets(at_n, at_k, k, 8, SHUFFLED)
        total = tl.dot(rows, tl.load(w_at, mask=in_bounds[:, None], other=0.0), total)
    return total


@triton.jit
def _product_fp8(x, x_scale, row, w, w_scale, at_n, k, FNUZ: tl.constexpr, SHUFFLED: tl.constexpr):
    FP8: tl.constexpr = tl.float8e4b8 if FNUZ else tl.float8e4nv
    steps = k // GROUP
    x_at = x + row.to(tl.int64)[:, None] * k
    scale_at = x_scale + row.to(tl.int64) * steps
    w_scale_at = w_scale + at_n // GROUP * steps
    total = tl.zeros((row.shape[0], at_n.shape[0]), tl.float32)
    for step in range(0, steps):
        at_k = step * GROUP + tl.arange(0, GROUP)
        rows = tl.load(x_at + at_k[None, :]).to(FP8, bitcast=True)
        codes = tl.load(w + _offsets(at_n, at_k, k, 16, SHUFFLED)).to(FP8, bitcast=True)
        scale = tl.load(scale_at + step)[:, None] * tl.load(w_scale_at + step)[None, :]
        total += tl.dot(rows, codes) * scale
    return total


@triton.jit
def _product(
    x,
    x_scale,
    row,
    w,
    w_scale,
    expert,
    rows_of_w,
    at_n,
    k,
    BLOCK_K: tl.constexpr,
    FORM: tl.constexpr,
    SHUFFLED: tl.constexpr,
    SHUFFLED_SCALES: tl.constexpr,
):
    """Rows `row` of x by rows at_n of an expert's matrix [rows_of_w, k]."""
    first_row = expert * rows_of_w
    if FORM == "16-bit":
        total = _product_16bit(x, row, w + first_row * k, at_n, k, BLOCK_K, SHUFFLED)
    elif FORM == "fp8" or FORM == "fp8_fnuz":
        FNUZ: tl.constexpr = FORM == "fp8_fnuz"
        of_expert = w_scale + first_row // GROUP * (k // GROUP)
        total = _product_fp8(x, x_scale, row, w + first_row * k, of_expert, at_n, k, FNUZ, SHUFFLED)
    else:
        FP4: tl.constexpr = FORM == "mxfp4" or FORM == "mxfp4_native"
        NATIVE: tl.constexpr = FORM == "mxfp4_native" or FORM == "mxfp8_native"
        of_expert = w_scale + first_row * scale_columns(k, SHUFFLED_SCALES)
        expert_w = w + first_row * (k // 2 if FP4 else k)
        total = mx_product(
            x, row, k, expert_w, of_expert, at_n, k, BLOCK_K, FP4, SHUFFLED, SHUFFLED_SCALES, NATIVE
        )
    return total


@triton.jit
def _activated(
    gate,
    up,
    ACTIVATION: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BETA: tl.constexpr,
):
    """act_mul's formulas; a NaN stays one where it is clamped too."""
    if ACTIVATION == "swiglu":
        gate = tl.minimum(gate, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        up = tl.minimum(up, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        up = tl.maximum(up, -LIMIT, propagate_nan=tl.PropagateNan.ALL) + BETA
        factor = 1.0 / (1.0 + tl.exp(-ALPHA * gate))
    elif ACTIVATION == "gelu":
        factor = 0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(z)) / 2 = sigmoid(2 z), 2 sqrt(2 / pi) = 1.5957691
        cubic = gate + 0.044715 * gate * gate * gate
        factor = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * cubic))
    else:
        factor = 1.0 / (1.0 + tl.exp(-gate))
    return gate * factor * up


@triton.jit
def gate_up(
    h,
    x,
    x_scale,
    w,
    w_scale,
    bias,
    ids,
    expert_ids,
    num_padded,
    sizes,
    pair_step,
    up_offset,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FORM: tl.constexpr,
    SHUFFLED: tl.constexpr,
    SHUFFLED_SCALES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BETA: tl.constexpr,
):
    """h: [slots, n]; w: [E, 2n, k]; bias: [E, 2n] or none; sizes: num_ids, n, k, top_k."""
    num_ids, n, k, top_k = sizes
    block, column = tl.program_id(0), tl.program_id(1)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    row = tl.where(id < num_ids, id // top_k, 0)
    out_columns, read = own_columns(column, n, BLOCK_N)
    at_gate = read * pair_step
    at_up = at_gate + up_offset
    g = _product(
        x,
        x_scale,
        row,
        w,
        w_scale,
        expert,
        2 * n,
        at_gate,
        k,
        BLOCK_K,
        FORM,
        SHUFFLED,
        SHUFFLED_SCALES,
    )
    u = _product(
        x,
        x_scale,
        row,
        w,
        w_scale,
        expert,
        2 * n,
        at_up,
        k,
        BLOCK_K,
        FORM,
        SHUFFLED,
        SHUFFLED_SCALES,
    )
    if bias is not None:
        of_expert = bias + expert * 2 * n
        g += tl.load(of_expert + at_gate).to(tl.float32)[None, :]
        u += tl.load(of_expert + at_up).to(tl.float32)[None, :]
    activated = _activated(g, u, ACTIVATION, ALPHA, LIMIT, BETA)
    h_ptrs = h + h_slot.to(tl.int64)[:, None] * n + out_columns[None, :]
    tl.store(h_ptrs, activated.to(h.dtype.element_ty), mask=out_columns[None, :] < n)


@triton.jit
def down(
    y,
    h,
    h_scale,
    w,
    w_scale,
    bias,
    ids,
    expert_ids,
    num_padded,
    sizes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FORM: tl.constexpr,
    SHUFFLED: tl.constexpr,
    SHUFFLED_SCALES: tl.constexpr,
):
    """y: [ids, n]; h: [slots, k]; w: [E, n, k]; bias: [E, n] or none; sizes: num_ids, n, k."""
    num_ids, n, k = sizes
    block, column = tl.program_id(0), tl.program_id(1)
    if block * BLOCK_M >= tl.load(num_padded):
        return
    expert, h_slot, id = expert_slots(ids, expert_ids, block, BLOCK_M)
    out_columns, read = own_columns(column, n, BLOCK_N)
    total = _product(
        h, h_scale, h_slot, w, w_scale, expert, n, read, k, BLOCK_K, FORM, SHUFFLED, SHUFFLED_SCALES
    )
    if bias is not None:
        total += tl.load(bias + expert * n + read).to(tl.float32)[None, :]
    store_ids(y, total, id, out_columns, num_ids, n)
