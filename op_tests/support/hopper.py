"""How exact gemm_a8w8_blockscale can be on Hopper's FP8 matrix unit, from its arithmetic.

The unit adds 32 products and the sum so far at once: each is cut, towards zero, at 2^-13 of the
largest's power of two, and so is the sum (13 bits of fraction: published by those who probed it).
tl.dot of a block of 128 of K is four such steps; what comes after is fp32.

A cut is less than its quantum q, anywhere below, so its variance is at most q^2 / 3; cuts of 33
addends of random signs, and of a step's sum, add up as independent numbers do. Hence the deviation
of an element, from the data: the root of sum_b scale_b^2 sum_steps (33 q^2 + q_sum^2) / 3. It holds
for values of random signs; where all are positive, cuts add up.
"""

from __future__ import annotations

import torch

from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance
from rfops.gemm.a8w8_blockscale import roundings
from rfops.quantization.fp8_blockscale import BLOCK
from support.a8w8_problems import Problem, exact_product

_FRACTION, _STEP = 13, 32  # bits; products that are added at once
_MAX_DEVIATIONS = 6.0  # deviations of an element: one in 10^9 has more


def _quantum(largest: torch.Tensor) -> torch.Tensor:
    """Of numbers up to this one; 1 where all are zero."""
    exponent = torch.frexp(largest)[1] - 1 - _FRACTION
    return torch.where(largest == 0, 1.0, torch.ldexp(torch.ones_like(largest), exponent))


def _cut(value: torch.Tensor, quantum: torch.Tensor) -> torch.Tensor:
    return torch.trunc(value / quantum) * quantum


def hopper_product(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, but for roundings to fp32, and the deviation of each element; in float64."""
    x, w, x_scale, w_scale = (tensor.cpu().double() for tensor in problem.args)
    rows = w_scale.repeat_interleave(BLOCK, 0)[: w.shape[0]]
    result = torch.zeros(x.shape[0], w.shape[0], dtype=torch.float64)
    variance = result.clone()
    for block in range(x.shape[1] // BLOCK):
        total, cuts = torch.zeros_like(result), torch.zeros_like(result)
        for k in range(block * BLOCK, (block + 1) * BLOCK, _STEP):
            products = x[:, None, k : k + _STEP] * w[None, :, k : k + _STEP]
            quantum = _quantum(torch.maximum(products.abs().amax(-1), total.abs()))
            added = _cut(products, quantum[..., None]).sum(-1) + _cut(total, quantum)
            sum_quantum = _quantum(added.abs())
            total = _cut(added, sum_quantum)
            cuts += (33 * quantum**2 + sum_quantum**2) / 3
        scale = x_scale[:, block, None] * rows[None, :, block]
        result += scale * total
        variance += scale**2 * cuts
    return result, variance.sqrt()


def assert_correct_on_hopper(
    actual: torch.Tensor, problem: Problem, deviation: torch.Tensor
) -> float:
    """An fp32 result: each element within six deviations, and the errors of each row, and of each
    block of columns, within one on average, as a small defect of one block makes more of. Returns
    the most of these averages, in deviations."""
    assert actual.dtype == torch.float32
    exact, total = exact_product(problem)
    rounded = tolerance(exact, total, roundings(problem.sizes[2]), actual.dtype)
    assert_within(actual, exact, _MAX_DEVIATIONS * deviation + rounded)
    # Blocks are added up in fp32, and multiplied by two scales.
    sums = (problem.sizes[2] // BLOCK + 3) * (HALF_ULP[actual.dtype] * total) ** 2
    error, limit = (actual.cpu().double() - exact) ** 2, deviation**2 + sums
    squared_deviations = {
        f"row {i}": error[i].sum() / limit[i].sum() for i in range(error.shape[0])
    }
    for n in range(0, error.shape[1], BLOCK):
        span = slice(n, n + BLOCK)
        squared_deviations[f"columns from {n}"] = error[:, span].sum() / limit[:, span].sum()
    worst = max(squared_deviations, key=lambda name: float(squared_deviations[name]))
    worst_deviation = float(squared_deviations[worst]) ** 0.5
    assert worst_deviation <= 1, f"{worst}: errors of {worst_deviation:.2f} deviations on average"
    return worst_deviation
