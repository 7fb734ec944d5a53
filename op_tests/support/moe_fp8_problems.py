"""Inputs of fused_moe with FP8 weights, and how close a result must come."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from rfops.dispatch.declare import fp8_of
from rfops.moe.fused_moe_fp8 import OP, run_torch
from rfops.quantization.fp8_blockscale import BLOCK
from rfops.quantization.fp8_blockscale import reference as quantise


@dataclass
class Problem:
    x: torch.Tensor
    w1: torch.Tensor
    w2: torch.Tensor
    w1_scale: torch.Tensor
    w2_scale: torch.Tensor
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    num_shared: int = 0

    @property
    def choice(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.topk_weights, self.topk_ids

    @property
    def scales(self) -> dict[str, Any]:
        return {"quant": "fp8_blockscale", "w1_scale": self.w1_scale, "w2_scale": self.w2_scale}

    def with_(self, **changes: Any) -> Problem:
        return replace(self, **changes)


def random_problem(
    arch: str,
    m: int,
    d: int,
    i: int,
    e: int,
    k: int,
    dtype: torch.dtype = torch.bfloat16,
    num_shared: int = 0,
) -> Problem:
    """Results of about 1, scales that differ by block."""
    generator = torch.Generator().manual_seed(10_007 * d + 101 * i + 7 * m + e)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def weights(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = normal(e * rows, columns) / math.sqrt(columns)
        grow = torch.rand(e * rows // BLOCK, columns // BLOCK, generator=generator) + 0.5
        values *= grow.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        payload, scale = quantise(values, BLOCK, False, fp8_of(arch))
        shape = e, rows // BLOCK, columns // BLOCK
        return payload.view(e, rows, columns), scale.view(shape)

    routed = e - num_shared
    ids = torch.rand(m, routed, generator=generator).argsort(1)[:, torch.arange(k) % routed].int()
    (w1, s1), (w2, s2) = weights(2 * i, d), weights(d, i)
    weight = torch.rand(m, k, generator=generator)
    return Problem(normal(m, d).to(dtype), w1, w2, s1, s2, weight, ids, num_shared)


def exact_of(p: Problem) -> torch.Tensor:
    """fp32 over the same two quantisations."""
    out = torch.empty_like(p.x, dtype=torch.float32)
    run_torch(out, p.x, p.w1, p.w2, (p.w1_scale, p.w2_scale), p.choice, p.num_shared)
    return out


def _nudged(p: Problem, change: float) -> Problem:
    """With each element of h, before it is rounded, 1 + change times as large."""
    scale = p.w1_scale.clone()
    scale[:, scale.shape[1] // 2 :] *= 1 + change
    return p.with_(w1_scale=scale)


def assert_correct(actual: torch.Tensor, p: Problem) -> None:
    """Each row within a relative L2 of 1e-2: out and each expert's result are rounded (2^-9 of the
    root of the mean square in bf16), and an element of h between two of FP8 may become either.

    The order of fp32 sums, 2^-16 of an element, may round one to another 16-bit value, the largest
    of its block say, whose scale then differs: a row is within 1e-2 of the reference, or of the one
    with h larger or smaller by that much.
    """
    exact = exact_of(p)
    assert actual.dtype == p.x.dtype and actual.shape == exact.shape
    assert torch.equal(actual.isnan(), exact.isnan())
    error = _relative_error(actual, exact)
    for change in (2**-16, -(2**-16)):
        if (error > 1e-2).any():
            error = error.minimum(_relative_error(actual, exact_of(_nudged(p, change))))
    row = int(error.argmax()) if len(error) else 0
    assert len(error) == 0 or error[row] <= 1e-2, f"row {row}: {error[row]:.2e}"


def _relative_error(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """L2 of each row's error over that of the row, NaN left out."""
    error = torch.nan_to_num(actual.float() - exact).norm(dim=1)
    return error / torch.nan_to_num(exact).norm(dim=1).clamp(min=1e-6)


def run(
    kernel: str,
    p: Problem,
    config: Any = None,
    out: torch.Tensor | None = None,
    layout: str = "raw",
) -> torch.Tensor:
    """The result of one kernel in `out`, or in one full of NaN."""
    out = torch.full_like(p.x, math.nan) if out is None else out
    k, routed = p.topk_ids.shape[1], p.w2.shape[0] - p.num_shared
    inputs = p.x, p.w1, p.w2, p.w1_scale, p.w2_scale, *p.choice, None
    values = k, routed, False, False, p.x.dtype, layout, None, None
    call = OP.check((*inputs, *values))[0]
    OP.prepare(kernel, call, config)(out, *inputs)
    return out
