"""act_mul and act_mul_quant: HIP against float64, quantised results against the quantisers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.compare import HALF_ULP, assert_within
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.problem import Problem, poison
from rfops.quantization.rows import FORMATS, quantise_rows
from rfops.rowwise import act_mul_quant as quant_module
from rfops.rowwise.act_mul import (
    ACTIVATIONS,
    OP,
    act_mul,
    act_mul_kernel,
    act_mul_ref,
    gelu_mul,
    silu_mul,
    swiglu_mul,
)
from rfops.rowwise.act_mul_quant import act_mul_quant

BF16 = torch.bfloat16


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def rows(m: int, n: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """From far below 0 to far above, so that both tails are seen."""
    generator = torch.Generator().manual_seed(m + n)
    size = torch.randint(-6, 4, (m, n), generator=generator)
    return (torch.randn(m, n, generator=generator) * torch.exp2(size)).to(dtype)


def check(actual: torch.Tensor, x: torch.Tensor, activation: str, *values: Any) -> None:
    """In float64. The activation's relative error is 2^-19 + |gate| 2^-23 or less, of |gate| below
    128, and products round three times; subnormal results of 16 bits have absolute steps."""
    exact = act_mul_ref(x.double(), activation, *values)
    largest = x.double().abs().max()
    relative = HALF_ULP[x.dtype] + 2.0**-19 + (largest * 4 + 4) * 2.0**-23
    smallest = torch.finfo(x.dtype).smallest_normal * HALF_ULP[x.dtype] * 2
    flushed = (largest**2 + 1) * 2.0**-126  # a sigmoid below fp32's normal numbers may be 0
    assert_within(actual.double(), exact, exact.abs() * relative + smallest + flushed)


@pytest.mark.thin(2)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values(activation: str, interleaved: bool, arch: str) -> None:
    x = rows(3, 2 * 1032)
    out = poison(torch.empty(3, 1032, dtype=BF16))
    with rfops.vgpu.check() as c:
        made = act_mul(x, activation, interleaved, out=out)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert made is out
    check(out, x, activation, interleaved)
    assert torch.equal(act_mul(x, activation, interleaved), out)
    values = (activation, interleaved, 1.702, 7.0, 1.0, None)
    assert OP.route(OP.check((x, *values))[0]).backend == "hip"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("m", "k"), [(37, 8), (1, 1), (5, 37), (2, 4608)])
def test_shapes(m: int, k: int, dtype: torch.dtype, arch: str) -> None:
    x = rows(m, 2 * k, dtype)
    check(silu_mul(x), x, "silu")
    if k < 64:
        check(swiglu_mul(x), x, "swiglu", True)


@pytest.mark.requires_gfx950
def test_every_bf16_gate() -> None:
    """All values, times 1: the smallest, both infinities and NaN among them."""
    gate = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(BF16).view(16, 4096)
    x = torch.cat((gate, torch.ones_like(gate)), -1)
    wide = gate.double()
    for activation in ("silu", "gelu", "gelu_tanh"):
        actual, exact = act_mul(x, activation).double(), act_mul_ref(x.double(), activation)
        # Far below 0 the sigmoid is below fp32's normal numbers and may be 0, as the result then.
        bound = exact.abs() * (HALF_ULP[BF16] + 2.0**-17) + wide.abs() * 2.0**-125 + 2.0**-126
        fits = exact.abs() < torch.finfo(BF16).max
        fits &= wide.abs() < 1e12  # whose cube is in fp32
        assert_within(actual[fits], exact[fits], bound[fits])
        assert actual[wide.isnan()].isnan().all()
        assert (actual[wide == float("inf")] == float("inf")).all()


@pytest.mark.requires_gfx950
def test_public_functions_and_the_clamp() -> None:
    x = rows(4, 64)
    check(gelu_mul(x), x, "gelu")
    check(gelu_mul(x, "tanh"), x, "gelu_tanh")
    check(swiglu_mul(x, 1.0, 0.5, 0.0, False), x, "swiglu", False, 1.0, 0.5, 0.0)
    bounds = torch.tensor([[100.0, -100.0, -100.0, 100.0]])
    y = swiglu_mul(bounds)
    assert abs(y[0, 0].item() - 7 * (1 - 7)) < 0.01 and abs(y[0, 1].item()) < 1e-6
    nan = swiglu_mul(torch.tensor([[float("nan"), 1.0, 1.0, float("nan")]]))
    assert nan.isnan().all()


@pytest.mark.requires_gfx950
def test_strided_and_leading() -> None:
    memory = rows(6, 1040)
    for part in (memory[:, 8:520], memory[:, 3:99], memory[:, :512:2]):
        check(silu_mul(part), part, "silu")
    x = rows(6, 64).view(2, 3, 64)
    check(silu_mul(x), x, "silu")
    assert silu_mul(x).shape == (2, 3, 32) and silu_mul(torch.empty(0, 64)).shape == (0, 32)


@pytest.mark.thin(2)
@pytest.mark.parametrize("quant", FORMATS)
@pytest.mark.parametrize(("activation", "k"), [("silu", 2048), ("swiglu", 1408)])
def test_bits_of_the_quantiser(activation: str, k: int, quant: str, arch: str) -> None:
    x, interleaved = rows(3, 2 * k), activation == "swiglu"
    scale = torch.tensor([0.03]) if quant == "fp8_tensor" else None
    y = act_mul(x, activation, interleaved)
    dtype = fp8_of(arch) if quant.startswith("fp8") else FORMATS[quant].dtypes[0]
    expected = quantise_rows(y, quant, scale, False, dtype)
    results = [torch.empty_like(one) for one in expected]
    for one in results:
        one.view(torch.uint8).fill_(85)
    with rfops.vgpu.check() as c:
        made = act_mul_quant(
            x, activation, quant, scale, interleaved, payload=results[0], scale=results[1]
        )
    assert not c.findings, "\n".join(map(str, c.findings))
    for one, other in zip(made if scale is None else made[:1], expected, strict=False):
        assert one.dtype == other.dtype
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    values = (scale, activation, interleaved, 1.702, 7.0, 1.0, quant, False, dtype, None, None)
    assert quant_module.OP.route(quant_module.OP.check((x, *values))[0]).backend == "hip"


@pytest.mark.requires_gfx950
def test_the_bench_and_fakes() -> None:
    for backend in ("hip", "torch"):
        for activation in ACTIVATIONS:
            problem = Problem(OP, OP.call_of(M=3, N=528, activation=activation))
            problem.checked(problem.launch_by(problem.prepare(backend)), backend)
        problem = Problem(quant_module.OP, quant_module.OP.call_of(M=3, N=512))
        problem.checked(problem.launch_by(problem.prepare(backend)), backend)
    values = ("silu", False, 1.0, 1.0, 1.0)
    torch.library.opcheck(torch.ops.rfops.act_mul.default, (rows(2, 64), *values))
    compiled = torch.compile(silu_mul, backend="eager", fullgraph=True)
    assert torch.equal(compiled(rows(2, 64)), silu_mul(rows(2, 64)))


X = torch.zeros(2, 64)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X.int(), "silu"), "x must be bfloat16 or float16 or float32"),
        ((torch.zeros(2, 7), "silu"), "N must be a .*multiple of 2, got N=7"),
        ((X, "relu"), "activation must be silu"),
        ((X, "silu", 2), "interleaved must be a bool"),
        ((X, "silu", False, None), "alpha must be a float"),
        ((X, "silu", False, 1.0, 1.0, 1.0, torch.zeros(2, 64)), "out must be "),
        ((X, "silu", False, 1.0, 1.0, 1.0, X[:, :32]), "out must "),
    ],
)
def test_refusals(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^act_mul: {message}"):
        act_mul(*args)


@pytest.mark.requires_gfx950
def test_refusals_of_quantisation() -> None:
    with pytest.raises(ValueError, match=r"^act_mul_quant: K must be a multiple of 128 for quant"):
        act_mul_quant(X, "silu")
    for n, quant in ((3, "fp8_token"), (257, "fp8_group"), (65, "mxfp4")):
        with pytest.raises(
            ValueError, match=rf"^act_mul_quant: N must be a multiple of 2, got N={n}"
        ):
            rfops.act_mul_quant(torch.zeros(2, n), "silu", quant)
    with pytest.raises(ValueError, match=r"^act_mul: approximate must be none or tanh"):
        gelu_mul(X, "sigmoid")


@pytest.mark.requires_gfx950
def test_registers() -> None:
    for n in (512, 36864):
        c = OP.call_of(M=4, N=n)
        defines = OP.kernels["hip"].defines(c, None)
        assert defines is not None
        bound = act_mul_kernel.bind(c.device, defines, "gfx950")
        assert [bound.resources[name] for name in ("scratch", "vgpr_spills")] == [0, 0]
