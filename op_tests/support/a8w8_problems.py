"""Inputs of gemm_a8w8_blockscale, its exact result, and how close a kernel must come."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from rfops.dispatch.compare import assert_within, tolerance
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.kernel import Call
from rfops.dispatch.routing import chip
from rfops.dispatch.view import views_of
from rfops.gemm.a8w8_blockscale import OP, roundings
from rfops.quantization.fp8_blockscale import BLOCK
from support.norms import assert_close_in_norm


@dataclass
class Problem:
    x: torch.Tensor
    w: torch.Tensor
    x_scale: torch.Tensor
    w_scale: torch.Tensor

    @property
    def args(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.x, self.w, self.x_scale, self.w_scale

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x.shape[0], self.w.shape[0], self.x.shape[1]

    def to(self, device: torch.device) -> Problem:
        return Problem(*(tensor.to(device) for tensor in self.args))

    def with_(self, **tensors: torch.Tensor) -> Problem:
        return replace(self, **tensors)


def random_problem(m: int, n: int, k: int, arch: str, seed: int = 0) -> Problem:
    """Normal values and scales, as the challenge of 2025 draws them: scales may be negative."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 10_007 * k + 101 * n + m)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    fp8, blocks = fp8_of(arch), k // BLOCK
    x, w = normal(m, k).to(fp8), normal(n, k).to(fp8)
    return Problem(x, w, normal(m, blocks), normal(-(-n // BLOCK), blocks))


def exact_product(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the sum of |products| in float64, in which products and scales are exact."""
    x, w, x_scale, w_scale = (tensor.cpu().double() for tensor in problem.args)
    rows = w_scale.repeat_interleave(BLOCK, 0)[: w.shape[0]]
    exact = torch.zeros(x.shape[0], w.shape[0], dtype=torch.float64)
    total = exact.clone()
    for block, (x_part, w_part) in enumerate(
        zip(x.split(BLOCK, 1), w.split(BLOCK, 1), strict=True)
    ):
        scale = x_scale[:, block, None] * rows[None, :, block]
        exact += scale * (x_part @ w_part.T)
        total += scale.abs() * (x_part.abs() @ w_part.abs().T)
    return exact, total


def assert_correct(actual: torch.Tensor, problem: Problem) -> None:
    """Against float64: each element within the bound of fp32 sums and of the challenge, all of them
    within the rounding of the result's dtype."""
    exact, total = exact_product(problem)
    bound = tolerance(exact, total, roundings(problem.sizes[2]), actual.dtype)
    assert_within(actual, exact, bound)
    assert_close_in_norm(actual, exact)
    finite = exact.isfinite()
    errors = (actual.cpu().double() - exact)[finite]
    assert (errors.abs() <= 1e-3 + 2e-2 * exact[finite].abs()).all()


def call_for(problem: Problem, dtype: torch.dtype, w_layout: str = "raw") -> Call:
    device = problem.x.device
    m, n, k = problem.sizes
    values: dict[str, Any] = {"dtype": dtype, "w_layout": w_layout}
    values |= {"x_dtype": problem.x.dtype, "w_dtype": problem.w.dtype}
    names = ("x", "w", "x_scale", "w_scale")
    tensors = views_of(dict(zip(names, problem.args, strict=True)))
    return Call(*chip(device), device, {"M": m, "N": n, "K": k}, values, tensors)


def run(
    kernel: str,
    problem: Problem,
    config: Any = None,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    w_layout: str = "raw",
) -> torch.Tensor:
    """The result of one kernel in `out`, or in one full of NaN."""
    m, n, _ = problem.sizes
    if out is None:
        out = torch.full((m, n), math.nan, dtype=dtype, device=problem.x.device)
    OP.prepare(kernel, call_for(problem, out.dtype, w_layout), config)(out, *problem.args)
    return out
