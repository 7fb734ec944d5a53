"""Device code of gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4 in Triton.

    out[m, n] = bias[n] + sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in b} x[m,k] w[n,k]

b counts blocks of 32 along K; payloads are e2m1, two a byte, those of x e4m3 where BUMP is -2. With
BUMP from 0 on x has 16 bits and is quantised on the way in, as quant_mxfp4 does. A program sums a
[BLOCK_N, BLOCK_M] tile of the transposed result, w on the left, as few rows of x cost only a narrow
right side. METHOD:

"scaled"  tl.dot_scaled, on gfx950 the matrix instruction that scales.
"upcast"  payload times scale in bf16, which is exact; elements of even k, then those of odd k, as a
          byte has them. Where a tile has a scale of 2^126 or above, or the NaN, bf16 does not
          hold the product, and the tile is summed anew block by block, scaled in fp32; of e4m3
          from 2^120 on, and where elements other than zero have a scale below 2^-111.

Plain operands have any strides; shuffled ones are found where shuffle.py puts them. Rows past an
edge read the last row instead and are not stored. The start of a tile is a 64-bit offset, those
inside a tile are 32-bit. Nothing is atomic; the order of sums depends on config and shape alone.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl

from rfops.quantization.mx_triton_kernels import fp4_code, inverse_of, scale_byte
from rfops.triton.mxfp8_kernels import _halves
from rfops.triton.tile_kernels import rows_of_tile

BLOCK = tl.constexpr(32)  # elements of K that share a scale
NAN = tl.constexpr(255)
PAIRS = tl.constexpr(16)  # bytes of them
ONE = tl.constexpr(127)  # the e8m0 byte of 1.0
MAX_SCALE = tl.constexpr(252)  # the largest scale with which 6 is a number in bf16
# Of e4m3: the same of 448, and the least one with which 2^-9 is a normal one.
MOST_E4M3, LEAST_E4M3 = tl.constexpr(246), tl.constexpr(16)


@triton.jit
def _value(code):
    """e2m1 of the low four bits: a bf16 of that exponent and mantissa, below the others' range."""
    bits = (code & 8).to(tl.uint16) << 12 | (code & 7).to(tl.uint16) << 6
    return bits.to(tl.bfloat16, bitcast=True) * (2.0**126)


@triton.jit
def _value_e4m3(code):
    """Return e4m3 codes as bf16."""
    bits = (code & 0x80).to(tl.uint16) << 8 | (code & 0x7F).to(tl.uint16) << 4
    value = bits.to(tl.bfloat16, bitcast=True) * (2.0**120)
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value).to(tl.bfloat16)


@triton.jit
def _even_and_odd(x_code, x_odd, BUMP: tl.constexpr):
    """Values of even k and of odd k."""
    if BUMP == -2:
        return _value_e4m3(x_code), _value_e4m3(x_odd)
    else:
        return _value(x_code), _value(x_code >> 4)


@triton.jit
def _extremes(x_byte, x_code, x_odd, BUMP: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr):
    """Scale bytes, of e4m3 those with which a product leaves bf16 as MAX_SCALE + 1 or more."""
    if BUMP == -2:
        code = (x_code | x_odd) & 0x7F
        code = tl.max(tl.reshape(code, (BYTES // PAIRS, PAIRS, ROWS)), axis=1)
        is_far = (x_byte > MOST_E4M3) | ((x_byte < LEAST_E4M3) & (code > 0))
        return tl.where(is_far, NAN, x_byte).to(tl.uint8)
    else:
        return x_byte


@triton.jit
def _factor(byte):
    """2^(byte - 127) in bf16, below NaN."""
    bits = tl.maximum(byte.to(tl.int32) << 7, 1 << 6)
    return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _repeat_blocks(scale, BYTES: tl.constexpr, ROWS: tl.constexpr):
    """[blocks, rows] as [bytes, rows]."""
    spread = tl.broadcast_to(scale[:, None, :], (BYTES // PAIRS, PAIRS, ROWS))
    return tl.reshape(spread, (BYTES, ROWS))


@triton.jit
def _wide_rows(scale, BYTES: tl.constexpr, ROWS: tl.constexpr):
    """[rows, blocks] as [rows, bytes]."""
    spread = tl.broadcast_to(scale[:, :, None], (ROWS, BYTES // PAIRS, PAIRS))
    return tl.reshape(spread, (ROWS, BYTES))


@triton.jit
def _quantise(even, odd, BUMP: tl.constexpr, BYTES: tl.constexpr, ROWS: tl.constexpr):
    """fp32 [bytes, rows] of even and of odd k: packed codes, and scales [blocks, rows]."""
    even_bits = even.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    odd_bits = odd.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    max_byte = tl.max(
        tl.reshape(tl.maximum(even_bits, odd_bits), (BYTES // PAIRS, PAIRS, ROWS)), axis=1
    )
    byte = scale_byte(max_byte, BUMP, 2)
    inverse = _repeat_blocks(inverse_of(byte), BYTES, ROWS)
    codes = fp4_code(even * inverse) | fp4_code(odd * inverse) << 4
    return codes, byte.to(tl.uint8)


@triton.jit
def _load_x(
    x,
    x_at,
    x_k,
    k_left,
    BUMP: tl.constexpr,
    BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRED: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Load 16-bit x; return its packed codes and scales."""
    pair = tl.arange(0, BYTES)
    mask = None if EVEN_K else (pair < k_left // 2)[:, None]
    other = None if EVEN_K else 0
    if PAIRED:
        ptr = x.to(tl.pointer_type(tl.uint32)) + x_at[None, :] // 2 + pair[:, None]
        words = tl.load(ptr, mask=mask, other=other)
        even = (words & 0xFFFF).to(tl.uint16).to(x.dtype.element_ty, bitcast=True)
        odd = (words >> 16).to(tl.uint16).to(x.dtype.element_ty, bitcast=True)
    else:
        ptr = x + x_at[None, :] + (2 * pair * x_k)[:, None]
        even = tl.load(ptr, mask=mask, other=other)
        odd = tl.load(ptr + x_k, mask=mask, other=other)
    return _quantise(even.to(tl.float32), odd.to(tl.float32), BUMP, BYTES, ROWS)


@triton.jit
def _codes(ptr, is_there, EVEN_K: tl.constexpr):
    """[bytes, rows] of payloads."""
    if EVEN_K:
        return tl.load(ptr)
    else:
        return tl.load(ptr, mask=is_there[:, None], other=0)


@triton.jit
def _scale_at(row, block, row_stride, k_stride, SHUFFLED: tl.constexpr):
    """Return the offset of a scale; if shuffled, row_stride is that of a row of tiles over 32."""
    if SHUFFLED:
        tile = row // 32 * 32 * row_stride + block // 8 * 256
        return tile + (block % 4 * 16 + row % 16) * 4 + block // 4 % 2 * 2 + row // 16 % 2
    return row * row_stride + block * k_stride


@triton.jit
def _tile(
    x_operand,
    w_operand,
    begin,
    end,
    STEP: tl.constexpr,
    METHOD: tl.constexpr,
    BUMP: tl.constexpr,
    SHUFFLED: tl.constexpr,
    PAIRED: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """The sum over begin..end of K, STEP at a time, and the largest scale byte met. An operand is
    its payload, scales, strides of both, the first row and the rows from there on. SHUFFLED: of
    w, of its scales and of those of x."""
    W_SHUFFLED: tl.constexpr = SHUFFLED[0]
    WS_SHUFFLED: tl.constexpr = SHUFFLED[1]
    XS_SHUFFLED: tl.constexpr = SHUFFLED[2]
    x, x_scale, x_m, x_k, xs_m, xs_k, first_m, read_m = x_operand
    w, w_scale, w_n, w_k, ws_n, ws_k, first_n, read_n = w_operand
    BLOCK_M: tl.constexpr = read_m.shape[0]
    BLOCK_N: tl.constexpr = read_n.shape[0]
    BYTES: tl.constexpr = STEP // 2
    at_byte = tl.arange(0, BYTES)
    at_block = tl.arange(0, STEP // BLOCK)
    # Tiles start at multiples of 16 rows, so that rows inside one say which row of 16 it is.
    if W_SHUFFLED:
        w_at = (read_n // 16 * 16 * w_n + read_n % 16 * 16)[:, None]
        w_at += (at_byte // 16 * 256 + at_byte % 16)[None, :]
        w_step = BYTES * 16
    else:
        w_at = read_n[:, None] * w_n + at_byte[None, :] * w_k
        w_step = BYTES * w_k
    x_at = read_m * x_m
    x_step = (BYTES if BUMP == -1 else STEP) * x_k
    steps = (begin // STEP).to(tl.int64)
    w += steps * w_step
    x += steps * x_step
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    w_most = tl.zeros((BLOCK_N, STEP // BLOCK), tl.uint8)
    x_most = tl.zeros((STEP // BLOCK, BLOCK_M), tl.uint8)
    for start in range(begin, end, STEP):
        block = start // BLOCK + at_block
        is_byte = at_byte < (end - start) // 2
        is_block = block < end // BLOCK
        ws_at = _scale_at((first_n % 32 + read_n)[:, None], block[None, :], ws_n, ws_k, WS_SHUFFLED)
        if EVEN_K:
            w_code = tl.load(w + w_at)
            w_byte = tl.load(w_scale + ws_at)
        else:
            w_code = tl.load(w + w_at, mask=is_byte[None, :], other=0)
            w_byte = tl.load(w_scale + ws_at, mask=is_block[None, :], other=ONE)
        x_odd = 0
        if BUMP >= 0:
            x_code, x_byte = _load_x(
                x, x_at, x_k, end - start, BUMP, BYTES, BLOCK_M, PAIRED, EVEN_K
            )
        else:
            xs_at = _scale_at(
                (first_m % 32 + read_m)[None, :], block[:, None], xs_m, xs_k, XS_SHUFFLED
            )
            if EVEN_K:
                x_byte = tl.load(x_scale + xs_at)
            else:
                x_byte = tl.load(x_scale + xs_at, mask=is_block[:, None], other=ONE)
            if BUMP == -1:
                x_code = _codes(x + x_at[None, :] + at_byte[:, None] * x_k, is_byte, EVEN_K)
            elif METHOD == "scaled":
                at_k = tl.arange(0, STEP)
                code_at = x_at[None, :] + at_k[:, None] * x_k
                x_code = _codes(x + code_at, at_k < end - start, EVEN_K)
            else:
                code_at = x_at[None, :] + 2 * at_byte[:, None] * x_k
                x_code = _codes(x + code_at, is_byte, EVEN_K)
                x_odd = _codes(x + code_at + x_k, is_byte, EVEN_K)
        if METHOD == "scaled":
            x_turned = tl.trans(x_byte)
            X_FORMAT: tl.constexpr = "e4m3" if BUMP == -2 else "e2m1"
            total = tl.dot_scaled(w_code, w_byte, "e2m1", x_code, x_turned, X_FORMAT, total)
        elif METHOD == "upcast":
            w_most = tl.maximum(w_most, w_byte)
            x_most = tl.maximum(x_most, _extremes(x_byte, x_code, x_odd, BUMP, BYTES, BLOCK_M))
            even, odd = _even_and_odd(x_code, x_odd, BUMP)
            w_by = _wide_rows(_factor(w_byte), BYTES, BLOCK_N)
            x_by = _repeat_blocks(_factor(x_byte), BYTES, BLOCK_M)
            total = tl.dot(_value(w_code) * w_by, even * x_by, total)
            total = tl.dot(_value(w_code >> 4) * w_by, odd * x_by, total)
        else:  # "exact": one block
            even, odd = _even_and_odd(x_code, x_odd, BUMP)
            sums = tl.dot(_value(w_code), even)
            sums = tl.dot(_value(w_code >> 4), odd, sums)
            w_first, w_second = _halves(w_byte.to(tl.int32))
            x_first, x_second = _halves(x_byte.to(tl.int32))
            total += sums * w_first * x_first * w_second * x_second
        w += w_step
        x += x_step
    return total, tl.maximum(tl.max(w_most.to(tl.int32)), tl.max(x_most.to(tl.int32)))


@triton.jit
def gemm(
    out,
    x,
    x_scale,
    w,
    w_scale,
    bias,
    m,
    n,
    k,
    per_split,
    out_m,
    strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    METHOD: tl.constexpr,
    BUMP: tl.constexpr,
    W_SHUFFLED: tl.constexpr,
    WS_SHUFFLED: tl.constexpr,
    XS_SHUFFLED: tl.constexpr,
    PAIRED: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """out: [M, N], or fp32 [splits, M, N] where the grid has splits; a split is per_split of K.
    strides: of x, w, x_scale and w_scale, those of rows and along K."""
    first_m, row_m, read_m, first_n, row_n, read_n = rows_of_tile(m, n, BLOCK_M, BLOCK_N, GROUP_M)
    x_m, x_k = strides[0]
    w_n, w_k = strides[1]
    xs_m, xs_k = strides[2]
    ws_n, ws_k = strides[3]
    begin = tl.program_id(1) * per_split
    end = tl.minimum(begin + per_split, k)

    x += first_m.to(tl.int64) * x_m
    w += first_n.to(tl.int64) * w_n  # of whole tiles of 16 rows, where shuffled
    # A tile of 32 rows may begin halfway down one of scales.
    x_scale += (first_m - first_m % 32).to(tl.int64) * xs_m
    w_scale += (first_n - first_n % 32).to(tl.int64) * ws_n
    x_rows = x, x_scale, x_m, x_k, xs_m, xs_k, first_m, read_m
    w_rows = w, w_scale, w_n, w_k, ws_n, ws_k, first_n, read_n
    SHUFFLED: tl.constexpr = (W_SHUFFLED, WS_SHUFFLED, XS_SHUFFLED)
    total, max_byte = _tile(
        x_rows, w_rows, begin, end, BLOCK_K, METHOD, BUMP, SHUFFLED, PAIRED, EVEN_K
    )
    if METHOD == "upcast":
        if max_byte > MAX_SCALE:
            total, max_byte = _tile(
                x_rows, w_rows, begin, end, BLOCK, "exact", BUMP, SHUFFLED, PAIRED, True
            )

    if HAS_BIAS:
        total += tl.load(bias + first_n + read_n).to(tl.float32)[:, None]
    out += tl.program_id(1).to(tl.int64) * m * out_m + first_m.to(tl.int64) * out_m + first_n
    offset = row_m[None, :] * out_m + row_n[:, None]
    mask = (row_m < m - first_m)[None, :] & (row_n < n - first_n)[:, None]
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_splits(
    out, parts, bias, m, n, SPLITS: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr
):
    """out[m, n] = bias[n] + the sum of parts[s, m, n] over s in its order; columns of a row."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    offset = tl.program_id(0).to(tl.int64) * n + column
    total = tl.load(parts + offset, mask=column < n)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + tl.cast(m, tl.int64) * n * split + offset, mask=column < n)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=column < n).to(tl.float32)
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=column < n)
