"""Quantisation to MX formats and the MXFP4 GEMMs by Triton on a real GPU: bits, full size, beyond
2 GiB, in a graph."""

from __future__ import annotations

import math

import pytest
import torch

import rfops
from rfops.dispatch.op import Op
from rfops.quantization import mxfp4, mxfp8
from support.mxfp4_problems import OPS, assert_correct, call, random_problem, run
from support.quant_problems import assert_same, by, every_16_bits, ties_of_e4m3, wild

if not torch.cuda.is_available():
    pytest.skip(
        "no GPU; the virtual one: op_tests/quantization, gemm/test_mxfp4_triton.py",
        allow_module_level=True,
    )

QUANT = {
    op.name: (op, modes) for op, modes in ((mxfp4.OP, mxfp4.ROUNDING), (mxfp8.OP, mxfp8.ROUNDING))
}
NAMES = sorted(OPS)
CPU = torch.device("cpu")


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda")


def values_of(op: Op, mode: str | None = None) -> tuple[object, ...]:
    mode = mode or ("even" if op is mxfp4.OP else "up")
    return (mode, torch.uint8) if op is mxfp4.OP else (mode,)


def assert_bits(
    op: Op, x: torch.Tensor, mode: str | None = None, actual: tuple[torch.Tensor, ...] | None = None
) -> None:
    """Triton on the GPU, of the layout that x has, against torch on the CPU."""
    values = values_of(op, mode)
    actual = actual or by(op, "triton", x, *values)
    plain = x.cpu().contiguous()
    assert_same([t.cpu() for t in actual], by(op, "torch", plain, *values), plain)


@pytest.mark.parametrize("name", sorted(QUANT))
def test_bits_of_quantisation(name: str, device: torch.device) -> None:
    op, modes = QUANT[name]
    for mode in modes:
        for dtype in (torch.bfloat16, torch.float16):
            assert_bits(op, every_16_bits(dtype).to(device), mode)
        assert_bits(op, ties_of_e4m3().to(device), mode)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for shape in ((32,), (37, 96), (3, 5, 128)):
                assert_bits(op, wild(shape, dtype).to(device), mode)
    assert_bits(op, wild((96, 64), torch.bfloat16).to(device).T.contiguous().T, "even")
    assert_bits(op, wild((20, 256), torch.bfloat16).to(device)[:, 4:68], "even")


@pytest.mark.parametrize("name", sorted(QUANT))
def test_quantisation_beyond_4_gib(name: str, device: torch.device) -> None:
    """Row by row as of the rows alone; one launch of the public op's route."""
    rows, k = 550_007, 4096
    x = torch.randn(rows, k, dtype=torch.bfloat16, device=device)
    assert x.nbytes > 2**32
    payload, scale = getattr(rfops, name)(x)
    for row in (0, 262_143, 524_288, rows - 1):
        only = slice(row, row + 1)
        assert_bits(QUANT[name][0], x[only], None, (payload[only], scale[only]))


@pytest.mark.parametrize("name", sorted(QUANT))
def test_quantisation_in_a_graph(name: str, device: torch.device) -> None:
    x = torch.randn(16, 7168, dtype=torch.bfloat16, device=device)
    public = getattr(rfops, name)
    public(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        payload, scale = public(x)
    for seed in (1, 2):
        x.copy_(torch.randn(16, 7168, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert_bits(QUANT[name][0], x, None, (payload, scale))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 17, 32), (5, 130, 96), (16, 2112, 7168), (70, 1024, 2048)])
def test_values(shape: tuple[int, int, int], name: str, device: torch.device) -> None:
    problem = random_problem(*shape, bias=torch.bfloat16).of(name).to(device)
    assert (
        OPS[name].route(OPS[name].check((*problem.args(torch.bfloat16), None, None))[0]).backend
        == "triton"
    )
    for dtype in (torch.bfloat16, torch.float32):
        assert_correct(call(problem, dtype), problem)
    if shape[1] % 16 == 0:
        assert_correct(call(problem.to(CPU).shuffled().to(device)), problem)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("power", "scales"), [(-20, {6: 254, 7: 253}), (40, {6: 0, 7: 1})])
def test_extremes_of_scales(
    power: int, scales: dict[int, int], name: str, device: torch.device
) -> None:
    """NaN, 2^-127 and 2^127; blocks of x that bf16 does not hold, in e4m3."""
    problem = random_problem(20, 64, 256)
    problem.x *= 2.0**power
    problem.x[2, 40], problem.x[0, 64:] = math.inf, 0
    problem.x[1] = 2.0**-106 if power < 0 else 2.0**-10
    problem.w_scale[3, 1] = 255
    for row, byte in scales.items():
        problem.w_scale[row] = byte
    problem = problem.of(name).to(device)
    actual = run("triton", problem, dtype=torch.float32)
    assert_correct(actual, problem)
    assert actual[2].isnan().all() and actual[:, 3].isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_in_a_graph(name: str, device: torch.device) -> None:
    problem = random_problem(16, 2112, 7168).of(name).to(device)
    expected = call(problem)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(expected)
    with torch.cuda.graph(graph):
        call(problem, out=out)
    for _ in range(2):
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("name", NAMES)
def test_weights_beyond_2_gib(name: str, device: torch.device) -> None:
    n, k = 600_016, 8192  # 2.3 GiB of w, 147 MiB of scales
    x = random_problem(3, 16, k).of(name).to(device)
    w = torch.randint(256, (n, k // 2), dtype=torch.uint8, device=device)
    w_scale = torch.randint(121, 134, (n, k // 32), dtype=torch.uint8, device=device)
    actual = call(x.with_(w=w, w_scale=w_scale))
    for start in (0, 262_144, 524_288 - 32, n - 64):
        rows = slice(start, start + 64)
        assert_correct(actual[:, rows], x.with_(w=w[rows], w_scale=w_scale[rows]))
