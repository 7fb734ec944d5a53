"""quant_fp8: HIP against torch bit by bit, torch against what the formula promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.problem import Problem
from rfops.quantization.fp8 import OP, quant_fp8, quant_fp8_ref
from rfops.quantization.fp8_blockscale import max_of
from support.quant_problems import wild

WAYS = {"token": ("token", None), "tensor": ("tensor", None), "static": ("tensor", 0.37)}


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8 if tensor.itemsize == 1 else torch.int32)


def finite(m: int, k: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Rows of all sizes, one of zeros."""
    generator = torch.Generator().manual_seed(m + k)
    size = torch.randint(-12, 8, (m, 1), generator=generator)
    x = (torch.randn(m, k, generator=generator) * torch.exp2(size)).to(dtype)
    x[0] = 0.0
    return x


def check(x: torch.Tensor, way: str, arch: str) -> None:
    per, number = WAYS[way]
    static = None if number is None else torch.tensor([number])
    expected, wanted = quant_fp8_ref(x, static, per, fp8_of(arch))
    results = {"payload": torch.empty_like(expected), "scale": torch.empty_like(wanted)}
    for one in results.values():
        one.view(torch.uint8).fill_(85)
    with rfops.vgpu.check() as c:
        payload, scale = quant_fp8(x, per, static, **results)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert payload is results["payload"]
    off = (bits(payload) != bits(expected)).nonzero()
    assert not len(off), f"{len(off)} differ, the first at {off[0].tolist()}"
    if static is None:
        assert (scale == wanted).logical_or(scale.isnan() & wanted.isnan()).all()
    again = quant_fp8(x, per, static)
    assert torch.equal(bits(again[0]), bits(payload))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("m", "k"), [(1, 8), (37, 128), (5, 7168)])
def test_bit_exact(m: int, k: int, way: str, arch: str) -> None:
    check(finite(m, k), way, arch)
    c, _ = OP.check((finite(m, k), None, "token", fp8_of(arch), None, None))
    assert OP.route(c).backend == "hip"


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_no_number(dtype: torch.dtype, way: str) -> None:
    check(wild((9, 128), dtype), way, "gfx950")


@pytest.mark.requires_gfx950
def test_more_groups_than_partials() -> None:
    """One workgroup looks at several groups of rows, at the last one too."""
    x = torch.zeros(16 * 700 - 3, 128, dtype=torch.bfloat16)
    for row in (0, 16 * 600, len(x) - 1):
        x.zero_()[row, 77] = -3.0
        payload, scale = quant_fp8(x, "tensor")
        assert (
            scale.item() == torch.tensor(3.0).div(448).item() and payload[row, 77].float() == -448
        )


@pytest.mark.requires_gfx950
def test_strides_and_shapes() -> None:
    """Rows of a slice and of three dimensions by HIP; what is not aligned by torch."""
    memory = finite(6, 520)
    for x, backend in (
        (memory[:, 8:136], "hip"),
        (memory[:, 3:131], "torch"),
        (memory[:, :100], "torch"),
    ):
        for way in WAYS:
            check(x, way, "gfx950")
        c, _ = OP.check((x, None, "token", fp8_of("gfx950"), None, None))
        assert OP.route(c).backend == backend
    payload, scale = quant_fp8(memory.view(2, 3, 520))
    assert payload.shape == (2, 3, 520) and scale.shape == (6, 1)
    assert quant_fp8(torch.empty(0, 64))[0].shape == (0, 64)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("way", WAYS)
def test_the_formula(way: str) -> None:
    """Nothing is off by more than half a unit; the largest becomes the largest FP8."""
    per, number = WAYS[way]
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)) * 100
    static = None if number is None else torch.tensor([number])
    payload, scale = quant_fp8_ref(x, static, per, torch.float8_e4m3fn)
    scale = scale if static is None else static.view(1, 1)
    most = max_of(torch.float8_e4m3fn) * scale
    clamped = torch.minimum(torch.maximum(x, -most), most)
    off = (payload.float() * scale - clamped).abs()
    assert (off <= clamped.abs() * 2**-4 * 1.00001 + scale * 2.0**-10).all()
    if static is None:
        assert payload.float().abs().max() == 448


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("per", ["token", "tensor"])
def test_the_bench(per: str) -> None:
    problem = Problem(OP, OP.call_of(M=3, K=256, per=per))
    for backend in ("hip", "torch"):
        problem.checked(problem.launch_by(problem.prepare(backend)), backend)


X, ONE = torch.zeros(2, 64), torch.ones(1)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X.int(),), "x must be bfloat16 or float16 or float32"),
        ((X, "row"), "per must be "),
        ((X, "token", ONE), "static_scale must be None for per='token', got a tensor"),
        ((X, "tensor", torch.ones(2)), "static_scale must be "),
        ((X, "tensor", None, torch.int8), "dtype must be float8_e4m3fn or"),
        ((X, "tensor", None, None, X), "payload must be float8"),
        ((torch.zeros(2, 0),), "K must be positive"),
    ],
)
def test_refusals(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^quant_fp8: {message}"):
        quant_fp8(*args)
