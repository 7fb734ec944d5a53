"""Device code of batched_gemm_a16w8_blockscale in Gluon, for NVIDIA's mma.sync: kernel `staged`.

As `tiles` (triton_kernels.py), with every copy and register where it is wanted. A
tile's copies to shared memory are all under way before the first product where K is short, else
those of STAGES steps, each into the place of one that is in registers. Warps share M and N, and K
too: [WK, BN, BM] sums, of which the first axis is added up at the end.

Both operands come out of shared memory in 16-byte pieces and go to the matrix unit as they are: of
64 of K a thread takes 16 that lie side by side, where the unit wants pairs 8 apart. Which of K
goes where does not matter as long as w and x agree; `_relabel` gives those places the unit's names,
and moves nothing (a third fewer instructions than what Triton makes of `tiles`).

On an H200, B=16, M=128, (N, K)=(128, 512) takes 3.9 us, with `tiles` 4.6. Copies of 64 of K a row
would read memory in half lines: at B=16, M=32, 4096 x 4096 127 us instead of 77.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, ANN201

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

# Triton 3.9's name for it, or 3.6's.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_PLAIN = ("b_first", "m_count")


@gluon.constexpr_function
def _bases(count, distance, axis):
    """Return the bases of `count` (a power of two) positions along an axis, `distance` apart."""
    bases = []
    while count > 1:
        bases.append([distance if axis == dim else 0 for dim in range(3)])
        distance, count = 2 * distance, count // 2
    return bases


@gluon.constexpr_function
def _fragment(ROWS, UNIT, BK, WK, W_ROWS, W_OTHER, OTHER_FIRST):
    """Return the register layout of [WK, ROWS, BK] as an MMA operand, UNIT rows per instruction:
    W_ROWS warps along the rows, W_OTHER with the same data; OTHER_FIRST orders the warps."""
    run = min(16, BK // 4)  # of K side by side in a thread
    registers = _bases(run, 1, 2) + _bases(BK // (4 * run), 4 * run, 2)
    registers += _bases(UNIT // 8, 8, 1) + _bases(ROWS // (UNIT * W_ROWS), UNIT * W_ROWS, 1)
    lanes = _bases(4, run, 2) + _bases(8, 1, 1)
    row_bases, replicas = _bases(W_ROWS, UNIT, 1), [[0, 0, 0]] * (W_OTHER.bit_length() - 1)
    warps = (replicas + row_bases if OTHER_FIRST else row_bases + replicas) + _bases(WK, 1, 0)
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [WK, ROWS, BK])


@gluon.jit
def _relabel(
    values, WK: gl.constexpr, ROWS: gl.constexpr, BK: gl.constexpr, TRANSPOSED: gl.constexpr
):
    """[WK, ROWS, BK] of `_fragment` with K in the unit's order; with TRANSPOSED [WK, BK, ROWS]."""
    RUN: gl.constexpr = 16 if BK >= 64 else BK // 4
    # K is block, lane, pair of pairs, pair, element; the unit's is block, pair of pairs, pair, lane
    # and element.
    fields = gl.reshape(values, (WK, ROWS, BK // (4 * RUN), 4, RUN // 4, 2, 2))
    if TRANSPOSED:
        named = gl.reshape(gl.permute(fields, (0, 2, 4, 5, 3, 6, 1)), (WK, BK, ROWS))
    else:
        named = gl.reshape(gl.permute(fields, (0, 1, 2, 4, 5, 3, 6)), (WK, ROWS, BK))
    return named


@gluon.jit
def _operands(
    w_part,
    x_part,
    mma: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    WK: gl.constexpr,
    WM: gl.constexpr,
    WN: gl.constexpr,
):
    """The unit's, of w [WK, BN, BK] and x [WK, BM, BK] in shared memory."""
    w = w_part.load(_fragment(BN, 16, BK, WK, WN, WM, True))
    x = x_part.load(_fragment(BM, 8, BK, WK, WM, WN, False))
    w = _relabel(w.to(gl.float32).to(x.dtype), WK, BN, BK, False)
    x = _relabel(x, WK, BM, BK, True)
    w = gl.convert_layout(w, gl.DotOperandLayout(0, mma, 2), assert_trivial=True)
    x = gl.convert_layout(x, gl.DotOperandLayout(1, mma, 2), assert_trivial=True)
    return w, x


@gluon.jit
def _rows_at(
    base,
    row_begin,
    count,
    stride,
    layout: gl.constexpr,
    WK: gl.constexpr,
    ROWS: gl.constexpr,
    BK: gl.constexpr,
    EVEN: gl.constexpr,
):
    """Return the pointers to [WK, ROWS, BK], WK times BK contiguous elements; rows are clamped to
    the last. Compile-time terms are added last, because they then fold into the copies' offsets."""
    k_part = gl.arange(0, WK, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    row = (
        row_begin + gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :, None]
    )
    k = gl.arange(0, BK, gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    if not EVEN:
        row = gl.minimum(row, count - 1)
    return (base + row * stride + k) + k_part * BK


@gluon.jit
def _store(
    out,
    sums,
    b,
    first_m,
    first_n,
    m_count,
    n_count,
    out_b,
    out_m,
    out_n,
    BM: gl.constexpr,
    BN: gl.constexpr,
    WK: gl.constexpr,
    WARPS: gl.constexpr,
):
    """out[b] of the tile: `sums` [WK, BN, BM], added up along the first."""
    flat: gl.constexpr = gl.BlockedLayout(
        [WK, 8, 1], [1, BN // 8, 256 // BN], [1, 1, WARPS], [1, 2, 0]
    )
    tile: gl.constexpr = gl.SliceLayout(0, flat)
    total = gl.sum(gl.convert_layout(sums, flat), 0)
    n = first_n + gl.arange(0, BN, gl.SliceLayout(1, tile))[:, None]
    m = first_m + gl.arange(0, BM, gl.SliceLayout(0, tile))[None, :]
    out_at = out + b * out_b + m * out_m + n * out_n
    in_bounds = (m < m_count) & (n < n_count)
    gl.store(out_at, total.to(out.dtype.element_ty), mask=in_bounds)


@gluon.jit(do_not_specialize=_PLAIN)
def staged(
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
    w_b,
    w_n,
    s_b,
    s_n,
    s_k,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    WM: gl.constexpr,
    WN: gl.constexpr,
    WK: gl.constexpr,
    STAGES: gl.constexpr,
    ALL_IN_FLIGHT: gl.constexpr,
    EVEN_M: gl.constexpr,
    EVEN_N: gl.constexpr,
):
    """[BM, BN] of one batch's result; BN and BK divide 128. K is a multiple of a step, which is
    WK * BK; ALL_IN_FLIGHT: of STAGES of them, else of more. Elements of x and w along K are side by
    side, rows begin at multiples of 16 bytes. Grid: tiles of n, tiles of m, batches."""
    WARPS: gl.constexpr = WK * WM * WN
    STEP: gl.constexpr = WK * BK
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WK, WN, WM], [1, 16, 8])
    x_copy: gl.constexpr = gl.BlockedLayout(
        [1, 1, 8], [1, 256 // BK, BK // 8], [1, WARPS, 1], [2, 1, 0]
    )
    w_copy: gl.constexpr = gl.BlockedLayout(
        [1, 1, 16], [1, 512 // BK, BK // 16], [1, WARPS, 1], [2, 1, 0]
    )
    # Rows of x or w that 8 lanes read together lie in different banks.
    x_shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8 if BK >= 64 else 1, [2, 1, 0])
    w_shared: gl.constexpr = gl.SwizzledSharedLayout(64, 1, 2 if BK == 128 else 1, [2, 1, 0])

    b = (b_first + gl.program_id(2)).to(gl.int64)
    first_n = gl.program_id(0) * BN
    first_m = gl.program_id(1) * BM
    w_at = _rows_at(w + b * w_b, first_n, n_count, w_n, w_copy, WK, BN, BK, EVEN_N)
    x_at = _rows_at(x + b * x_b, first_m, m_count, x_m, x_copy, WK, BM, BK, EVEN_M)
    s_first = gl.arange(0, WK, gl.SliceLayout(1, gl.SliceLayout(2, mma)))[:, None, None] * BK
    s_at = scale + b * s_b + first_n // 128 * s_n
    zero = gl.zeros((WK, BN, BM), gl.float32, mma)
    acc = zero
    if ALL_IN_FLIGHT:
        w_parts, x_parts, scales = (), (), ()
        for j in gl.static_range(STAGES):
            w_parts += (gl.allocate_shared_memory(w.dtype.element_ty, [WK, BN, BK], w_shared),)
            x_parts += (gl.allocate_shared_memory(x.dtype.element_ty, [WK, BM, BK], x_shared),)
            _copy(w_parts[j], w_at + j * STEP)
            _copy(x_parts[j], x_at + j * STEP)
            async_copy.commit_group()
            scales += (gl.load(s_at + (s_first + j * STEP) // 128 * s_k),)
        for j in gl.static_range(STAGES):
            async_copy.wait_group(STAGES - 1 - j)
            w_operand, x_operand = _operands(w_parts[j], x_parts[j], mma, BM, BN, BK, WK, WM, WN)
            acc += mma_v2(w_operand, x_operand, zero) * scales[j]
    else:
        w_ring = gl.allocate_shared_memory(w.dtype.element_ty, [STAGES, WK, BN, BK], w_shared)
        x_ring = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, WK, BM, BK], x_shared)
        steps = k_count // STEP
        for j in gl.static_range(STAGES):
            _copy(w_ring.index(j), w_at + j * STEP)
            _copy(x_ring.index(j), x_at + j * STEP)
            async_copy.commit_group()
        w_at += STAGES * STEP
        x_at += STAGES * STEP
        s = gl.load(s_at + s_first // 128 * s_k)
        stage = 0
        for j in range(steps):
            async_copy.wait_group(STAGES - 1)
            following = gl.minimum(j + 1, steps - 1)
            s_next = gl.load(s_at + (s_first + following * STEP) // 128 * s_k)
            w_part, x_part = w_ring.index(stage), x_ring.index(stage)
            w_operand, x_operand = _operands(w_part, x_part, mma, BM, BN, BK, WK, WM, WN)
            if j + STAGES < steps:
                _copy(w_part, w_at)
                _copy(x_part, x_at)
            async_copy.commit_group()
            w_at += STEP
            x_at += STEP
            acc += mma_v2(w_operand, x_operand, zero) * s
            s = s_next
            stage = gl.where(stage == STAGES - 1, 0, stage + 1)
    _store(out, acc, b, first_m, first_n, m_count, n_count, out_b, out_m, out_n, BM, BN, WK, WARPS)
