"""Inputs of fused_moe in both layouts of weights, its exact result, and how close one must come."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from rfops.dispatch.compare import HALF_ULP, assert_within
from rfops.dispatch.kernel import Call
from rfops.moe.experts import with_shared
from rfops.moe.fused_moe import OP
from rfops.moe.fused_moe_tables import OP as TABLES


@dataclass
class Problem:
    x: torch.Tensor
    w1: torch.Tensor
    w2: torch.Tensor
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    num_shared: int = 0

    @property
    def choice(self) -> tuple[Any, ...]:
        return self.topk_weights, self.topk_ids

    @property
    def tables(self) -> tuple[Any, ...]:
        """Weights as [K, N], a tensor an expert: gates, ups, downs."""
        i = self.w2.shape[2]
        matrices = (self.w1[:, :i], self.w1[:, i:], self.w2)
        return tuple([m.T.contiguous() for m in matrix] for matrix in matrices)

    def weights(self, is_table: bool) -> tuple[Any, ...]:
        return self.tables if is_table else (self.w1, self.w2)

    def with_(self, **changes: Any) -> Problem:
        return replace(self, **changes)


def random_problem(
    m: int,
    d: int,
    i: int,
    e: int,
    k: int,
    dtype: torch.dtype = torch.float16,
    num_shared: int = 0,
    seed: int = 0,
) -> Problem:
    """Results of about 1; each token's experts differ while there are enough."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 10_007 * d + 101 * i + 7 * m + e)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    routed = e - num_shared
    order = torch.rand(m, routed, generator=generator).argsort(1)
    ids = order[:, torch.arange(k) % max(routed, 1)].int()
    w1, w2 = normal(e, 2 * i, d) / math.sqrt(d), normal(e, d, i) / math.sqrt(i)
    weights = torch.rand(m, k, generator=generator)
    return Problem(normal(m, d).to(dtype), w1.to(dtype), w2.to(dtype), weights, ids, num_shared)


@dataclass
class Exact:
    out: torch.Tensor
    bound: torch.Tensor


def exact_of(problem: Problem, rounded_gate: bool = False) -> Exact:
    """In float64, token by token of each expert; the bound is that of half an ULP of h, of each
    expert's result and of out, and of fp32 sums along both K; with `rounded_gate` of gate and up
    too."""
    p, ids = with_shared(*problem.choice, problem.w1.shape[0], problem.num_shared)
    x, w1, w2 = (t.double() for t in (problem.x, problem.w1, problem.w2))
    i = w2.shape[2]
    out, of_half, of_sums = (torch.zeros_like(x) for _ in range(3))
    for e in ids[ids >= 0].unique().tolist():
        token, j = (ids == e).nonzero(as_tuple=True)
        weight = p[token, j].double()[:, None]
        rows = x[token]
        g, u = rows @ w1[e, :i].T, rows @ w1[e, i:].T
        h = torch.nn.functional.silu(g) * u
        g_most, u_most = rows.abs() @ w1[e, :i].abs().T, rows.abs() @ w1[e, i:].abs().T
        down, abs_down = w2[e].T, w2[e].abs().T
        y = h @ down
        out.index_add_(0, token, weight * y)
        half = (
            h.abs() @ abs_down + y.abs() + (2.2 * (g * u).abs() @ abs_down if rounded_gate else 0)
        )
        of_half.index_add_(0, token, weight.abs() * half)
        sums = (1.1 * g_most * u.abs() + g.abs() * u_most) @ abs_down + h.abs() @ abs_down
        of_sums.index_add_(0, token, weight.abs() * sums)
    dtype = problem.x.dtype
    steps = 2 * (x.shape[1] + i) + 64
    bound = HALF_ULP[dtype] * (out.abs() + 1.01 * of_half) + steps * 2.0**-24 * of_sums
    return Exact(out, bound + 1e-6)


def assert_correct(actual: torch.Tensor, problem: Problem, rounded_gate: bool = False) -> None:
    """Each element within the bound, all of them within the challenge's: relative L2 of 1e-3 in
    fp16, eight times that in bf16."""
    exact = exact_of(problem, rounded_gate)
    assert actual.dtype == problem.x.dtype
    assert_within(actual, exact.out, exact.bound)
    finite = exact.out.isfinite()
    error, norm = (actual.cpu().double() - exact.out)[finite].norm(), exact.out[finite].norm()
    assert error <= (1e-3 if actual.dtype == torch.float16 else 8e-3) * norm, f"{error / norm:.2e}"
    if actual.dtype == torch.float16:
        torch.testing.assert_close(
            actual.cpu().double(), exact.out, rtol=1e-2, atol=1e-2, equal_nan=True
        )


def run(
    kernel: str,
    problem: Problem,
    is_table: bool = False,
    config: Any = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The result of one kernel in `out`, or in one full of NaN."""
    if out is None:
        out = torch.full_like(problem.x, math.nan, memory_format=torch.contiguous_format)
    op, call = TABLES if is_table else OP, call_for(problem, is_table)
    weights = problem.weights(is_table)
    op.prepare(kernel, call, config)(out, problem.x, *weights, *problem.choice, None)
    return out


def call_for(problem: Problem, is_table: bool = False) -> Call:
    op, weights = TABLES if is_table else OP, problem.weights(is_table)
    k, routed = problem.topk_ids.shape[1], problem.w2.shape[0] - problem.num_shared
    raw_rows = () if is_table else ("raw",)
    values = (None, k, routed, False, False, problem.x.dtype, *raw_rows, None, None)
    return op.check((problem.x, *weights, *problem.choice, *values))[0]
