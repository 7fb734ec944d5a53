"""gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4 in Triton, on the virtual GPU: values, layouts,
refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rfops.gemm.kernels.mxfp4.triton import Mxfp4TritonConfig
from support.mxfp4_problems import OPS, assert_correct, random_problem, run

NAMES = sorted(OPS)
# Splits of different lengths, a last step that is ragged, tiles of scales begun halfway.
CASES = [
    (Mxfp4TritonConfig(16, 64, stages=2), (5, 70, 256)),
    (Mxfp4TritonConfig(32, 128, 128, 2, 1, stages=2), (20, 130, 608)),
    (Mxfp4TritonConfig(16, 32, 256, 3, warps=2, stages=1), (37, 96, 1056)),
]


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("config", "shape"), CASES)
def test_values(
    config: Mxfp4TritonConfig, shape: tuple[int, int, int], name: str, arch: str
) -> None:
    problem = random_problem(*shape, bias=torch.bfloat16).of(name)
    got = run("triton", problem, config)
    assert_correct(got, problem)
    assert torch.equal(got, run("triton", problem, config))


@pytest.mark.parametrize("name", NAMES)
def test_shuffled(name: str, arch: str) -> None:
    """The same bits as of plain rows; paddings mean nothing."""
    problem = random_problem(37, 96, 352).of(name)
    shuffled = problem.shuffled()
    config = Mxfp4TritonConfig(16, 32, stages=2)
    wanted = run("triton", problem, config, torch.float32)
    assert_correct(wanted, problem)
    assert torch.equal(run("triton", shuffled, config, torch.float32), wanted)


@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rounding", ["even", "up", "down"])
def test_x_is_quantised_as_quant_mxfp4_does(rounding: str, x_dtype: torch.dtype, arch: str) -> None:
    """Blocks of all magnitudes, w = 1: sums of 32 quantised elements are exact."""
    problem = random_problem(16, 32, 64, x_dtype=x_dtype, rounding=rounding)
    spread = 2.0 ** torch.randint(-14, 8, (16, 2, 1), generator=torch.Generator().manual_seed(0))
    x = (problem.x.view(16, 2, 32) * spread).view(16, 64).to(x_dtype)
    x[3], x[4, :32], x[5, 7] = 0, 0, -0.0
    ones = {"w": torch.full_like(problem.w, 0x22), "w_scale": torch.full_like(problem.w_scale, 127)}
    problem = problem.with_(x=x, **ones)
    config = Mxfp4TritonConfig(16, 32, stages=1)
    got = run("triton", problem, config, torch.float32)
    assert torch.equal(got, run("torch", problem, None, torch.float32))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("power", "scales"), [(-20, {6: 254, 7: 253}), (40, {6: 0, 7: 1})])
def test_extremes_of_scales(power: int, scales: dict[int, int], name: str, arch: str) -> None:
    """NaN, 2^-127 and 2^127, with x whose products are numbers in fp32; blocks of zeros, infinities
    in x; tiles beside them keep theirs."""
    problem = random_problem(20, 64, 256)
    problem.x *= 2.0**power
    problem.x[2, 40], problem.x[0, 64:], problem.x[17, 3] = math.inf, 0, math.nan
    problem.w_scale[3, 1] = 255
    for row, byte in scales.items():
        problem.w_scale[row] = byte
    problem = problem.of(name)
    got = run("triton", problem, Mxfp4TritonConfig(16, 32, stages=1), torch.float32)
    assert_correct(got, problem)
    assert got[2].isnan().all() and got[17].isnan().all() and got[:, 3].isnan().all()
    assert got.isnan().sum() == 2 * 64 + 20 - 2
    assert got[1, 6].abs() > 1e28 if power < 0 else 0 < got[1, 6].abs() < 1e-20


@pytest.mark.parametrize("name", NAMES)
def test_any_strides(name: str, arch: str) -> None:
    """Columns side by side, and rows of x that pairs cannot be read of."""
    problem = random_problem(17, 48, 160).of(name)
    config = Mxfp4TritonConfig(32, 64, stages=1)
    wanted = run("triton", problem, config)
    changes = {n: getattr(problem, n) for n in ("x", "w", "x_scale", "w_scale")}
    turned = {n: t.T.contiguous().T for n, t in changes.items() if t is not None}
    assert torch.equal(run("triton", problem.with_(**turned), config), wanted)
    wide = torch.zeros(17, problem.x.shape[1] + 3, dtype=problem.x.dtype)
    wide[:, 1:-2] = problem.x
    assert torch.equal(run("triton", problem.with_(x=wide[:, 1:-2]), config), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_result_types_and_the_default(dtype: torch.dtype, arch: str) -> None:
    problem = random_problem(33, 70, 512, bias=torch.float32)
    assert_correct(run("triton", problem, dtype=dtype), problem)


@pytest.mark.parametrize(
    ("arch", "values", "reason"),
    [
        ("sm_80", {}, "no tiles for sm_80"),
        ("gfx950", {"M": 0}, "nothing to compute"),
        ("gfx950", {"K": 2**23}, "256 rows of x are beyond signed 32-bit offsets"),
        ("gfx950", {"N": 2**23}, "256 rows of out are beyond signed 32-bit offsets"),
    ],
)
def test_refuses(arch: str, values: dict[str, Any], reason: str) -> None:
    op = OPS["gemm_a16wfp4"]
    c = op.call_of(arch, **{"M": 4, "N": 64, "K": 256, **values})
    assert reason in str(op.kernels["triton"].unsupported_reason(c))


@pytest.mark.parametrize("name", NAMES)
def test_configs_that_do_not_fit(name: str) -> None:
    op = OPS[name]
    kernel, c = op.kernels["triton"], op.call_of("gfx942", M=128, N=256, K=1024)
    large = Mxfp4TritonConfig(128, 256, 256, stages=3)
    assert "LDS, gfx942 has 65536" in str(kernel.unsupported_config_reason(c, large))
    assert all(kernel.unsupported_config_reason(c, one) is None for one in kernel.candidates(c))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((24, 64), "block_m must be a power of two"),
        ((8, 64), "block_m must be a power of two from 16 to 256, got 8"),
        ((16, 16), "block_n must be a power of two from 32 to 256, got 16"),
        ((16, 64, 64), "block_k must be 128, 256 or 512, got 64"),
        ((16, 64, 128, 17), "splits must be 1 to 16, got 17"),
        ((16, 64, 128, 1, 0), "group_m must be 1 or more, got 0"),
        ((16, 64, 128, 1, 1, 4, 9), "stages must be 1 to 8, got 9"),
    ],
)
def test_configs_that_cannot_be(values: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mxfp4TritonConfig(*values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "sm_90"])
def test_the_default_fits_every_shape(arch: str, name: str) -> None:
    op = OPS[name]
    kernel = op.kernels["triton"]
    for m in (1, 16, 17, 64, 100, 1024, 6144):
        for n, k in ((512, 7168), (7168, 256), (36864, 7168), (1, 32)):
            c = op.call_of(arch, M=m, N=n, K=k)
            assert kernel.unsupported_reason(c) is None
            assert kernel.unsupported_config_reason(c, kernel.default(c)) is None
