"""Device code of quant_mxfp4 and quant_mxfp8 in Triton, for every GPU that Triton has: codes are
made of bits, by no instruction that only some have.

A program has BLOCKS blocks of 32 along K, wherever rows begin; x has any strides.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

BLOCK = tl.constexpr(32)  # elements of K that share a scale
NAN = tl.constexpr(255)
INFINITY = tl.constexpr(0x7F800000)


@triton.jit
def scale_byte(amax_bits, BUMP: tl.constexpr, EMAX: tl.constexpr):
    """Return a block's e8m0 scale byte, from the bits of its largest magnitude."""
    byte = tl.maximum((amax_bits + BUMP >> 23) - EMAX, 0)
    return tl.where(amax_bits >= INFINITY, NAN, byte)


@triton.jit
def inverse_of(byte):
    """Return 2^(127 - byte), the inverse of an e8m0 scale; for the byte of NaN any number."""
    return (tl.maximum(254 - byte, 0) << 23).to(tl.float32, bitcast=True)


@triton.jit
def fp4_code(scaled):
    """Return the e2m1 code nearest to `scaled`, of a tie the even one; saturates."""
    size = tl.abs(scaled)
    code = (size > 0.25).to(tl.uint8) + (size >= 0.75) + (size > 1.25) + (size >= 1.75)
    code += (size > 2.5).to(tl.uint8) + (size >= 3.5) + (size > 5.0)
    return code | (scaled.to(tl.uint32, bitcast=True) >> 31 << 3).to(tl.uint8)


@triton.jit
def fp8_code(scaled):
    """Return the e4m3 code nearest to `scaled`, of a tie the even one; saturates."""
    bits = scaled.to(tl.uint32, bitcast=True)
    size = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)  # 448
    normal = (size + 0x7FFFF + ((size >> 20) & 1) >> 20) - (120 << 3)
    # Below 2^-6 steps are 2^-9: those of fp32 from 2^14 on.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 121 << 23, small, normal)
    return (code | bits >> 31 << 7).to(tl.uint8)


@triton.jit
def _scaled(
    x, blocks, k_blocks, x_m, x_k, BUMP: tl.constexpr, EXPONENT: tl.constexpr, BLOCKS: tl.constexpr
):
    """Return for BLOCKS blocks their numbers, which of them exist, their scale bytes, and their
    elements divided by the scales in fp32. EXPONENT: that of the format's largest number."""
    number = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    is_there = number < blocks
    block_offset = number // k_blocks * x_m + number % k_blocks * BLOCK * x_k
    k = tl.arange(0, BLOCK).to(tl.int64) * x_k
    values = tl.load(x + block_offset[:, None] + k[None, :], mask=is_there[:, None], other=0).to(
        tl.float32
    )
    amax_bits = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    byte = scale_byte(amax_bits, BUMP, EXPONENT)
    return number, is_there, byte, values * inverse_of(byte)[:, None]


@triton.jit
def quant_mxfp8(
    payload, scale, x, blocks, k_blocks, x_m, x_k, BUMP: tl.constexpr, BLOCKS: tl.constexpr
):
    """Quantise BLOCKS blocks of 32 elements to e4m3 codes and e8m0 scales; a block with a NaN
    becomes all NaN."""
    number, is_there, byte, scaled = _scaled(x, blocks, k_blocks, x_m, x_k, BUMP, 8, BLOCKS)
    codes = tl.where((byte == NAN)[:, None], 0x7F, fp8_code(scaled)).to(tl.uint8)
    payload_ptr = payload + number[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(payload_ptr, codes, mask=is_there[:, None])
    tl.store(scale + number, byte.to(tl.uint8), mask=is_there)


@triton.jit
def quant_mxfp4(
    payload, scale, x, blocks, k_blocks, x_m, x_k, BUMP: tl.constexpr, BLOCKS: tl.constexpr
):
    """Quantise BLOCKS blocks of 32 elements to e2m1 codes, two per byte with the even element low,
    and e8m0 scales."""
    number, is_there, byte, scaled = _scaled(x, blocks, k_blocks, x_m, x_k, BUMP, 2, BLOCKS)
    codes = tl.where((byte == NAN)[:, None], 0, fp4_code(scaled)).to(tl.uint8)
    even, odd = tl.split(tl.reshape(codes, (BLOCKS, BLOCK // 2, 2)))
    payload_ptr = payload + number[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    tl.store(payload_ptr, even | odd << 4, mask=is_there[:, None])
    tl.store(scale + number, byte.to(tl.uint8), mask=is_there)
