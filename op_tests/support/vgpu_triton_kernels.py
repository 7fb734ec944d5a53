"""Triton kernels for the tests of the virtual GPU. A file of their own, as Triton reads the source.

They are written as a user of Triton writes them: nothing in here knows of the virtual GPU.
"""
# ruff: noqa: ANN001, ANN201 (Triton's arguments are typed by the call)

import triton
import triton.language as tl
from triton.language.extra import libdevice

# ---------------------------------------------------------------------------------- matrix products


@triton.jit
def matmul(
    a, b, c, m, n, k, a_m, a_k, b_k, b_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """c[m, n] = a[m, k] @ b[k, n], any strides; c is contiguous in the accumulator's type."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_at = a + rows[:, None] * a_m + inner[None, :] * a_k
    b_at = b + inner[:, None] * b_k + columns[None, :] * b_n
    acc = tl.zeros((BM, BN), ACC)
    for start in range(0, k, BK):
        a_in = rows[:, None] < m
        b_in = columns[None, :] < n
        if not EVEN_K:
            a_in = a_in & (inner[None, :] < k - start)
            b_in = b_in & (inner[:, None] < k - start)
        x = tl.load(a_at, mask=a_in, other=0.0)
        y = tl.load(b_at, mask=b_in, other=0.0)
        acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACC)
        a_at += BK * a_k
        b_at += BK * b_k
    in_bounds = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=in_bounds)


@triton.jit
def matmul_batched(a, b, c, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """c[B, M, N] = a[B, M, K] @ b[B, K, N] as one three-dimensional tl.dot."""
    i, m = tl.arange(0, B)[:, None, None], tl.arange(0, M)[None, :, None]
    n, k = tl.arange(0, N)[None, None, :], tl.arange(0, K)
    x = tl.load(a + (i * M + m) * K + k[None, None, :])
    y = tl.load(b + (i * K + k[None, :, None]) * N + n)
    tl.store(c + (i * M + m) * N + n, tl.dot(x, y))


@triton.jit
def matmul_scaled(
    a, a_scale, b, b_scale, c, m, n, k, a_m, a_k, b_k, b_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, A_K_PACK: tl.constexpr, B_K_PACK: tl.constexpr,
    FAST_MATH: tl.constexpr,
):  # fmt: skip
    """c = (a * a_scale) @ (b * b_scale): a scale for each 32 along k, [m, k/32] and [n, k/32].
    A scale of None is 1. Two e2m1 share a byte, along k, or along m and n where not K_PACK.
    m, n and k are multiples of the tile."""
    A_M_BYTES: tl.constexpr = BM // 2 if (A_FORMAT == "e2m1" and not A_K_PACK) else BM
    A_K_BYTES: tl.constexpr = BK // 2 if (A_FORMAT == "e2m1" and A_K_PACK) else BK
    B_N_BYTES: tl.constexpr = BN // 2 if (B_FORMAT == "e2m1" and not B_K_PACK) else BN
    B_K_BYTES: tl.constexpr = BK // 2 if (B_FORMAT == "e2m1" and B_K_PACK) else BK
    row, column = tl.program_id(0), tl.program_id(1)
    a_rows = row * A_M_BYTES + tl.arange(0, A_M_BYTES)
    b_columns = column * B_N_BYTES + tl.arange(0, B_N_BYTES)
    a_at = a + a_rows[:, None] * a_m + tl.arange(0, A_K_BYTES)[None, :] * a_k
    b_at = b + tl.arange(0, B_K_BYTES)[:, None] * b_k + b_columns[None, :] * b_n
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    groups = tl.arange(0, BK // 32)
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        x = tl.load(a_at)
        y = tl.load(b_at)
        group = step * (BK // 32) + groups
        x_scale = None
        y_scale = None
        if a_scale is not None:
            x_scale = tl.load(a_scale + rows[:, None] * (k // 32) + group[None, :])
        if b_scale is not None:
            y_scale = tl.load(b_scale + columns[:, None] * (k // 32) + group[None, :])
        acc = tl.dot_scaled(
            x,
            x_scale,
            A_FORMAT,
            y,
            y_scale,
            B_FORMAT,
            acc,
            fast_math=FAST_MATH,
            lhs_k_pack=A_K_PACK,
            rhs_k_pack=B_K_PACK,
        )
        a_at += A_K_BYTES * a_k
        b_at += B_K_BYTES * b_k
    tl.store(c + rows[:, None] * n + columns[None, :], acc)


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    n,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """out = softmax(q k^T * scale) v, all [heads, n, D], with a running maximum; n % BN == 0."""
    start = tl.program_id(0) * BM
    base = tl.program_id(1) * n * D
    rows = start + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + base + rows[:, None] * D + d[None, :])
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = n
    if CAUSAL:
        end = start + BM
    for index in range(0, end, BN):
        columns = index + tl.arange(0, BN)
        key = tl.load(k + base + columns[None, :] * D + d[:, None])
        score = tl.dot(query, key) * (scale * 1.4426950408889634)
        if CAUSAL:
            score = tl.where(rows[:, None] >= columns[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        value = tl.load(v + base + columns[:, None] * D + d[None, :])
        acc = tl.dot(p.to(value.dtype), value, acc * shrink[:, None])
        top = new_top
    acc = acc / total[:, None]
    tl.store(out + base + rows[:, None] * D + d[None, :], acc.to(out.dtype.element_ty))


# ---------------------------------------------------------------------------------- rows


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_bounds = offset < n
    tl.store(
        out + offset,
        tl.load(x + offset, mask=in_bounds) + tl.load(y + offset, mask=in_bounds),
        mask=in_bounds,
    )


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offset = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + offset, mask=offset < n, other=float("-inf")).to(tl.float32)
    e = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * n + offset, (e / tl.sum(e, 0)).to(out.dtype.element_ty), mask=offset < n)


@triton.jit
def layer_norm(x, weight, bias, out, mean_out, rstd_out, n, eps, BLOCK: tl.constexpr):
    """Two passes over a row that is longer than the block."""
    row = tl.program_id(0)
    offset = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + row * n + start + offset, mask=start + offset < n, other=0.0).to(
            tl.float32
        )
    mean = tl.sum(total, 0) / n
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        value = tl.load(x + row * n + start + offset, mask=start + offset < n, other=0.0).to(
            tl.float32
        )
        value = tl.where(start + offset < n, value - mean, 0.0)
        square += value * value
    rstd = 1 / tl.sqrt(tl.sum(square, 0) / n + eps)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
    for start in range(0, n, BLOCK):
        in_bounds = start + offset < n
        w = tl.load(weight + start + offset, mask=in_bounds).to(tl.float32)
        b = tl.load(bias + start + offset, mask=in_bounds).to(tl.float32)
        value = tl.load(x + row * n + start + offset, mask=in_bounds, other=0.0).to(tl.float32)
        result = (value - mean) * rstd * w + b
        tl.store(out + row * n + start + offset, result.to(out.dtype.element_ty), mask=in_bounds)


@triton.jit
def reductions(
    x,
    sums,
    maxima,
    minima,
    where_max,
    where_min,
    xors,
    R: tl.constexpr,
    C: tl.constexpr,
    AXIS: tl.constexpr,
):
    """Along one axis of a tile: across registers, lanes and waves, as the layout has it."""
    value = tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    NUM_KEPT: tl.constexpr = C if AXIS == 0 else R
    offset = tl.arange(0, NUM_KEPT)
    tl.store(sums + offset, tl.sum(value, AXIS))
    tl.store(maxima + offset, tl.max(value, AXIS))
    tl.store(minima + offset, tl.min(value, AXIS))
    tl.store(where_max + offset, tl.argmax(value, AXIS))
    tl.store(where_min + offset, tl.argmin(value, AXIS))
    tl.store(xors + offset, tl.xor_sum(value.to(tl.int32, bitcast=True), AXIS))


@triton.jit
def mean_variance(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Welford's combination of two sets."""
    count = count_a + count_b
    delta = mean_b - mean_a
    fraction = tl.where(count == 0.0, 0.0, count_b / count)
    return mean_a + delta * fraction, m2_a + m2_b + delta * delta * count_a * fraction, count


@triton.jit
def reduce_tuple(x, mean_out, variance_out, N: tl.constexpr):
    value = tl.load(x + tl.program_id(0) * N + tl.arange(0, N))
    mean, m2, count = tl.reduce(
        (value, tl.zeros_like(value), tl.full((N,), 1.0, tl.float32)), 0, mean_variance
    )
    tl.store(mean_out + tl.program_id(0), mean)
    tl.store(variance_out + tl.program_id(0), m2 / count)


# ---------------------------------------------------------------------------------- scans, sorting


@triton.jit
def linear_step(a_left, b_left, a_right, b_right):
    """x -> a x + b, first left then right."""
    return a_left * a_right, b_left * a_right + b_right


@triton.jit
def scans(
    x,
    coefficient,
    sums,
    products,
    states,
    R: tl.constexpr,
    C: tl.constexpr,
    AXIS: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Running sum, running product and the recurrence h = a h + x along one axis of a tile."""
    offset = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    value = tl.load(x + offset)
    a = tl.load(coefficient + offset)
    tl.store(sums + offset, tl.cumsum(value, AXIS, reverse=REVERSE))
    tl.store(products + offset, tl.cumprod(a, AXIS, reverse=REVERSE))
    _, state = tl.associative_scan((a, value), AXIS, linear_step, reverse=REVERSE)
    tl.store(states + offset, state)


@triton.jit
def sort_rows(x, out, R: tl.constexpr, C: tl.constexpr, DESCENDING: tl.constexpr):
    offset = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + offset, tl.sort(tl.load(x + offset), descending=DESCENDING))


@triton.jit
def topk_rows(x, out, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    row = tl.arange(0, R)[:, None]
    value = tl.load(x + row * C + tl.arange(0, C)[None, :])
    tl.store(out + row * K + tl.arange(0, K)[None, :], tl.topk(value, K))


@triton.jit
def histogram(x, out, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


# ---------------------------------------------------------------------------------- memory


@triton.jit
def gather_scatter(table, index, targets, out, n, m, C: tl.constexpr, BLOCK: tl.constexpr):
    """out[where[i]] = table[index[i]] row by row where 0 <= index[i] < m; other rows are left."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, C)
    source = tl.load(index + i, mask=i < n, other=-1)
    target = tl.load(targets + i, mask=i < n, other=0)
    valid = ((source >= 0) & (source < m))[:, None]
    value = tl.load(table + source[:, None] * C + column[None, :], mask=valid, other=0.0)
    tl.store(out + target[:, None] * C + column[None, :], value, mask=valid)


@triton.jit
def gather_in_tile(x, index, out, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr):
    offset = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + offset, tl.gather(tl.load(x + offset), tl.load(index + offset), AXIS))


@triton.jit
def copy_far(x, out, far, n, BLOCK: tl.constexpr):
    """out[i] = x[i * far]: the element offset exceeds 32 bits."""
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    tl.store(out + i, tl.load(x + i * far, mask=i < n), mask=i < n)


@triton.jit
def copy_strided(out, x, layout, COLUMNS: tl.constexpr):
    """out[m, n], contiguous, from x of any strides; a program copies a row."""
    m, n = layout[0]
    x_m, x_n = layout[1]
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    in_bounds = (column < n) & (row < m)
    values = tl.load(x + row * x_m + column * x_n, mask=in_bounds)
    tl.store(out + row * n + column, values, mask=in_bounds)


@triton.jit
def transpose_blocks(x, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """out = x^T through block pointers, with both boundaries checked."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    source = tl.make_block_ptr(x, (m, n), (n, 1), (row, column), (BM, BN), (1, 0))
    target = tl.make_block_ptr(out, (n, m), (m, 1), (column, row), (BN, BM), (1, 0))
    tile = tl.load(source, boundary_check=(0, 1), padding_option="zero")
    tl.store(target, tl.trans(tile), boundary_check=(0, 1))


@triton.jit
def descriptor_scale(x, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """out = 2 x through tensor descriptors made in the kernel."""
    source = tl.make_tensor_descriptor(x, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def descriptor_add(x, out, BM: tl.constexpr, BN: tl.constexpr):
    """out += x through tensor descriptors made by the host."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.store([row, column], out.load([row, column]) + x.load([row, column]))


# ---------------------------------------------------------------------------------- atomics


@triton.jit
def histogram_atomic(x, counts, old, n, BLOCK: tl.constexpr):
    """counts[x[i]] += 1; old gets what the addition returned."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0)
    tl.store(old + i, tl.atomic_add(counts + value, 1, mask=i < n), mask=i < n)


@triton.jit
def atomic_each(x, index, out, old, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    """out[index[i]] = OP(out[index[i]], x[i]) atomically."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_bounds = i < n
    value = tl.load(x + i, mask=in_bounds)
    offset = out + tl.load(index + i, mask=in_bounds, other=0)
    if OP == "add":
        previous = tl.atomic_add(offset, value, mask=in_bounds)
    elif OP == "max":
        previous = tl.atomic_max(offset, value, mask=in_bounds)
    elif OP == "min":
        previous = tl.atomic_min(offset, value, mask=in_bounds)
    elif OP == "and":
        previous = tl.atomic_and(offset, value, mask=in_bounds)
    elif OP == "or":
        previous = tl.atomic_or(offset, value, mask=in_bounds)
    elif OP == "xor":
        previous = tl.atomic_xor(offset, value, mask=in_bounds)
    else:
        previous = tl.atomic_xchg(offset, value, mask=in_bounds)
    if old is not None:
        tl.store(old + i, previous, mask=in_bounds)


@triton.jit
def compare_and_swap(cells, expected, new, old, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    previous = tl.atomic_cas(cells + i, tl.load(expected + i), tl.load(new + i))
    tl.store(old + i, previous)


@triton.jit
def locked_sum(x, total, lock, n, BLOCK: tl.constexpr):
    """Persistent: each program adds its tiles into `total`, a block that a spin lock guards."""
    offset = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        value = tl.load(x + tile * BLOCK + offset, mask=tile * BLOCK + offset < n, other=0.0)
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(total + offset, tl.load(total + offset) + value)
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0)


@triton.jit
def take_turns(order, turn_counter, n):
    """Each program waits for its turn, the highest number first: later workgroups must run while
    earlier ones spin."""
    mine = n - 1 - tl.program_id(0)
    while tl.atomic_add(turn_counter, 0) != mine:
        pass
    tl.store(order + mine, tl.program_id(0))
    tl.atomic_add(turn_counter, 1)


# ---------------------------------------------------------------------------------- arithmetic


@triton.jit
def elementwise(x, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    if OP == "exp":
        result = tl.exp(value)
    elif OP == "exp2":
        result = tl.exp2(value)
    elif OP == "log":
        result = tl.log(value)
    elif OP == "log2":
        result = tl.log2(value)
    elif OP == "sin":
        result = tl.sin(value)
    elif OP == "cos":
        result = tl.cos(value)
    elif OP == "sqrt":
        result = tl.sqrt(value)
    elif OP == "sqrt_rn":
        result = tl.sqrt_rn(value)
    elif OP == "rsqrt":
        result = tl.rsqrt(value)
    elif OP == "erf":
        result = tl.erf(value)
    elif OP == "floor":
        result = tl.floor(value)
    elif OP == "ceil":
        result = tl.ceil(value)
    elif OP == "tanh":
        result = libdevice.tanh(value)
    elif OP == "pow3":
        result = libdevice.pow(value, tl.full((BLOCK,), 3.0, value.dtype))
    else:
        tl.static_assert(OP == "sigmoid")
        result = tl.sigmoid(value)
    tl.store(out + i, result, mask=i < n)


@triton.jit
def divisions(x, y, quotient, exact, fused, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i, mask=i < n, other=1), tl.load(y + i, mask=i < n, other=1)
    tl.store(quotient + i, a / b, mask=i < n)
    tl.store(exact + i, tl.div_rn(a, b), mask=i < n)
    tl.store(fused + i, tl.fma(a, b, a), mask=i < n)


@triton.jit
def integer_arithmetic(x, y, quotient, remainder, product, shifted, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i, mask=i < n, other=1), tl.load(y + i, mask=i < n, other=1)
    tl.store(quotient + i, a // b, mask=i < n)
    tl.store(remainder + i, a % b, mask=i < n)
    tl.store(product + i, a * b, mask=i < n)
    tl.store(shifted + i, a >> (b & 7), mask=i < n)


@triton.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def random_numbers(bits, uniform, normal, seed, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(bits + i, tl.randint(seed, i), mask=i < n)
    tl.store(uniform + i, tl.rand(seed, i), mask=i < n)
    tl.store(normal + i, tl.randn(seed, i), mask=i < n)


@triton.jit
def store_far_away(out, offset):
    """Writes where there is no memory."""
    tl.store(out + offset + tl.arange(0, 64), 1.0)


# ---------------------------------------------------------------------------------- host calls


@triton.jit
def print_values(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_print("values", tl.load(x + i), tl.load(y + i))


@triton.jit
def print_hex(x, BLOCK: tl.constexpr):
    tl.device_print("hex", tl.load(x + tl.arange(0, BLOCK)), hex=True)


@triton.jit
def assert_less(x, limit, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i)
    tl.device_assert(value < limit, "not less")
    tl.store(x + i, value + 1)


# ---------------------------------------------------------------------------------- autotune


@triton.jit
def sum_rows(x, out, rows, ROWS: tl.constexpr, PASSES: tl.constexpr, C: tl.constexpr):
    """out[r] = PASSES times the sum of x[r, :], ROWS rows a program, one after the other."""
    columns = tl.arange(0, C)
    row_begin = tl.program_id(0) * ROWS
    for row in range(row_begin, min(row_begin + ROWS, rows)):
        total = 0.0
        for _ in range(PASSES):
            total += tl.sum(tl.load(x + row * C + columns))
            tl.store(out + row, total)  # which may change x, for all the compiler knows


ADD_CONFIGS = [triton.Config({"BLOCK": block}, num_warps=1) for block in (64, 256, 1024)]
add_tuned = triton.autotune(configs=ADD_CONFIGS, key=["n"])(add)
