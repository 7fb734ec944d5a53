"""linear_fp8_blockscale: the HIP kernel and the ops it replaces, against float64 over the same
quantisation; tails, strides, numbers that are none; refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.problem import Problem, poison
from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale_ref, roundings
from rfops.gemm.linear_fp8 import OP, linear_fp8_blockscale
from rfops.quantization.fp8_blockscale import reference as quantise
from rfops.quantization.shuffle import shuffle_weight

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def random(m: int, n: int, k: int, arch: str, dtype: torch.dtype = BF16) -> tuple[Any, Any, Any]:
    """x, w and its scales, which differ by block."""
    generator = torch.Generator().manual_seed(m + 7 * n + 101 * k)
    x = torch.randn(m, k, generator=generator).to(dtype)
    wide = torch.randn(-(-n // 128) * 128, k, generator=generator) / math.sqrt(k)
    w, scale = quantise(wide, 128, False, fp8_of(arch))
    grow = torch.rand(scale.shape, generator=generator) + 0.5
    return x, w[:n], scale * grow


def assert_near(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
    """Within the roundings of fp32 sums and of the result."""
    payload, x_scale = quantise(x, 1, False, w.dtype)
    exact = gemm_a8w8_blockscale_ref(payload, w, x_scale, scale, torch.float64)
    values = payload.float().abs().to(w.dtype), w.float().abs().to(w.dtype)
    sums = gemm_a8w8_blockscale_ref(*values, x_scale, scale, torch.float64)
    last = torch.finfo(out.dtype).eps / 2
    bound = last * exact.abs() + roundings(x.shape[1]) * 2.0**-24 * sums + 1e-30
    excess = (out.double() - exact).abs() - bound
    worst = int(excess.argmax())
    got, want = float(out.flatten()[worst]), float(exact.flatten()[worst])
    assert float(excess.max()) <= 0, f"element {worst} is {got}, expected {want}"


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "out_dtype"),
    [
        (1, 128, 128, BF16, BF16),
        (16, 200, 384, BF16, BF16),  # a tail of rows of w, waves without a block
        (9, 131, 256, F16, F32),  # rows of out that are not aligned
        (3, 8192, 256, BF16, F16),  # two tiles of w a workgroup
        (5, 32, 2304, BF16, BF16),  # more blocks than waves have in flight
    ],
)
def test_values(
    m: int, n: int, k: int, dtype: torch.dtype, out_dtype: torch.dtype, arch: str
) -> None:
    """Of poisoned results; the same bits again, and with x that lies in wider rows."""
    x, w, scale = random(m, n, k, arch, dtype)
    out = poison(torch.empty(m, n, dtype=out_dtype))
    with rfops.vgpu.check() as checked:
        made = linear_fp8_blockscale(x, w, scale, out_dtype, out)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert made is out
    assert OP.route(OP.check((x, w, scale, out_dtype, "raw", None))[0]).backend == "hip"
    assert_near(out, x, w, scale)
    wider = torch.full((m, k + 64), math.nan, dtype=dtype)
    wider[:, 8 : 8 + k] = x
    again = linear_fp8_blockscale(wider[:, 8 : 8 + k], w, scale.T.contiguous().T, out_dtype)
    assert torch.equal(again, out)


def test_shuffled(arch: str) -> None:
    x, w, scale = random(7, 96, 512, arch)
    expected = linear_fp8_blockscale(x, w, scale)
    assert torch.equal(linear_fp8_blockscale(x, shuffle_weight(w), scale), expected)


def test_what_goes_to_two_ops(arch: str) -> None:
    """More rows, a longer K, rows of x that are not aligned; no row at all."""
    for m, k, shift in ((17, 256, 0), (2, 2688, 0), (3, 256, 1)):
        x, w, scale = random(m, 96, k, arch)
        wider = torch.zeros(m, k + 8, dtype=BF16)
        wider[:, shift : shift + k] = x
        with rfops.vgpu.profile() as profiled:
            out = linear_fp8_blockscale(wider[:, shift : shift + k], w, scale)
        assert len(profiled.launches) >= 2
        assert_near(out, x, w, scale)
    _, w, scale = random(1, 96, 256, arch)
    assert linear_fp8_blockscale(torch.zeros(0, 256, dtype=BF16), w, scale).shape == (0, 96)


def test_what_is_no_number(arch: str) -> None:
    """A NaN or an infinity makes its row NaN, and no other; zeros stay zeros."""
    x, w, scale = random(4, 64, 256, arch)
    x[0, 3], x[1, 200], x[2] = math.nan, math.inf, 0
    out = linear_fp8_blockscale(x, w, scale)
    assert out[:2].isnan().all() and (out[2] == 0).all()
    assert_near(out[3:], x[3:], w, scale)


def test_its_launch(arch: str) -> None:
    """One, without spills, scratch or bank conflicts."""
    x, w, scale = random(16, 8192, 256, arch)
    for given in ((x, w, scale), (x[:, :128], w[:40, :128], scale[:1, :1])):
        with rfops.vgpu.profile() as profiled:
            linear_fp8_blockscale(*given)
        (launch,) = profiled.launches
        assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
        assert launch.lds_conflict_cycles == 0


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("backend", ["hip", "ops", "torch"])
def test_the_bench(backend: str) -> None:
    problem = Problem(OP, OP.call_of(M=5, N=96, K=256))
    problem.checked(problem.launch_by(problem.prepare(backend)), backend)


X, W, SCALE = random(2, 64, 256, "gfx950")


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": X.float()}, "x must be bfloat16 or float16"),
        ({"w": W.float()}, "w must be "),
        ({"w": W[:, :128]}, "w must be "),
        ({"w_scale": SCALE[:, :1]}, "w_scale must be "),
        ({"w_scale": SCALE.half()}, "w_scale must be "),
        ({"dtype": torch.int8}, "dtype must be "),
        ({"x": X[:, :120], "w": W[:, :120]}, "K must be a positive multiple of 128"),
        ({"out": torch.zeros(2, 63, dtype=BF16)}, "out must be "),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^linear_fp8_blockscale: {message}"):
        linear_fp8_blockscale(**({"x": X, "w": W, "w_scale": SCALE} | given))
