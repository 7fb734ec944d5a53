"""The product of rows by one expert's MXFP4 or MX-FP8 matrix, in Triton device code.

Rows have been quantised and hold the values again, in bf16, which is exact; weights become bf16
here, payload times scale, exact but for products beyond bf16's range. Of MXFP4 a byte has elements
of even and of odd k: so rows come as all even ones, then all odd. Plain weights are rows; shuffled
ones are found where shuffle.py puts them.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

BLOCK = tl.constexpr(32)  # elements of K that share a scale
NAN = tl.constexpr(255)


@triton.jit
def _e2m1(code):
    """Return e2m1 codes (the low four bits) as fp32: exponent and mantissa in place, then
    scaled."""
    bits = (code & 8).to(tl.uint32) << 28 | (code & 7).to(tl.uint32) << 22
    return bits.to(tl.float32, bitcast=True) * (2.0**126)


@triton.jit
def _e2m1_bf16(code):
    """Return the same as bf16."""
    bits = (code & 8).to(tl.uint16) << 12 | (code & 7).to(tl.uint16) << 6
    return bits.to(tl.bfloat16, bitcast=True) * (2.0**126)


@triton.jit
def _e4m3(code):
    """Return e4m3 codes as fp32, through fp16, whose exponent bias is 8 higher. Code 127 becomes
    fp16's NaN by a carry."""
    magnitude = (code & 127).to(tl.uint16)
    bits = (code & 128).to(tl.uint16) << 8 | magnitude << 7 | (magnitude + 1) >> 7 << 14
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def _widened(code, scale, FP4: tl.constexpr, NATIVE: tl.constexpr):
    """Return codes times 2^(scale - 127), as bf16, NaN where scale is NAN.

    NATIVE: a bf16 product, where the GPU has one (an H200 takes 4 to 12 % longer by the other,
    measured). Otherwise the upper half of the fp32 product, whose lower 16 bits are 0 (but for
    results below 2^-133, which are cut): AMD's compiler rounds each product by a comparison, whose
    lane masks do not fit into SGPRs.
    """
    if NATIVE:
        half = tl.maximum(scale << 7, 1 << 6).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        factor = tl.where(scale == NAN, float("nan"), half).to(tl.bfloat16)
        value = _e2m1_bf16(code) if FP4 else _e4m3(code).to(tl.bfloat16)
        product = value * factor
    else:
        bits = tl.maximum(scale << 23, 1 << 22).to(tl.float32, bitcast=True)
        factor = tl.where(scale == NAN, float("nan"), bits)
        value = _e2m1(code) if FP4 else _e4m3(code)
        upper = (value * factor).to(tl.uint32, bitcast=True) >> 16
        product = upper.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return product


@triton.jit
def scale_columns(k, SHUFFLED: tl.constexpr):
    """Shuffled rows are padded to 8 scales."""
    if SHUFFLED:
        return tl.cdiv(k, 8 * BLOCK) * 8
    return k // BLOCK


@triton.jit
def _scale_at(row, block, row_bytes, SHUFFLED: tl.constexpr):
    if SHUFFLED:
        tile = row // 32 * 32 * row_bytes + block // 8 * 256
        return tile + (block % 4 * 16 + row % 16) * 4 + block // 4 % 2 * 2 + row // 16 % 2
    return row * row_bytes + block


@triton.jit
def mx_product(
    x,
    row,
    x_m,
    w,
    w_scale,
    at_n,
    k,
    BLOCK_K: tl.constexpr,
    FP4: tl.constexpr,
    SHUFFLED: tl.constexpr,
    SHUFFLED_SCALES: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Rows `row` of x by rows at_n of one expert's matrix."""
    ELEMS_PER_BYTE: tl.constexpr = 2 if FP4 else 1
    BYTES: tl.constexpr = BLOCK_K // ELEMS_PER_BYTE
    BLOCK_M: tl.constexpr = row.shape[0]
    BLOCK_N: tl.constexpr = at_n.shape[0]
    bytes_k = k // ELEMS_PER_BYTE
    at_byte = tl.arange(0, BYTES)
    at_block = tl.arange(0, BLOCK_K // BLOCK)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, bytes_k, BYTES):
        byte = start + at_byte
        in_bounds = byte < bytes_k
        if SHUFFLED:
            w_at = (at_n // 16 * 16 * bytes_k + at_n % 16 * 16)[None, :]
            w_at += (byte // 16 * 256 + byte % 16)[:, None]
        else:
            w_at = (at_n * bytes_k)[None, :] + byte[:, None]
        code = tl.load(w + w_at, mask=in_bounds[:, None], other=0)
        block = start * ELEMS_PER_BYTE // BLOCK + at_block
        s_at = _scale_at(
            at_n[None, :], block[:, None], scale_columns(k, SHUFFLED_SCALES), SHUFFLED_SCALES
        )
        scale = tl.load(w_scale + s_at, mask=(block < k // BLOCK)[:, None], other=127)
        scale = tl.broadcast_to(
            scale[:, None, :], (BLOCK_K // BLOCK, BLOCK // ELEMS_PER_BYTE, BLOCK_N)
        )
        scale = tl.reshape(scale, (BYTES, BLOCK_N)).to(tl.int32)
        x_at = x + row.to(tl.int64)[:, None] * x_m + byte[None, :]
        rows = tl.load(x_at, mask=in_bounds[None, :], other=0.0)
        if FP4:
            odd = tl.load(x_at + bytes_k, mask=in_bounds[None, :], other=0.0)
            total = tl.dot(rows, _widened(code, scale, FP4, NATIVE), total)
            total = tl.dot(odd, _widened(code >> 4, scale, FP4, NATIVE), total)
        else:
            total = tl.dot(rows, _widened(code, scale, FP4, NATIVE), total)
    return total
