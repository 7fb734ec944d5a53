"""quant_fp8_blockscale: HIP against torch bit by bit, torch against what the formula promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.quantization.fp8_blockscale import (
    FNUZ,
    OCP,
    OP,
    max_of,
    quant_fp8_blockscale,
    reference,
)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def wild(m: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Blocks of every size of number, with zeros, denormals, infinities and NaN."""
    generator = torch.Generator().manual_seed(m * 1000 + k)
    size = torch.randint(-30, 15, (m, k // 128, 1), generator=generator)
    x = torch.randn(m, k // 128, 128, generator=generator) * torch.exp2(size)
    x = x.view(m, k).to(dtype)
    x[0, :128] = 0.0
    x[-1, 5], x[m // 2, k - 1] = math.nan, -math.inf
    x[m // 3, :4] = torch.tensor([-0.0, torch.finfo(dtype).tiny, 1e-7, -1e-7]).to(dtype)
    return x


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8 if tensor.itemsize == 1 else torch.int32)


OFFSETS = [(dtype, n) for dtype in DTYPES for n in (2, 8, 12, 14) if n % dtype.itemsize == 0]


@pytest.mark.thin(3)
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize(("dtype", "offset"), OFFSETS)
def test_any_alignment(dtype: torch.dtype, offset: int, rows: int, arch: str) -> None:
    """Weights of a safetensors file begin at a multiple of 8 bytes or less; checks see each access,
    the tensor's memory ends where it does."""
    m, k = 130, 256
    x = wild(m, k, dtype)
    memory = torch.empty(offset + x.nbytes, dtype=torch.uint8)
    assert memory.data_ptr() % 16 == 0
    moved = memory[offset:].view(torch.int8).view(dtype).view(m, k).copy_(x)
    OP.plans.clear()
    expected = quant_fp8_blockscale(x, (rows, 128))
    for _ in range(2):  # the second call has a plan
        with rfops.vgpu.check() as c:
            actual = quant_fp8_blockscale(moved, (rows, 128))
        assert not c.findings, "\n".join(map(str, c.findings))
        repeated = quant_fp8_blockscale(moved, (rows, 128))
        for one, other, want in zip(actual, repeated, expected, strict=True):
            assert torch.equal(bits(one), bits(want)) and torch.equal(bits(other), bits(want))
    c = OP.check((moved, rows, False, fp8_of(arch)))[0]
    assert OP.route(c).backend == "hip"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize(("m", "k"), [(1, 128), (37, 384), (200, 256)])
def test_bit_exact(
    m: int, k: int, rows: int, dtype: torch.dtype, transposed: bool, arch: str
) -> None:
    x = wild(m, k, dtype)
    with rfops.vgpu.check() as c:
        payload, scale = quant_fp8_blockscale(x, (rows, 128), transposed)
    assert not c.findings, "\n".join(map(str, c.findings))
    expected, wanted_scale = reference(x, rows, False, fp8_of(arch))
    assert payload.dtype == fp8_of(arch) and scale.shape == (-(-m // rows), k // 128)
    assert torch.equal(bits(payload), bits(expected))
    same = (scale == wanted_scale) | (scale.isnan() & wanted_scale.isnan())
    assert same.all()
    if transposed and min(scale.shape) > 1:
        assert scale.stride() == (1, scale.shape[0])


@pytest.mark.parametrize("dtype", [OCP, FNUZ])
@pytest.mark.parametrize("rows", [1, 128])
def test_the_formula(rows: int, dtype: torch.dtype) -> None:
    """The largest of a block becomes the largest FP8; nothing is off by more than half a unit."""
    x = torch.randn(130, 256, generator=torch.Generator().manual_seed(0))
    payload, scale = reference(x, rows, False, dtype)
    each = scale.repeat_interleave(rows, 0)[:130].repeat_interleave(128, 1)
    off = (payload.float() * each - x).abs()
    assert (off <= x.abs() * 2**-4 + each * 2.0**-10).all()
    tops = payload.float().abs().view(130, 2, 128).amax(2)
    if rows == 1:
        assert (tops == max_of(dtype)).all()
    assert tops.max() == max_of(dtype)


@pytest.mark.requires_gfx950
def test_zeros_and_what_is_no_number() -> None:
    x = torch.zeros(3, 256)
    x[1, 3], x[2, 200] = math.inf, math.nan
    payload, scale = quant_fp8_blockscale(x)
    assert (payload[0].float() == 0).all() and (scale[0] == 2.0**-100 / 448).all()
    assert scale.isnan().tolist() == [[False, False], [True, False], [False, True]]
    assert payload.float()[1, :128].isnan().all() and (payload.float()[1, 128:] == 0).all()


@pytest.mark.requires_gfx950
def test_the_other_fp8_is_torchs() -> None:
    x = torch.randn(5, 256)
    payload, scale = quant_fp8_blockscale(x, dtype=FNUZ)
    expected = reference(x, 1, False, FNUZ)
    assert torch.equal(bits(payload), bits(expected[0])) and torch.equal(scale, expected[1])
    c = OP.call_of("gfx950", M=4, K=256, dtype=FNUZ)
    assert OP.route(c).backend == "torch"
    assert OP.route(OP.call_of("gfx942", M=4, K=256)).backend == "hip"


@pytest.mark.requires_gfx950
def test_empty() -> None:
    payload, scale = quant_fp8_blockscale(torch.empty(0, 256))
    assert payload.shape == (0, 256) and scale.shape == (0, 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.zeros(2, 100),), "K must be a multiple of 128, got K=100; pad x with zeros"),
        ((torch.zeros(2, 2, 128),), r"x must be a \[M, K\] tensor"),
        ((torch.zeros(2, 128, dtype=torch.int32),), "x must be bfloat16 or float16 or float32"),
        ((torch.zeros(128, 2).T,), "x must be contiguous"),
        ((torch.zeros(2, 128), (1, 64)), r"block must be \(1, 128\) or \(128, 128\), got"),
        ((torch.zeros(2, 128), [1, 128]), r"block must be \(1, 128\) or \(128, 128\), got"),
        ((torch.zeros(2, 128), (1, 128), 2), "transpose_scale must be a bool, got 2"),
        ((torch.zeros(2, 128), (1, 128), False, torch.int8), "dtype must be float8_e4m3fn or"),
        ((3,), "x must be a"),
    ],
)
@pytest.mark.requires_gfx950
def test_refusals(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^quant_fp8_blockscale: {message}"):
        quant_fp8_blockscale(*args)


@pytest.mark.requires_gfx950
def test_a_linear_layer() -> None:
    """Quantised by this, multiplied by gemm_a8w8_blockscale: as close as FP8 is."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(40, 512, generator=generator), torch.randn(200, 512, generator=generator)
    xq, x_scale = quant_fp8_blockscale(x, transpose_scale=True)
    wq, w_scale = quant_fp8_blockscale(w, (128, 128))
    actual = rfops.gemm_a8w8_blockscale(xq, wq, x_scale, w_scale).float()
    exact = x @ w.T
    assert (actual - exact).norm() / exact.norm() < 0.04
