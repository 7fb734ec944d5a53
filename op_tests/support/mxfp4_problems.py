"""Inputs of gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4, their exact result, how close a kernel
must come."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from rfops.dispatch.compare import assert_within, tolerance
from rfops.dispatch.layout import Shuffled, unwrap
from rfops.gemm import a8wfp4, a16wfp4, afp4wfp4
from rfops.gemm.mxfp4_op import roundings
from rfops.quantization.mxfp4 import dequant_mxfp4, quant_mxfp4_ref
from rfops.quantization.mxfp8 import FP8, dequant_mxfp8, quant_mxfp8_ref
from rfops.quantization.shuffle import (
    shuffle_scale,
    shuffle_weight,
    unshuffle_scale,
    unshuffle_weight,
)
from support.norms import assert_close_in_norm

OPS = {op.name: op for op in (a8wfp4.OP, a16wfp4.OP, afp4wfp4.OP)}


@dataclass
class Problem:
    """Of gemm_a16wfp4 without x_scale, else by the type of x."""

    x: torch.Tensor
    w: torch.Tensor | Shuffled
    x_scale: torch.Tensor | Shuffled | None
    w_scale: torch.Tensor | Shuffled
    bias: torch.Tensor | None = None
    rounding: str = "even"

    @property
    def name(self) -> str:
        if self.x_scale is None:
            return "gemm_a16wfp4"
        return "gemm_a8wfp4" if self.x.dtype == FP8 else "gemm_afp4wfp4"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x.shape[0], self.w.shape[0], 2 * self.w.shape[1]

    def with_(self, **changes: Any) -> Problem:
        return replace(self, **changes)

    def shuffled(self) -> Problem:
        """Weights, and scales of both sides."""
        assert isinstance(self.w, torch.Tensor) and isinstance(self.w_scale, torch.Tensor)
        x_scale = self.x_scale
        if isinstance(x_scale, torch.Tensor):
            x_scale = shuffle_scale(x_scale)
        return self.with_(
            w=shuffle_weight(self.w), w_scale=shuffle_scale(self.w_scale), x_scale=x_scale
        )

    def to(self, device: torch.device) -> Problem:
        moved = {n: v.to(device) for n, v in vars(self).items() if hasattr(v, "to")}
        return self.with_(**moved)

    def quantised(self) -> Problem:
        """The same for gemm_afp4wfp4."""
        x, x_scale = quant_mxfp4_ref(self.x, self.rounding)
        return self.with_(x=x, x_scale=x_scale)

    def of(self, name: str) -> Problem:
        """The same for one of the ops."""
        if name == "gemm_a8wfp4":
            x, x_scale = quant_mxfp8_ref(self.x)
            return self.with_(x=x.to(FP8), x_scale=x_scale)
        return self if name == "gemm_a16wfp4" else self.quantised()

    def args(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Of the op by position, but for the result and the config."""
        w, w_layout = unwrap(self.w)
        w_scale, layout = unwrap(self.w_scale)
        if self.x_scale is None:
            remaining = self.bias, dtype, w_layout, layout, self.rounding
            return self.x, w, w_scale, *remaining
        x_scale, x_layout = unwrap(self.x_scale)
        return self.x, w, x_scale, w_scale, self.bias, dtype, w_layout, x_layout, layout


def random_problem(
    m: int,
    n: int,
    k: int,
    *,
    x_dtype: torch.dtype = torch.bfloat16,
    bias: torch.dtype | None = None,
    rounding: str = "even",
    seed: int = 0,
) -> Problem:
    """Normal activations, as the challenge of 2026 draws them; every code; scales 2^-6 to 2^6."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 10_007 * k + 101 * n + m)
    x = torch.randn(m, k, generator=generator).to(x_dtype)
    w = torch.randint(256, (n, k // 2), generator=generator, dtype=torch.uint8)
    w_scale = torch.randint(121, 134, (n, k // 32), generator=generator, dtype=torch.uint8)
    added = None if bias is None else (64 * torch.randn(n, generator=generator)).to(bias)
    return Problem(x, w, None, w_scale, added, rounding)


def exact_product(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the sum of |products| in float64, in which products and scales are exact."""
    m, n, k = problem.sizes
    x, x_scale = problem.x.cpu(), problem.x_scale
    if x_scale is None:
        x, x_scale = quant_mxfp4_ref(x, problem.rounding)
    elif isinstance(x_scale, Shuffled):
        x_scale = unshuffle_scale(x_scale.to("cpu"), m, k // 32)
    w, w_scale = problem.w.to("cpu"), problem.w_scale.to("cpu")
    w = unshuffle_weight(w) if isinstance(w, Shuffled) else w
    w_scale = unshuffle_scale(w_scale, n, k // 32) if isinstance(w_scale, Shuffled) else w_scale
    widen = dequant_mxfp8 if x.dtype == FP8 else dequant_mxfp4
    wide_x = widen(x, x_scale.cpu(), torch.float64)
    wide_w = dequant_mxfp4(w, w_scale, torch.float64)
    exact, total = wide_x @ wide_w.T, wide_x.abs() @ wide_w.abs().T
    if problem.bias is not None:
        bias = problem.bias.cpu().double()
        exact, total = exact + bias, total + bias.abs()
    return exact, total


def assert_correct(actual: torch.Tensor, problem: Problem, error: float = 0.0) -> None:
    """Against float64: each element within the bound of fp32 sums and of the challenge, all of them
    within the rounding of the result's dtype. `error` is what a kernel adds, as a share of the
    |products|."""
    exact, total = exact_product(problem)
    depth = roundings(problem.sizes[2]) + error * 2**24
    assert_within(actual, exact, tolerance(exact, total, depth, actual.dtype))
    assert_close_in_norm(actual, exact)
    finite = exact.isfinite()
    errors = (actual.cpu().double() - exact)[finite]
    assert (errors.abs() <= 1e-2 + 1e-2 * exact[finite].abs() + error * total[finite]).all()


def run(
    kernel: str,
    problem: Problem,
    config: Any = None,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The result of one kernel in `out`, or in one full of NaN."""
    op, (m, n, _) = OPS[problem.name], problem.sizes
    if out is None:
        out = torch.full((m, n), math.nan, dtype=dtype, device=problem.x.device)
    args = problem.args(out.dtype)
    c, _ = op.check((*args, out, None))
    tensors = args[:4] if problem.x_scale is None else args[:5]
    op.prepare(kernel, c, config)(out, *tensors)
    return out


def call(problem: Problem, dtype: torch.dtype = torch.bfloat16, **kwargs: Any) -> torch.Tensor:
    """The public function."""
    kwargs["bias"] = problem.bias
    if problem.x_scale is None:
        kwargs["rounding"] = problem.rounding
        return a16wfp4.gemm_a16wfp4(problem.x, problem.w, problem.w_scale, dtype, **kwargs)
    args = problem.x, problem.w, problem.x_scale, problem.w_scale
    public = a8wfp4.gemm_a8wfp4 if problem.x.dtype == FP8 else afp4wfp4.gemm_afp4wfp4
    return public(*args, dtype, **kwargs)
