"""gemm_a8w8_blockscale in Triton, on the virtual GPU: values, layouts, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rfops.gemm.a8w8_blockscale import OP
from rfops.gemm.kernels.a8w8.triton import A8W8TritonConfig
from rfops.quantization.fp8_blockscale import FNUZ, OCP
from support.a8w8_problems import Problem, assert_correct, random_problem, run

# Both ways round, scales of w by row and by block, splits of different lengths.
CASES = [
    (A8W8TritonConfig(16, 64, stages=2), (5, 70, 256)),
    (A8W8TritonConfig(32, 128, 2, 1, stages=2), (20, 130, 640)),
    (A8W8TritonConfig(64, 64, 3, stages=2), (70, 201, 384)),
    (A8W8TritonConfig(64, 256, stages=1), (70, 300, 256)),
]


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


@pytest.mark.parametrize(("config", "shape"), CASES)
def test_values(config: A8W8TritonConfig, shape: tuple[int, int, int], arch: str) -> None:
    problem = random_problem(*shape, arch)
    got = run("triton", problem, config)
    assert_correct(got, problem)
    assert torch.equal(got, run("triton", problem, config))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_result_types(dtype: torch.dtype, arch: str) -> None:
    problem = random_problem(33, 70, 512, arch)
    assert_correct(run("triton", problem, dtype=dtype), problem)


def test_any_strides(arch: str) -> None:
    """Column-major operands and scales, as the challenge of 2025 has them, are Triton's."""
    problem = random_problem(17, 140, 256, arch)
    turned = Problem(*(tensor.T.contiguous().T for tensor in problem.args))
    out = torch.full((17, 140), math.nan, dtype=torch.bfloat16)
    call = OP.check((*turned.args, torch.bfloat16, "raw", out, None))[0]
    assert OP.route(call).backend == "triton"
    got = run("triton", turned, A8W8TritonConfig(32, 64))
    assert torch.equal(got, run("triton", problem, A8W8TritonConfig(32, 64)))
    assert_correct(got, problem)


@pytest.mark.parametrize(
    ("arch", "values", "reason"),
    [
        ("gfx942", {"x_dtype": OCP}, "gfx942 multiplies torch.float8_e4m3fnuz"),
        ("sm_90", {"x_dtype": FNUZ}, "sm_90 multiplies torch.float8_e4m3fn,"),
        ("sm_80", {}, "no tiles for sm_80"),
        ("gfx950", {"w_layout": "16x16"}, "w is shuffled 16x16"),
        ("gfx950", {"M": 0}, "nothing to compute"),
        ("gfx950", {"K": 2**23}, "256 rows of x are beyond signed 32-bit offsets"),
    ],
)
def test_refuses(arch: str, values: dict[str, Any], reason: str) -> None:
    c = OP.call_of(arch, **{"M": 4, "N": 64, "K": 256, **values})
    assert reason in str(OP.kernels["triton"].unsupported_reason(c))


def test_configs_that_do_not_fit() -> None:
    c = OP.call_of("gfx942", M=128, N=256, K=1024)
    large = A8W8TritonConfig(128, 256, stages=3)
    assert "LDS, gfx942 has 65536" in str(OP.kernels["triton"].unsupported_config_reason(c, large))
    assert all(OP.kernels["triton"].unsupported_config_reason(c, one) is None
               for one in OP.kernels["triton"].candidates(c))  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((24, 64), "block_m must be a power of two"),
        ((8, 64), "block_m must be a power of two from 16 to 256, got 8"),
        ((16, 16), "block_n must be a power of two from 32 to 256, got 16"),
        ((16, 64, 17), "splits must be 1 to 16, got 17"),
        ((16, 64, 1, 0), "group_m must be 1 or more, got 0"),
        ((16, 64, 1, 1, 4, 9), "stages must be 1 to 8, got 9"),
    ],
)
def test_configs_that_cannot_be(values: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        A8W8TritonConfig(*values)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "sm_90"])
def test_the_default_fits_every_shape(arch: str) -> None:
    kernel = OP.kernels["triton"]
    for m in (1, 16, 17, 64, 100, 1024, 6144):
        for n, k in ((512, 7168), (7168, 256), (36864, 7168), (1, 128)):
            c = OP.call_of(arch, M=m, N=n, K=k)
            assert kernel.unsupported_config_reason(c, kernel.default(c)) is None
