"""Triton kernels of all kinds on the virtual GPU against torch.

Each bound follows from the roundings on the way: HALF_ULP is that of one of them. Functions of
fp32 have the accuracy that OpenCL asks of them, which AMD's library keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton

import rfops.vgpu
from rfops.dispatch.compare import HALF_ULP, assert_within
from support import vgpu_triton_kernels as kernels
from support.triton_builds import FNUZ_CASTS, VERSION, compiled_by_triton
from support.vgpu.checks import nothing_found

U = HALF_ULP[torch.float32]


@pytest.fixture(params=rfops.vgpu.ARCHS, autouse=True)
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    rfops.vgpu.activate_triton(request.param)
    yield request.param
    rfops.vgpu.deactivate_triton()


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*size: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=rng(seed), dtype=torch.float64).to(dtype)


def poisoned(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.full(size, float("nan"), dtype=dtype)
    return torch.full(size, 113, dtype=dtype)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


# ---------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64])
def test_add(dtype: torch.dtype) -> None:
    n, size = 1000, 1100
    x = (normal(size) * 100).to(dtype)
    y = (normal(size, seed=2) * 100).to(dtype)
    out = poisoned(size, dtype=dtype)
    remaining = out[n:].clone()
    kernels.add[(cdiv(n, 256),)](x, y, out, n, BLOCK=256)
    assert torch.equal(out[:n], (x + y)[:n])
    assert_within(out[n:], remaining, 0)  # the mask holds


@pytest.mark.thin(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "warps"), [(1, 1), (127, 1), (1000, 4), (2049, 8)])
def test_softmax(dtype: torch.dtype, n: int, warps: int) -> None:
    x = (normal(5, n) * 4).to(dtype)
    out = poisoned(5, n, dtype=dtype)
    kernels.softmax[(5,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=warps)
    exact = torch.softmax(x.double(), 1)
    # exp of an argument d rounds d * log2(e): a relative error of d * 2^-24; the sum adds n times.
    depth = 2 * float(x.double().max() - x.double().min()) + n + 8
    assert_within(out, exact, (depth * U + HALF_ULP[dtype]) * exact + 2.0**-149)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_layer_norm(dtype: torch.dtype) -> None:
    rows, n, eps = 4, 1155, 1e-5
    x = (normal(rows, n) * 3 + 2).to(dtype)
    weight, bias = normal(n, seed=2).to(dtype), normal(n, seed=3).to(dtype)
    out = poisoned(rows, n, dtype=dtype)
    mean, rstd = poisoned(rows), poisoned(rows)
    kernels.layer_norm[(rows,)](x, weight, bias, out, mean, rstd, n, eps, BLOCK=512, num_warps=4)
    exact = x.double()
    exact_mean = exact.mean(1)
    exact_rstd = 1 / (exact.var(1, correction=0) + eps).sqrt()
    assert_within(mean, exact_mean, n * U * exact.abs().mean(1))
    # The mean's error shifts each difference; squares and their sum round n + 3 times.
    shift = n * U * exact.abs().mean(1)
    relative = (n + 8) * U + 2 * shift * exact_rstd
    assert_within(rstd, exact_rstd, relative * exact_rstd)
    centred = (exact - exact_mean[:, None]) * exact_rstd[:, None]
    total = centred.abs() * weight.double().abs()
    want = centred * weight.double() + bias.double()
    bound = total * (relative[:, None] + 4 * U) + U * want.abs()
    bound += (shift * exact_rstd)[:, None] * weight.double().abs() + HALF_ULP[dtype] * want.abs()
    assert_within(out, want, bound + 2.0**-24)


@pytest.mark.thin(3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("rows", "columns", "warps"), [(16, 64, 1), (4, 512, 4), (128, 32, 8), (1, 1024, 2)]
)
def test_reductions(rows: int, columns: int, warps: int, axis: int) -> None:
    x = normal(rows, columns)
    kept = columns if axis == 0 else rows
    sums, maxima, minima = (poisoned(kept) for _ in range(3))
    where_max, where_min, xors = (poisoned(kept, dtype=torch.int32) for _ in range(3))
    kernels.reductions[(1,)](
        x,
        sums,
        maxima,
        minima,
        where_max,
        where_min,
        xors,
        R=rows,
        C=columns,
        AXIS=axis,
        num_warps=warps,
    )
    n = x.shape[axis]
    assert_within(sums, x.double().sum(axis), n * U * x.double().abs().sum(axis))
    assert torch.equal(maxima, x.amax(axis))
    assert torch.equal(minima, x.amin(axis))
    assert torch.equal(where_max, x.argmax(axis).int())
    assert torch.equal(where_min, x.argmin(axis).int())
    want = np.bitwise_xor.reduce(x.numpy().view(np.int32), axis=axis)
    assert np.array_equal(xors.numpy(), want)


def test_argmax_of_ties_is_the_first() -> None:
    x = torch.zeros(32, 128)
    x[:, 77] = x[:, 21] = x[:, 119] = 1
    outs = [poisoned(32, dtype=d) for d in [torch.float32] * 3 + [torch.int32] * 3]
    kernels.reductions[(1,)](x, *outs, R=32, C=128, AXIS=1, num_warps=4)
    assert outs[3].tolist() == [21] * 32
    assert outs[4].tolist() == [0] * 32


@pytest.mark.parametrize("warps", [1, 4])
def test_reduce_of_tuples(warps: int) -> None:
    n = 1024
    x = normal(3, n) * 2 + 1
    mean, variance = poisoned(3), poisoned(3)
    kernels.reduce_tuple[(3,)](x, mean, variance, N=n, num_warps=warps)
    exact = x.double()
    depth = 8 * 10 * U  # at most eight roundings at each of the tree's levels
    assert_within(mean, exact.mean(1), depth * exact.abs().mean(1))
    assert_within(variance, exact.var(1, correction=0), depth * exact.square().mean(1))


# ---------------------------------------------------------------------------------- attention


@pytest.mark.thin(5)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("causal", "bm", "bn", "warps", "stages"),
    [(True, 64, 32, 4, 2), (True, 32, 32, 2, 1), (False, 128, 64, 4, 2), (False, 16, 16, 1, 3)],
)
def test_attention(
    dtype: torch.dtype, causal: bool, bm: int, bn: int, warps: int, stages: int
) -> None:
    heads, n, d = 2, 128, 64
    q, k, v = (normal(heads, n, d, seed=s).to(dtype) for s in (1, 2, 3))
    out = poisoned(heads, n, d, dtype=dtype)
    scale = 1 / math.sqrt(d)
    kernels.attention[(n // bm, heads)](
        q, k, v, out, n, scale, D=d, BM=bm, BN=bn, CAUSAL=causal, num_warps=warps, num_stages=stages
    )
    q64, k64, v64 = q.double(), k.double(), v.double()
    score = q64 @ k64.mT * scale
    if causal:
        score = score.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    p = torch.softmax(score, -1)
    # Relative error of p: that of its argument (sums of d products, a few roundings of the score),
    # of its rounding to the operand's type, of sums; once for p, once for the normalisation.
    argument = ((d + 4) * U * (q64.abs() @ k64.abs().mT) * scale).amax(-1, keepdim=True)
    relative = 2 * (2 * argument + 4 * score.abs().masked_fill(score.isinf(), 0).amax() * U)
    relative = relative + HALF_ULP[dtype] + (2 * n + 16) * U
    want = p @ v64
    bound = relative * (p @ v64.abs()) + HALF_ULP[dtype] * want.abs()
    assert_within(out, want, bound + torch.finfo(dtype).smallest_normal * HALF_ULP[dtype])


# ---------------------------------------------------------------------------------- scans, sorting


@pytest.mark.thin(5)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "axis", "warps"), [(4, 256, 1, 4), (64, 16, 0, 2), (1, 1024, 1, 8)]
)
def test_scans(rows: int, columns: int, axis: int, warps: int, reverse: bool) -> None:
    x = normal(rows, columns)
    a = torch.rand(rows, columns, generator=rng(5)) * 0.2 + 0.9
    outs = [poisoned(rows, columns) for _ in range(3)]
    kernels.scans[(1,)](x, a, *outs, R=rows, C=columns, AXIS=axis, REVERSE=reverse, num_warps=warps)
    x, a = x.double(), a.double()
    if reverse:
        x, a = x.flip(axis), a.flip(axis)
        outs = [out.flip(axis) for out in outs]
    n = x.shape[axis]
    assert_within(outs[0], x.cumsum(axis), n * U * x.abs().cumsum(axis))
    assert_within(outs[1], a.cumprod(axis), n * U * a.cumprod(axis))
    state, total = torch.zeros_like(x), torch.zeros_like(x)
    h = g = torch.zeros_like(x.select(axis, 0))
    for i in range(n):
        h = h * a.select(axis, i) + x.select(axis, i)
        g = g * a.select(axis, i) + x.select(axis, i).abs()
        state.select(axis, i).copy_(h)
        total.select(axis, i).copy_(g)
    assert_within(outs[2], state, 3 * n * U * total)


@pytest.mark.thin(5)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "warps"),
    [(torch.float32, 2, 128, 4), (torch.int32, 8, 32, 1), (torch.float16, 1, 256, 2)],
)
def test_sort(dtype: torch.dtype, rows: int, columns: int, warps: int, descending: bool) -> None:
    x = (normal(rows, columns) * 50).to(dtype)
    out = poisoned(rows, columns, dtype=dtype)
    kernels.sort_rows[(1,)](x, out, R=rows, C=columns, DESCENDING=descending, num_warps=warps)
    assert torch.equal(out, x.sort(1, descending=descending).values)


def test_topk() -> None:
    x = normal(4, 128)
    out = poisoned(4, 8)
    kernels.topk_rows[(1,)](x, out, R=4, C=128, K=8, num_warps=4)
    assert torch.equal(out, x.topk(8).values)


@pytest.mark.parametrize("warps", [1, 8])
def test_histogram(warps: int) -> None:
    x = torch.randint(0, 128, (2048,), generator=rng(1), dtype=torch.int32)
    out = poisoned(128, dtype=torch.int32)
    kernels.histogram[(1,)](x, out, N=2048, BINS=128, num_warps=warps)
    assert torch.equal(out, torch.bincount(x, minlength=128).int())


# ---------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int64])
def test_gather_scatter(dtype: torch.dtype) -> None:
    n, m, columns = 100, 57, 32
    table = (normal(m, columns) * 40 + 128).to(dtype)
    index = torch.randint(-20, m + 20, (n,), generator=rng(2), dtype=torch.int32)
    where = torch.randperm(n, generator=rng(3), dtype=torch.int32)
    out = poisoned(n, columns, dtype=dtype)
    want = out.clone()
    valid = (index >= 0) & (index < m)
    want[where[valid].long()] = table[index[valid].long()]
    kernels.gather_scatter[(cdiv(n, 64),)](table, index, where, out, n, m, C=columns, BLOCK=64)
    assert_within(out, want, 0)


@pytest.mark.thin(3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("warps", [1, 4])
def test_gather_in_tile(axis: int, warps: int) -> None:
    x = normal(32, 64)
    index = torch.randint(0, x.shape[axis], (32, 64), generator=rng(2), dtype=torch.int32)
    out = poisoned(32, 64)
    kernels.gather_in_tile[(1,)](x, index, out, R=32, C=64, AXIS=axis, num_warps=warps)
    assert torch.equal(out, x.gather(axis, index.long()))


def test_offsets_beyond_32_bits() -> None:
    """Rows that are 2^32 + 12 bytes apart; the memory between them is never touched."""
    n, far = 3, (1 << 32) + 12
    x = torch.empty(far * (n - 1) + 1, dtype=torch.uint8)
    want = torch.tensor([17, 203, 5], dtype=torch.uint8)
    for i in range(n):
        x[i * far] = want[i]
    out = torch.zeros(n, dtype=torch.uint8)
    kernels.copy_far[(1,)](x, out, far, n, BLOCK=64)
    assert torch.equal(out, want)


@pytest.mark.skipif(VERSION >= (3, 9), reason="no block pointers since Triton 3.9")
def test_block_pointers() -> None:
    m, n = 100, 75
    x, out = normal(m, n), poisoned(n, m)
    kernels.transpose_blocks[(cdiv(m, 32), cdiv(n, 16))](x, out, m, n, BM=32, BN=16)
    assert torch.equal(out, x.t())


def test_tensor_descriptors() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    m, n = 70, 64
    x, out = normal(m, n), poisoned(m, n)
    kernels.descriptor_scale[(cdiv(m, 32), cdiv(n, 32))](x, out, m, n, BM=32, BN=32)
    assert torch.equal(out, 2 * x)
    blocks = [TensorDescriptor.from_tensor(tensor, [32, 32]) for tensor in (x, out)]
    kernels.descriptor_add[(cdiv(m, 32), cdiv(n, 32))](*blocks, BM=32, BN=32)
    assert torch.equal(out, 2 * x + x)


# ---------------------------------------------------------------------------------- atomics


def test_atomic_add_returns_each_count_once() -> None:
    n, bins = 3000, 37
    x = torch.randint(0, bins, (n,), generator=rng(1), dtype=torch.int32)
    counts, old = torch.zeros(bins, dtype=torch.int32), poisoned(n, dtype=torch.int32)
    kernels.histogram_atomic[(cdiv(n, 256),)](x, counts, old, n, BLOCK=256)
    assert torch.equal(counts, torch.bincount(x, minlength=bins).int())
    for b in range(bins):
        assert old[x == b].sort().values.tolist() == list(range(int(counts[b])))


@pytest.mark.thin(5)
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_atomic_add_of_floats(dtype: torch.dtype, returned: bool) -> None:
    n, cells = 500, 16
    x = normal(n, dtype=dtype)
    index = torch.randint(0, cells, (n,), generator=rng(2), dtype=torch.int32)
    out = torch.zeros(cells, dtype=dtype)
    old = poisoned(n, dtype=dtype) if returned else None
    kernels.atomic_each[(cdiv(n, 128),)](x, index, out, old, n, OP="add", BLOCK=128)
    exact, total, count = (torch.zeros(cells, dtype=torch.float64) for _ in range(3))
    exact.index_add_(0, index.long(), x.double())
    total.index_add_(0, index.long(), x.double().abs())
    count.index_add_(0, index.long(), torch.ones(n, dtype=torch.float64))
    assert_within(out, exact, count * HALF_ULP[dtype] * total)
    if old is not None:
        for cell in range(cells):  # the last addition's old value plus its own is the result
            final = old[index == cell] + x[index == cell]
            assert (final == out[cell]).any()


@pytest.mark.thin(7)
@pytest.mark.parametrize("op", ["max", "min", "and", "or", "xor"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32], ids=str)
def test_atomic_integers(op: str, dtype: torch.dtype) -> None:
    n, cells = 300, 8
    numpy_type = np.dtype(str(dtype).removeprefix("torch."))
    draw = np.random.default_rng(1)
    limits = np.iinfo(numpy_type)
    values = draw.integers(limits.min, limits.max, n, dtype=numpy_type, endpoint=True)
    start = draw.integers(limits.min, limits.max, cells, dtype=numpy_type, endpoint=True)
    positions = draw.integers(0, cells, n, dtype=np.int32)
    function = {
        "max": np.maximum,
        "min": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[op]
    want = start.copy()
    function.at(want, positions, values)
    x, index, out = (torch.from_numpy(array.copy()) for array in (values, positions, start))
    # Where nobody wants the old values, Triton first combines a wave's lanes that have one address,
    # and compares signed numbers there as unsigned ones (3.6 to 3.9): not the hardware's doing.
    old = torch.zeros_like(x) if op in ("max", "min") else None
    kernels.atomic_each[(cdiv(n, 64),)](x, index, out, old, n, OP=op, BLOCK=64)
    assert np.array_equal(out.numpy(), want)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_atomic_extremes_of_floats(op: str, dtype: torch.dtype) -> None:
    n, cells = 300, 8
    x = normal(n, dtype=dtype)
    index = torch.randint(0, cells, (n,), generator=rng(2), dtype=torch.int32)
    out, old = torch.zeros(cells, dtype=dtype), poisoned(n, dtype=dtype)
    kernels.atomic_each[(cdiv(n, 64),)](x, index, out, old, n, OP=op, BLOCK=64)
    want = torch.zeros(cells, dtype=dtype).scatter_reduce(0, index.long(), x, f"a{op}")
    assert torch.equal(out, want)


def test_atomic_exchange() -> None:
    """Every value but the last of a cell comes back as somebody's old value."""
    n = 200
    x = torch.arange(1, n + 1, dtype=torch.int32)
    index, out = torch.zeros(n, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    old = poisoned(n, dtype=torch.int32)
    with compiled_by_triton():
        kernels.atomic_each[(cdiv(n, 64),)](x, index, out, old, n, OP="xchg", BLOCK=64)
    assert sorted([*old.tolist(), int(out)]) == list(range(n + 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_compare_and_swap(dtype: torch.dtype) -> None:
    n = 256
    cells = torch.randint(0, 3, (n,), generator=rng(1)).to(dtype)
    expected = torch.randint(0, 3, (n,), generator=rng(2)).to(dtype)
    new = torch.arange(100, 100 + n).to(dtype)
    old, previous = poisoned(n, dtype=dtype), cells.clone()
    kernels.compare_and_swap[(cdiv(n, 64),)](cells, expected, new, old, n, BLOCK=64)
    assert torch.equal(old, previous)
    assert torch.equal(cells, torch.where(previous == expected, new, previous))


@pytest.mark.parametrize("programs", [1, 7])
def test_persistent_programs_with_a_lock(programs: int) -> None:
    n, block = 2000, 64
    x = torch.randint(-50, 50, (n,), generator=rng(1)).float()  # sums are exact in any order
    total, lock = torch.zeros(block), torch.zeros(1, dtype=torch.int32)
    kernels.locked_sum[(programs,)](x, total, lock, n, BLOCK=block, num_warps=2)
    padded = torch.nn.functional.pad(x, (0, cdiv(n, block) * block - n))
    assert torch.equal(total, padded.view(-1, block).sum(0))
    assert int(lock) == 0


def test_workgroups_wait_for_later_ones() -> None:
    n = 16
    order, turn = poisoned(n, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    kernels.take_turns[(n,)](order, turn, n, num_warps=1)
    assert order.tolist() == list(range(n - 1, -1, -1))


# ---------------------------------------------------------------------------------- arithmetic

# Largest error in ULP of the result (OpenCL's tables; tl.exp and tl.log may be the fast forms,
# whose error grows with the argument: see below), and the range of the argument. Fusion of
# multiplications and additions is off, since Triton fuses inside AMD's library as well, whose
# compensated sums it then breaks: pow loses five bits.
FUNCTIONS = {
    "exp": (3, -87, 88, torch.exp),
    "exp2": (3, -126, 127, torch.exp2),
    "log": (3, 1e-30, 1e30, torch.log),
    "log2": (3, 1e-30, 1e30, torch.log2),
    "sin": (4, -1e4, 1e4, torch.sin),
    "cos": (4, -1e4, 1e4, torch.cos),
    "sqrt": (1, 0, 1e30, torch.sqrt),
    "rsqrt": (2, 1e-30, 1e30, torch.rsqrt),
    "erf": (16, -6, 6, torch.special.erf),
    "tanh": (5, -12, 12, torch.tanh),
    "pow3": (16, -1e9, 1e9, lambda x: x**3),
    "sigmoid": (6, -80, 80, torch.sigmoid),
}


def spread_over(low: float, high: float, n: int) -> torch.Tensor:
    """Half of them even over the range, half over its magnitudes."""
    even = torch.linspace(low, high, n // 2, dtype=torch.float64)
    least = math.log10(max(low, 1e-30)) if low > 0 else -6
    sizes = 10 ** torch.linspace(least, math.log10(high), n - n // 2, dtype=torch.float64)
    if low < 0:
        sizes[::2] *= -1
    return torch.cat([even, sizes])


@pytest.mark.thin(5)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    ulps, low, high, function = FUNCTIONS[name]
    n = 2000
    x = spread_over(low, high, n).float()
    out = poisoned(n)
    kernels.elementwise[(cdiv(n, 256),)](x, out, n, OP=name, BLOCK=256, enable_fp_fusion=False)
    exact = function(x.double())
    bound = ulps * 2 * U * exact.abs() + 2.0**-126
    if name in ("exp", "sigmoid"):  # exp2(x * log2(e)) in fp32
        bound = bound + 2 * x.double().abs() * U * exact.abs()
    if name in ("log", "log2"):  # log2 of the hardware has an absolute error near 1
        bound = bound + 2.0**-22
    assert_within(out, exact, bound)


@pytest.mark.parametrize("name", ["sqrt_rn", "floor", "ceil"])
def test_exact_functions(name: str) -> None:
    special = torch.tensor([0.0, 1e-45, 1e-40, math.inf, math.nan, 2.0**24, 0.49999997])
    exponents = torch.randint(-40, 38, (1000,), generator=rng(2))
    x = torch.cat([normal(1000).abs() * 10.0**exponents, special])
    if name == "sqrt_rn" and VERSION < (3, 7):
        x = x[~(x.abs() < 2.0**-96)]  # 3.6 starts from v_rsq_f32, which takes denormals for 0
    out = poisoned(len(x))
    kernels.elementwise[(cdiv(len(x), 256),)](x, out, len(x), OP=name, BLOCK=256)
    function = {"sqrt_rn": torch.sqrt, "floor": torch.floor, "ceil": torch.ceil}[name]
    # f64 and then f32 rounds a root right; torch's own f32 root on a CPU does not.
    assert_within(out, function(x.double()).float(), 0)


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", ["exp", "log", "sin", "sqrt", "erf"])
def test_functions_of_f64(name: str) -> None:
    ulps, low, high, function = FUNCTIONS[name]
    n = 512
    x = spread_over(max(low, -30), min(high, 30), n)
    out = poisoned(n, dtype=torch.float64)
    kernels.elementwise[(cdiv(n, 256),)](x, out, n, OP=name, BLOCK=256, enable_fp_fusion=False)
    want = function(x)  # torch's own is within an ULP
    assert_within(out, want, (ulps + 1) * 2 * HALF_ULP[torch.float64] * want.abs() + 1e-300)


def test_divisions() -> None:
    special = torch.tensor([0.0, -0.0, 1.0, -3.0, 1e-45, -1e-40, 1e-38, 3e38, math.inf, math.nan])
    exponents = torch.randint(-30, 30, (1000,), generator=rng(3))
    x = torch.cat([normal(1000) * 10.0**exponents, special.repeat_interleave(10)])
    exponents = torch.randint(-8, 8, (1000,), generator=rng(4))
    y = torch.cat([normal(1000, seed=2) * 10.0**exponents, special.repeat(10)])
    n = len(x)
    quotient, exact, fused = (poisoned(n) for _ in range(3))
    kernels.divisions[(cdiv(n, 256),)](x, y, quotient, exact, fused, n, BLOCK=256)
    assert_within(exact, x / y, 0)
    assert_within(quotient[:1000], (x / y)[:1000], 2.5 * 2 * U * (x / y)[:1000].abs() + 2.0**-126)
    want = (x.double() * y.double() + x.double()).float()  # rounds twice: an ULP at the worst
    assert_within(fused, want, 2 * U * want.abs().nan_to_num(posinf=0) + 2.0**-149)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.int8], ids=str)
def test_integer_arithmetic(dtype: torch.dtype) -> None:
    n = 512
    limits = torch.iinfo(dtype)
    x = torch.randint(limits.min, limits.max, (n,), generator=rng(1), dtype=dtype)
    y = torch.randint(-99, 100, (n,), generator=rng(2), dtype=dtype)
    y[y == 0] = 7
    x[:4] = torch.tensor([limits.min, limits.max, 0, -1])
    y[:4] = torch.tensor([1, -1, -5, 3])
    outs = [poisoned(n, dtype=dtype) for _ in range(4)]
    kernels.integer_arithmetic[(2,)](x, y, *outs, n, BLOCK=256)
    quotient, remainder, product, shifted = outs
    assert torch.equal(quotient, torch.div(x, y, rounding_mode="trunc"))
    assert torch.equal(remainder, torch.fmod(x, y))
    assert torch.equal(product, x * y)
    assert torch.equal(shifted, x >> (y & 7))


OCP = [torch.float8_e4m3fn, torch.float8_e5m2]
FNUZ = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def skip_fnuz(arch: str, fp8: torch.dtype) -> None:
    if arch == "gfx950" and fp8 in FNUZ and not FNUZ_CASTS:
        pytest.skip(
            "Triton before 3.9 converts FNUZ fp8 wrongly; .ci/run has the newest, and "
            "the instructions are in vgpu/isa/test_vgpu_convert.py"
        )


@pytest.mark.thin(5)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fp8", OCP + FNUZ, ids=str)
def test_cast_from_fp8(arch: str, fp8: torch.dtype, wide: torch.dtype) -> None:
    """Every code, in the flavour of the hardware and in the other, which Triton takes apart."""
    x = torch.arange(256, dtype=torch.uint8).view(fp8)
    skip_fnuz(arch, fp8)
    shifts = ("gfx942", "gfx950") if VERSION < (3, 7) else ("gfx942",)
    if arch in shifts and wide == torch.bfloat16 and fp8 in OCP:
        x = x[x.float().isfinite()]  # Triton's own conversion by shifts, which knows numbers only
    out = poisoned(len(x), dtype=wide)
    kernels.cast[(1,)](x, out, len(x), BLOCK=256)
    assert_within(out, x.to(torch.float32), 0)


@pytest.mark.thin(5)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fp8", OCP + FNUZ, ids=str)
def test_cast_to_fp8(arch: str, fp8: torch.dtype, wide: torch.dtype) -> None:
    """Nearest, ties to even, over the range of the type: torch's own conversion."""
    skip_fnuz(arch, fp8)
    largest = torch.finfo(fp8).max
    codes = torch.arange(256, dtype=torch.uint8).view(fp8).float()
    grid = codes[codes.isfinite()].sort().values
    ties = (grid[1:] + grid[:-1]) / 2  # where they are numbers of the wide type: exact ties
    x = torch.cat([grid, ties, normal(2000) * largest / 4, normal(1000) * torch.finfo(fp8).tiny])
    x = x.to(wide)
    x = x[x.float().abs() <= largest]
    if wide == torch.float16 and fp8 == torch.float8_e5m2fnuz:
        # Triton drops the f16's lowest subnormal bits here (see its conversion), hardware or not.
        x = x[x.float().abs() >= 2.0**-14]
    out = torch.zeros(len(x), dtype=fp8)
    kernels.cast[(cdiv(len(x), 256),)](x, out, len(x), BLOCK=256)
    assert_within(out.float() + 0.0, x.float().to(fp8).float() + 0.0, 0)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float64, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int32, torch.float32),
        (torch.int64, torch.float32),
        (torch.int64, torch.float64),
        (torch.int8, torch.float16),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
def test_cast(source: torch.dtype, target: torch.dtype) -> None:
    if source.is_floating_point:
        special = torch.tensor(
            [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 65519, 65520, 1e39]
        )
        exponents = torch.randint(-40, 38, (2000,), generator=rng(2))
        x = torch.cat([normal(2000) * 10.0**exponents, special]).to(source)
    else:
        limits = torch.iinfo(source)
        x = torch.randint(limits.min, limits.max, (2000,), generator=rng(1), dtype=source)
        x[:4] = torch.tensor([limits.min, limits.max, 0, -1])
    out = poisoned(len(x), dtype=target)
    kernels.cast[(cdiv(len(x), 256),)](x, out, len(x), BLOCK=256)
    assert_within(out, x.to(target), 0)


@pytest.mark.parametrize("target", [torch.int32, torch.int64, torch.int8, torch.uint8], ids=str)
def test_cast_to_integers(target: torch.dtype) -> None:
    limits = torch.iinfo(target)
    x = (normal(500) * min(limits.max / 4, 1e9)).clamp(limits.min, limits.max // 2)
    out = poisoned(len(x), dtype=target)
    kernels.cast[(2,)](x, out, len(x), BLOCK=256)
    assert torch.equal(out, x.to(target))


# ---------------------------------------------------------------------------------- random numbers


def philox(seed: int, offset: np.ndarray) -> np.ndarray:
    """Philox-4x32-10 of the counter (offset, 0, 0, 0): its four words."""
    counter = [offset.astype(np.uint64), *(np.zeros_like(offset, np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
        counter = [
            high_b ^ counter[1] ^ np.uint64(key[0]),
            b & mask,
            high_a ^ counter[3] ^ np.uint64(key[1]),
            a & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter).astype(np.uint32)


def unit(bits: np.ndarray) -> np.ndarray:
    """[0, 1): the word without its sign, folded."""
    signed = bits.astype(np.uint32).view(np.int32).astype(np.int64)
    return np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10


@pytest.mark.parametrize("seed", [5, 0x123456789ABCDEF])
def test_random_numbers(seed: int) -> None:
    n = 600
    bits, uniform, gauss = poisoned(n, dtype=torch.int32), poisoned(n), poisoned(n)
    kernels.random_numbers[(cdiv(n, 256),)](bits, uniform, gauss, seed, n, BLOCK=256)
    words = philox(seed, np.arange(n))
    assert np.array_equal(bits.numpy(), words[0].view(np.int32))
    first, second = unit(words[0]), unit(words[1])
    assert_within(uniform, torch.from_numpy(first), 2 * U)
    radius = np.sqrt(-2 * np.log(np.maximum(first, 1e-7)))
    want = torch.from_numpy(radius * np.cos(6.283185307179586 * second))
    # An absolute error of the angle (up to 2 pi) and of log(u), which blows up near u = 1.
    inner = torch.from_numpy(2 * U * 8 / np.maximum(radius, 1e-3))
    assert_within(gauss, want, torch.from_numpy(radius) * 16 * U + inner)


# ---------------------------------------------------------------------------------- host calls


def test_device_print(capfd: pytest.CaptureFixture[str]) -> None:
    """A line for each element and operand, from several waves and workgroups."""
    n, block = 384, 128
    x = torch.randint(-(2**31), 2**31, (n,), generator=rng(1)).to(torch.int32)
    y = normal(n) * 1000
    kernels.print_values[(n // block,)](x, y, BLOCK=block, num_warps=2)
    lines = [line for line in capfd.readouterr().out.splitlines() if "values" in line]
    want = []
    for i in range(n):
        head = f"pid ({i // block}, 0, 0) idx ({i % block:3}) values: "
        want += [f"{head}(operand 0) {int(x[i])}", f"{head}(operand 1) {float(y[i]):f}"]
    assert sorted(lines) == sorted(want)


def test_device_print_in_hex(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.tensor([0, 1, 255, -1, 2**62, -(2**63), 16, 17], dtype=torch.int64)
    kernels.print_hex[(1,)](x, BLOCK=8, num_warps=1)
    lines = [line for line in capfd.readouterr().out.splitlines() if "hex" in line]
    values = [int(line.rsplit("0x", 1)[1], 16) for line in lines]
    assert set(values) == {int(value) % 2**64 for value in x}  # lanes repeat a tile of 8


def test_device_assert(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(64, dtype=torch.int32)
    kernels.assert_less[(1,)](x, 64, BLOCK=64, num_warps=1, debug=True)
    assert torch.equal(x, torch.arange(1, 65, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="HIP") as raised:
        kernels.assert_less[(1,)](x, 64, BLOCK=64, num_warps=1, debug=True)
    assert "failed assertion" in "".join(raised.value.__notes__)
    printed = capfd.readouterr()
    assert "device assertion failed: 'not less'" in printed.out + printed.err
    assert torch.equal(x, torch.arange(1, 65, dtype=torch.int32))  # nothing was stored


# ---------------------------------------------------------------------------------- errors


class Wild:
    """A tensor to Triton, at an address that has no memory."""

    dtype = torch.float32

    def data_ptr(self) -> int:
        return 0x1000_0000_0000


def test_wild_pointer_is_an_error() -> None:
    """The launch fails, says where, and the next one works."""
    with pytest.raises(RuntimeError, match="HIP") as raised:
        kernels.store_far_away[(1,)](Wild(), 64)
    note = "".join(raised.value.__notes__)
    assert "store_far_away" in note
    assert "store_dword" in note
    assert "0x10000000" in note
    x, out = normal(64), poisoned(64)
    kernels.add[(1,)](x, x, out, 64, BLOCK=64)
    assert torch.equal(out, 2 * x)


# ---------------------------------------------------------------------------------- the checks


CHECKED = {
    "softmax": lambda: test_softmax(torch.float32, 1000, 4),
    "layer_norm": lambda: test_layer_norm(torch.float16),
    "reduce_of_tuples": lambda: test_reduce_of_tuples(4),
    "histogram": lambda: test_histogram(8),
    "topk": lambda: test_topk(),
    "gather_in_tile": lambda: test_gather_in_tile(1, 4),
    "lock": lambda: test_persistent_programs_with_a_lock(7),
    "compare_and_swap": lambda: test_compare_and_swap(torch.int32),
}


@pytest.mark.parametrize("name", CHECKED)
def test_the_checks_find_nothing(name: str) -> None:
    with nothing_found():
        CHECKED[name]()
