"""Problems of batched_gemm_a16w8_blockscale for its tests, and what their results have to be.

The tolerance is compare.py's; the longest chain of roundings has 128 in a block of K, two for each
block (scale and sum), a few for splits. NVIDIA's matrix units cut bits off where others round, and
keep fewer of them: each of their roundings counts four times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance
from rfops.gemm.a16w8_blockscale import FNUZ, OCP, batched_gemm_a16w8_blockscale
from rfops.gemm.kernels.a16w8.config import BmmConfig, Config
from rfops.jit import settings

NVIDIA = torch.cuda.is_available() and torch.version.hip is None
ARCHS = ["nvidia"] if NVIDIA else ["gfx942", "gfx950"]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def device_of(arch: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The NVIDIA GPU where there is one, else the virtual GPU of that architecture."""
    if NVIDIA:
        return torch.device("cuda", torch.cuda.current_device())
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    return torch.device("cpu")


@dataclass
class Problem:
    x: torch.Tensor
    w: torch.Tensor
    scale: torch.Tensor

    @property
    def args(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.x, self.w, self.scale

    def to(self, device: torch.device) -> Problem:
        return Problem(*(tensor.to(device) for tensor in self.args))


def random_codes(
    *size: int, dtype: torch.dtype = OCP, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Every e4m3 code but NaN, equally likely."""
    if dtype == FNUZ:
        codes = torch.randint(0, 255, size, generator=generator, dtype=torch.uint8)
        return (codes + (codes >= 128)).view(FNUZ)
    codes = torch.randint(0, 254, size, generator=generator, dtype=torch.uint8)
    return (codes + (codes >= 127)).view(OCP)


def random_problem(
    b: int,
    m: int,
    n: int,
    k: int,
    x_dtype: torch.dtype = BF16,
    w_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Problem:
    """All codes of w, in the device's own format unless one is given; scales over 2^-6..2^6, no
    powers of two: a block's read elsewhere shows."""
    w_dtype = w_dtype or _own_format()
    generator = torch.Generator().manual_seed(1_000_003 * seed + 10_007 * k + 101 * n + 11 * m + b)
    x = torch.randn(b, m, k, generator=generator).to(x_dtype)
    blocks = (b, -(-n // 128), -(-k // 128))
    exponent = torch.randint(-6, 6, blocks, generator=generator)
    scale = torch.ldexp(1 + torch.rand(blocks, generator=generator), exponent)
    return Problem(x, random_codes(b, n, k, dtype=w_dtype, generator=generator), scale)


def _own_format() -> torch.dtype:
    """Of the virtual GPU's architecture; gfx942 converts OCP's in many instructions."""
    return FNUZ if not NVIDIA and settings.raw("RFOPS_VGPU_ARCH") == "gfx942" else OCP


def exact_product(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the sum of |products|, in float64."""
    x, n, k = problem.x.double(), *problem.w.shape[1:]
    scale = problem.scale.double().repeat_interleave(128, 1)[:, :n]
    w = problem.w.float().double() * scale.repeat_interleave(128, 2)[:, :, :k]
    return x @ w.mT, x.abs() @ w.abs_().mT


def bound_of(
    exact: torch.Tensor, total: torch.Tensor, k: int, dtype: torch.dtype, config: Config | None
) -> torch.Tensor:
    blocks = -(-k // 128)
    depth = min(k, 128) + 2 * blocks + 16
    if NVIDIA:
        depth *= 4
    bound = tolerance(exact, total, depth, dtype)
    if isinstance(config, BmmConfig):  # weights are rounded, and K is summed in any order
        bound += tolerance(exact, total, 2 * k, BF16) + HALF_ULP[BF16] * total
    return bound


def assert_correct(actual: torch.Tensor, problem: Problem, config: Config | None = None) -> None:
    exact, total = exact_product(problem)
    bound = bound_of(exact, total, problem.x.shape[2], actual.dtype, config)
    assert_within(actual, exact, bound)


def run(problem: Problem, config: Config | None = None, dtype: torch.dtype = BF16) -> torch.Tensor:
    b, m, n = *problem.x.shape[:2], problem.w.shape[1]
    out = torch.full((b, m, n), math.nan, dtype=dtype, device=problem.x.device)
    actual = batched_gemm_a16w8_blockscale(*problem.args, dtype, out, config)
    assert actual is out
    return actual
