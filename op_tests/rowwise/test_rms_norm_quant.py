"""rms_norm_quant: each quantisation has the bits of its quantiser on rms_norm's result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.problem import Problem
from rfops.quantization.mxfp4 import quant_mxfp4
from rfops.quantization.mxfp8 import quant_mxfp8
from rfops.quantization.rows import FORMATS, quantise_rows
from rfops.rowwise.rms_norm import rms_norm
from rfops.rowwise.rms_norm_quant import OP, rms_norm_quant

BF16 = torch.bfloat16


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def rows(m: int, k: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    """Blocks of all sizes, one of zeros."""
    generator = torch.Generator().manual_seed(seed + m + k)
    size = torch.randint(-12, 8, (m, k // 32, 1), generator=generator)
    x = (torch.randn(m, k // 32, 32, generator=generator) * torch.exp2(size)).to(dtype).view(m, k)
    x[0, :128] = 0.0
    return x


def static(quant: str) -> torch.Tensor | None:
    return torch.tensor([0.0625 / 3]) if quant == "fp8_tensor" else None


def assert_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    one, other = (t.contiguous().view(torch.uint8) for t in (actual, expected))
    off = (one != other).nonzero()
    assert not len(off), f"{len(off)} bytes differ, the first at {off[0].tolist()}"


def by_hip(args: tuple[Any, ...], **poisoned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The call into poisoned results, with checks."""
    with rfops.vgpu.check() as c:
        made = rms_norm_quant(*args, **poisoned)
    assert not c.findings, "\n".join(map(str, c.findings))
    return made


@pytest.mark.parametrize("quant", FORMATS)
@pytest.mark.parametrize(("m", "k"), [(9, 128), (3, 2944), (2, 7168)])
def test_bits_of_the_quantiser(m: int, k: int, quant: str, arch: str) -> None:
    """With residual where K is 7168."""
    x, weight, scale = rows(m, k), rows(1, k)[0], static(quant)
    residual = rows(m, k, seed=1) if k == 7168 else None
    other = residual.clone() if residual is not None else None
    y = rms_norm(x, weight, other)
    dtype = fp8_of(arch) if quant.startswith("fp8") else FORMATS[quant].dtypes[0]
    expected = quantise_rows(y, quant, scale, False, dtype)
    results = {"payload": torch.empty_like(expected[0]), "scale": torch.empty_like(expected[1])}
    for one in results.values():
        one.view(torch.uint8).fill_(85)
    payload, made_scale = by_hip((x, weight, residual, 1e-6, quant, scale), **results)
    assert payload is results["payload"]
    assert_bits(payload, expected[0])
    if scale is None:
        assert made_scale is results["scale"]
        assert_bits(made_scale, expected[1])
    else:
        assert made_scale is scale
    if residual is not None:
        assert torch.equal(residual, other)
    values = (scale, 1e-6, quant, False, dtype)
    assert OP.route(OP.check((x, weight, residual, *values, None, None))[0]).backend == "hip"


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_public_quantisers(dtype: torch.dtype) -> None:
    """The same of the ops themselves, from other dtypes of x."""
    x, weight = rows(5, 256, dtype), rows(1, 256, dtype)[0]
    y = rms_norm(x, weight)
    for quant, op in (
        ("fp8_group", rfops.quant_fp8_blockscale),
        ("mxfp4", quant_mxfp4),
        ("mxfp8", quant_mxfp8),
    ):
        for one, other in zip(rms_norm_quant(x, weight, quant=quant), op(y), strict=True):
            assert_bits(one, other)


@pytest.mark.requires_gfx950
def test_transposed_scale_and_strided_rows() -> None:
    memory, weight = rows(6, 512), rows(1, 256)[0]
    x = memory[:, 256:]
    payload, scale = rms_norm_quant(x, weight, transpose_scale=True)
    expected, plain = rms_norm_quant(x.contiguous(), weight)
    assert_bits(payload, expected)
    assert scale.stride() == (1, 6) and torch.equal(scale, plain)


@pytest.mark.requires_gfx950
def test_a_linear_layer() -> None:
    """What gemm_a8w8_blockscale gives for it is as close as FP8 is."""
    x, weight = rows(40, 512), torch.ones(512, dtype=BF16)
    w = torch.randn(256, 512, generator=torch.Generator().manual_seed(0))
    payload, scale = rms_norm_quant(x, weight, transpose_scale=True)
    wq, w_scale = rfops.quant_fp8_blockscale(w, (128, 128))
    actual = rfops.gemm_a8w8_blockscale(payload, wq, scale, w_scale).float()
    exact = rms_norm(x, weight).float() @ w.T
    assert (actual - exact).norm() / exact.norm() < 0.04


@pytest.mark.requires_gfx950
def test_what_is_no_number() -> None:
    x, weight = torch.ones(3, 256), torch.ones(256)
    x[1, 3] = float("nan")
    for quant in ("fp8_group", "fp8_token", "mxfp8"):
        payload, scale = rms_norm_quant(x, weight, quant=quant)
        assert payload[1].float().isnan().all() and payload[[0, 2]].float().isfinite().all()
        assert scale.float().isnan().any(1).tolist() == [False, True, False]
    assert rms_norm_quant(x, weight, quant="mxfp4")[1].float()[1].isnan().all()
    tensor = rms_norm_quant(x * 1e4, weight * 1e4, quant="fp8_tensor", static_scale=torch.ones(1))
    assert (tensor[0][[0, 2]].float() == 448).all() and tensor[0][1].float().isnan().all()


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("quant", FORMATS)
def test_the_bench(quant: str) -> None:
    problem = Problem(OP, OP.call_of(M=3, K=256, quant=quant))
    for backend in ("hip", "torch"):
        problem.checked(problem.launch_by(problem.prepare(backend)), backend)


X, W, ONE = torch.zeros(2, 128), torch.ones(128), torch.ones(1)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X[:, :96], W[:96]), "K must be a multiple of 128 for quant 'fp8_group', got K=96"),
        ((X[:, :80], W[:80], None, 1e-6, "mxfp4"), "K must be a multiple of 32"),
        ((X, W, None, 1e-6, "int8"), "quant must be "),
        ((X, W, None, 1e-6, "fp8_tensor"), "static_scale must be a tensor for quant 'fp8_tensor'"),
        ((X, W, None, 1e-6, "fp8_token", ONE), "static_scale must be a tensor for quant"),
        ((X, W, None, 1e-6, "fp8_token", None, True), "transpose_scale must be False but for fp8"),
        ((X, W, None, 1e-6, "mxfp8", None, False, torch.uint8), "dtype must be float8_e4m3fn for"),
        ((X, W, X.half()), "residual must be float32, as x is"),
        ((X[0], W), r"x must be a \[M, K\]"),
    ],
)
def test_refusals(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^rms_norm_quant: {message}"):
        rms_norm_quant(*args)


@pytest.mark.requires_gfx950
def test_fake() -> None:
    args = (X, W, None, None, 1e-6, "mxfp4", False, torch.uint8)
    torch.library.opcheck(torch.ops.rfops.rms_norm_quant.default, args)
